"""Records defined by a Protocol class, and the history of a record's hops."""
