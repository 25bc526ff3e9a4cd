"""Packet captures: frames in files, datagrams in frames, and the two lines of a channel merged."""
