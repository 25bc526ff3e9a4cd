"""Which received packets a subscription believes."""
