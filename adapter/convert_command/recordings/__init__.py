"""Recordings: inputs of `convert file` that continue each other. With `--jobs`, several are converted at a time.

`independence` finds out which inputs belong together, `recording` converts one recording, `side_by_side` has processes
that do so, `staging` keeps what they write out of sight until all of it is complete, also if a signal ends the command.

Invariant: the output does not depend on the number of processes.
"""
