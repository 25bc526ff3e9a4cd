"""The scheduling policy of threads that put items.

A thread that holds the interpreter lock wakes the threads of its group. On a busy machine Linux lets a woken thread
preempt the one that woke it, only to find the lock taken: two useless context switches per put. Threads under the
batch policy (SCHED_BATCH, sched(7)) do not preempt each other. The only other change: they yield to other threads
after long computations.
"""

from __future__ import annotations

import os
from contextlib import suppress


def use_batch_policy() -> None:
    """Give the calling thread the batch policy, unless its policy was set explicitly."""
    with suppress(OSError):  # a sandbox may forbid it: slower, but correct
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def keep_policy() -> None:
    """Keep the calling thread's policy."""
