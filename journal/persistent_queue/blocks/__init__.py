"""The blocks of a queue: what is in them, how it is written, and spare ones."""
