"""The processes of a feed: which are registered, what they started, reported and may spend."""
