"""What Spark's tasks do: they read files, and append to the journals of source streams."""
