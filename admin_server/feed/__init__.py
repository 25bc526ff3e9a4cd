"""The state of one feed: broker and operations, documents, sessions, history, streams; rooms of keys and members."""
