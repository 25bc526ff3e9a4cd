"""Packets without final numbers, merged by their sources."""
