"""The faults that a drill injects into a running cluster: one function per fault, listed in `faults.table`.

A fault function injects the fault, waits for its effect, repairs it, waits until the cluster is healthy, and returns a
description of what it did. It never examines what clients received; the ledger does that afterwards.
"""
