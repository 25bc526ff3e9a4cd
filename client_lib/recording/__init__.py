"""Recording what a subscription delivers, to compare it with what the source sent."""
