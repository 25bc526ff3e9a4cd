"""Runs the project on one machine: the `tandemfeed` command, the cluster, the demo, the drills, network isolation.

No other package imports it.
"""
