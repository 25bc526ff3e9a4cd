"""What a subscription delivers of a channel: the granted symbols, and the wanted values."""
