"""The client's merge: combines the streams of all adapters of a channel into one."""
