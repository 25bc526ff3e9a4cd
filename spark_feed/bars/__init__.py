"""Bars of a feed's trades and quotes, from a live stream or from journals."""
