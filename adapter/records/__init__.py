"""What an adapter keeps on disk: its output journal, its saved state, its dead letters; and replay from the journal."""
