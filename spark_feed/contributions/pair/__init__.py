"""One contribution gateway of a pair: which part it has, and the copy of the log."""
