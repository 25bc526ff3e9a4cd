"""Proves from journals that the source and every adapter of a session agree, or names where they do not."""
