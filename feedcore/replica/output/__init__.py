"""What a replica produces: converted packets, when they may be sent, and repairs of conversion state."""
