"""The items of a queue: their states, which are pending, and reading them."""
