"""Captures at the speed of the conversion kernels: compiled walks from a file's bytes to the messages of its streams.

`capture_walk` finds the UDP datagrams in a block of a capture, `packet_headers` their sessions and sequence numbers,
`stream_merge` puts the messages of each stream in order. What is rare (fragments, damage, datagrams of other
protocols, gaps) is left to the readers in `adapter.conversion.formats`, one datagram at a time.

Invariant: the result is that of those readers.
"""
