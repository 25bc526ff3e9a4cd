"""What an adapter exchanges with the other adapters of its feed and with the feed source, by calls."""
