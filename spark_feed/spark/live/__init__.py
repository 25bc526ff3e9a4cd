"""Live subscriptions as streams: offsets, buffers, and packets for the tasks."""
