"""What a client's call subscribes to, and what it is sent."""
