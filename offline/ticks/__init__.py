"""`spark.read.format("tandemfeed.ticks")`: captures and files of any source format as tables.

Each recording (the files of a folder, or one file) is read by one task, as a stream, so that its size does not matter.
"""
