"""The same datagrams over ZeroMQ PUB/SUB on TCP with CURVE, for clients that multicast does not reach."""
