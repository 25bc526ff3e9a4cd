"""The roles of a replica, one object each, and the table of the moves between them."""
