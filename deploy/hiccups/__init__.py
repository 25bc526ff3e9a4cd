"""The hiccup meter: how long the machine itself pauses, measured beside the demo, the drills and the benchmarks."""
