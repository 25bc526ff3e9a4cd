"""One subscription at work: which packets it believes, merging, replay, statistics."""
