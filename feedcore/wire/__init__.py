"""What travels between processes: packet layouts and codecs, positions, lineages, reasons to refuse a packet."""
