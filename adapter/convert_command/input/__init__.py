"""What `convert file` reads: files, compressed or not, readers, and what was wrong with the input."""
