"""Where a merge is, where it was, and which epoch's history it follows."""
