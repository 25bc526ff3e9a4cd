"""What the schedulers, the interpreter's and the operating system's, and the collector of cyclic garbage are told of a
process whose turns are short and wanted at once.

Since Linux 6.12 an ordinary thread may say how long its slices of the processor should be (sched_setattr(2),
`sched_runtime`). One that asks for short slices is due sooner when it wakes up, so that it interrupts a thread of
longer ones; otherwise it waits for that one's slice or for the next tick to end, some milliseconds. Its share of the
processor stays what it was, and no privilege is needed. What gains by it is a takeover: while a core frees the memory
of the active that was killed, half a dozen threads have to run, one behind the other, for some 100 microseconds each.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import struct
import sys
import threading
from functools import cache

# The interpreter lets a thread that waits for it in after this long. Its default of 5 ms would let a call hold up an
# adapter's loop, or a grant of the admin server, for as long; their own turns are far shorter.
SWITCH_INTERVAL_S = 0.000_5
SLICE_NS = 100_000  # the shortest that Linux grants
LAST_SLICE_NS = 10_000_000  # whose slice is longer runs later
LAST_THREADS_MAX = 8  # with more processors one is idle anyway
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # numbers of the system call; older C libraries have no name for it
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # struct sched_attr: size, policy, flags, nice, priority, runtime, …


def prefer_short_turns() -> bool:
    """Ask for short slices, for the calling thread and all that it starts from now on, threads and processes.

    Call it first of all. A policy that somebody chose for the process stays, with its own terms.

    Returns:
        False if this system, or a sandbox, does not do it: slower on a busy machine, no worse.
    """
    return _ask_for(SLICE_NS, more_nice=0)


def yield_to_others() -> bool:
    """Have the calling thread run behind all others that want to, and give way to any that wakes up.

    For what comes behind all the work. It keeps a tenth of an ordinary share: on a busy machine, too, it is done soon.

    Returns:
        False if this system, or a sandbox, does not do it.
    """
    return _ask_for(LAST_SLICE_NS, more_nice=10)


def _ask_for(slice_ns: int, more_nice: int) -> bool:
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + more_nice)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, slice_ns, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)


def begin_steady_running() -> None:
    """Call when everything is set up: from here on no turn of the process should wait for another thread, or for long.

    What start-up made, mostly modules, stays for good, so no collection of cyclic garbage needs to look at it again: a
    full one would stop the process for 20 to 80 ms, some time in its first minute. That leaves what is made from now
    on: what is kept by the ten thousand should therefore be numbers and bytes, not objects that refer to others.

    When the process is killed, its memory is freed where nobody else wants the processor.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    _have_memory_freed_last()


@cache
def _have_memory_freed_last() -> None:
    """Start, once, threads that do nothing but end last when the process is killed.

    Each thread of a killed process ends by itself, and the last one frees the memory: for hundreds of megabytes 20 ms,
    of which others on that processor may wait some for its tick. Threads that yield to others end last, and free the
    memory when nobody else wants the processor. One a processor, because each processor ends its own threads.
    """
    processors = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    for processor in processors[:LAST_THREADS_MAX]:
        threading.Thread(target=_end_last, args=(processor,), name=f"last-{processor}", daemon=True).start()


def _end_last(processor: int) -> None:
    with contextlib.suppress(OSError):  # a processor taken away meanwhile
        os.sched_setaffinity(0, {processor})
        if yield_to_others():
            threading.Event().wait()
