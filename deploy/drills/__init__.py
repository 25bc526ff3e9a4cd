"""Drills: rounds of faults in a running cluster, the witness, the forger, and the ledger of what was received."""
