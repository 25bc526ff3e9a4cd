"""What is in memory: the state under one lock, the queues' indexes, and messages that are not persistent."""
