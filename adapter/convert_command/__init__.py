"""`tandemfeed convert`: check the documents of a conversion, explain a table, convert a file."""
