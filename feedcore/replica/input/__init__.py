"""What a replica takes in: source packets in order, decisions in order, and the application of one to the other."""
