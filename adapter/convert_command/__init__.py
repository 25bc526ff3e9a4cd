"""`tandemfeed convert`: check the documents of a conversion, explain or compile a table, convert a file, look at dead
letters."""
