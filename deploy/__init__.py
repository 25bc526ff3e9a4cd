"""Running the house: the command, the one-machine cluster, the demo, drills and isolation. Nothing imports it."""
