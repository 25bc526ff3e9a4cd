"""What travels between processes: packet layouts and codecs, positions, lineages, and why a packet is refused."""
