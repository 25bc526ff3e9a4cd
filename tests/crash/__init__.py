"""Crashes, many: processes killed under load, files cut and flipped, pages lost. `./run crash-test --cases N`."""
