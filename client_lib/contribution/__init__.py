"""Contributing messages to a feed."""
