"""The appender's side: the chain of blocks, background work, maintenance by hand."""
