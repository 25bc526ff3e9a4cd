"""The source journal: one journal per source stream, and the log of the micro-batches that are committed in them."""
