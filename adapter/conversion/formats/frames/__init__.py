"""Where each message begins and ends in a run of bytes."""
