"""The reader's side: finding blocks, batches of records, reading backward, an index by sequence number."""
