"""Decides whether this adapter may transmit as active: the lease, contact with the admin server, the peers' consent."""
