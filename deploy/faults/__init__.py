"""What a drill does to a running cluster: one function a fault, and the table that names them (`faults.table`).

A fault function strikes, waits by events until the fault has had its effect, mends it, and waits until the cluster is
whole again; it says what it did. It never looks at what clients were delivered: the ledger does, afterwards.
"""
