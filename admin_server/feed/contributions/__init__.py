"""The gateways of a feed's contributions."""
