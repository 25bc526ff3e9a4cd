"""The sockets of a feed, which its subscriptions share, and the transport to each adapter."""
