"""What an application sees of a subscription: messages, batches, items, and how far it has handled them."""
