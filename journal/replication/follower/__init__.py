"""The follower: its decisions, the thread that performs them, and its copy of the journal."""
