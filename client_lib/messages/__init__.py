"""Messages as Python values: by the message model, or by any SBE schema."""
