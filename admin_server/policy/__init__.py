"""The policy: which identity may do what, on which topics and feeds, and when."""
