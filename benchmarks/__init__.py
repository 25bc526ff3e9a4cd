"""Speed, measured side by side in one run; never part of a test. `./run bench NAME`."""
