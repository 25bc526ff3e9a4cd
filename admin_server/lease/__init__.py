"""Which adapter is active: the lease store's decisions, candidates, terms, and their execution."""
