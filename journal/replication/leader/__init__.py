"""The leader: its decisions, and the thread that performs them."""
