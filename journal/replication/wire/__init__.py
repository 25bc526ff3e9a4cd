"""What leader and follower say to each other, its encoding, and the connection that carries it."""
