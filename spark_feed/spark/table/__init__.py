"""The table of a message type: its columns, filters on them, and how packets become Arrow batches."""
