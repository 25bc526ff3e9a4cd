"""The keys of a feed's channels, and what its readers were given."""
