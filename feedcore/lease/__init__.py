"""Whether this adapter may transmit as active now: the lease, contact with the admin server, and the peers' consent."""
