"""What processes exchange: packet layouts and codecs, positions, lineages, reasons to refuse a packet."""
