"""Crash tests: processes killed under load, files damaged or truncated, pages lost. `./run crash-test --cases N`."""
