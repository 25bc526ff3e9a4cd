"""The state of one feed: broker, operations, registrations, starts, keys, sessions, streams."""
