"""`tandemfeed convert`: check the documents of a conversion, explain or compile a table, convert a file, show dead
letters."""
