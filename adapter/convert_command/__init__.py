"""`tandemfeed convert`: checks the documents of a conversion, explains or compiles a table, converts a file, and prints
dead letters."""
