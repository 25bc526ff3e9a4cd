"""What `convert file` writes: messages collected by type into the files of each format."""
