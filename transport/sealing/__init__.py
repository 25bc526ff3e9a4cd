"""Sealing and opening of packets: keys of a start, decision tags, signatures, and the window against replays."""
