"""What is on the disk: the page store, its tables, and the space in reserve."""
