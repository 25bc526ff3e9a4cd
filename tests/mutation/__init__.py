"""Mutation testing: plants small faults in a module's syntax tree, one at a time; its tests must detect each."""
