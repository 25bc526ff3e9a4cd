"""Who callers are: three ways to log in, the verifiers and certificates of identities, and the commands for them."""
