"""Files of messages without packets: BinaryFILE, DBN, LOBSTER, and tables of ticks."""
