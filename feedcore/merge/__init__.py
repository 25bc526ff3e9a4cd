"""The client's merge: the streams of all adapters of a channel become one."""
