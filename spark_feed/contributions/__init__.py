"""Messages that clients contribute to a feed: accepted, queued, numbered once, and sent as a source stream."""
