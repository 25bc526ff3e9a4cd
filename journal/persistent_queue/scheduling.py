"""What the operating system's scheduler is told of threads that put together.

A follower is woken by a thread that holds the interpreter. On a busy machine Linux lets the woken thread interrupt the
one that woke it, only for it to find the interpreter taken: two switches for nothing, for each put. Threads under the
batch policy (SCHED_BATCH, sched(7)) do not interrupt each other; nothing else changes for them but that they yield to
others when they have long computed.
"""

from __future__ import annotations

import os
from contextlib import suppress


def prefer_batches() -> None:
    """Give the calling thread the batch policy, if it has the ordinary one; a policy somebody chose stays."""
    with suppress(OSError):  # a sandbox that forbids it: slower, no worse
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def leave_alone() -> None:
    """The calling thread keeps what it has."""
