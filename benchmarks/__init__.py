"""Benchmarks: each measures alternatives side by side in one run. Tests never run them. `./run bench NAME`."""
