"""Multicast datagrams, by ZeroMQ's sockets or the kernel's own: on the wire they are the same."""
