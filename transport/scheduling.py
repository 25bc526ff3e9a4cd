"""Settings of the interpreter's scheduler, the operating system's scheduler and the garbage collector, for processes
with short turns that must run without delay.

Since Linux 6.12, an ordinary thread may choose the length of its processor slices (sched_setattr(2), `sched_runtime`).
A thread with short slices is due sooner when it wakes up, so it interrupts a thread with longer ones. Otherwise it
waits some milliseconds, for the end of that slice or the next tick. Its share of the processor stays the same, and it
needs no privilege. This speeds up a takeover: while a core frees the memory of the killed active, half a dozen threads
must run, one after another, for some 100 microseconds each.
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

# After this time, the interpreter switches to a waiting thread. With its default of 5 ms, a call could delay an
# adapter's loop, or a grant of the admin server, for that long; their own turns are far shorter.
SWITCH_INTERVAL_S = 0.000_5
SLICE_NS = 100_000  # the shortest that Linux grants
LAST_SLICE_NS = 10_000_000  # a thread with a longer slice runs later
LAST_THREADS_MAX = 8  # with more processors, one is idle anyway
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # system call numbers; older C libraries have no wrapper
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # struct sched_attr: size, policy, flags, nice, priority, runtime, …


def request_short_slices() -> bool:
    """Request short slices for the calling thread and for all threads and processes that it starts from now on.

    Call it first. A scheduling policy that was chosen for the process stays in force.

    Returns:
        False if this system or a sandbox refuses; the process is then slower on a busy machine, but correct.
    """
    return _ask_for(SLICE_NS, more_nice=0)


def request_background_slices() -> bool:
    """Let the calling thread run after all other runnable threads, and give way to any that wakes up.

    For work that follows all urgent work. The thread keeps a tenth of an ordinary share, so that it ends soon even on a
    busy machine.

    Returns:
        False if this system or a sandbox refuses.
    """
    return _ask_for(LAST_SLICE_NS, more_nice=10)


def _ask_for(slice_ns: int, more_nice: int) -> bool:
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + more_nice)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, slice_ns, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)


def tune_for_low_latency() -> None:
    """Call it when everything is set up. From then on, no turn of the process should wait long.

    The objects created at start-up, mostly modules, are permanent, so garbage collections need not scan them again: a
    full one would stop the process for 20 to 80 ms at some time in its first minute. Later objects are still scanned,
    so data kept by the ten thousand should be numbers and bytes, not objects that refer to others.

    When the process is killed, its memory is freed when no other thread needs the processor.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    _start_threads_that_end_last()


@cache
def _start_threads_that_end_last() -> None:
    """Start, once, threads whose only purpose is to end last when the process is killed.

    The last thread of a killed process to end frees the memory: hundreds of megabytes take 20 ms, and other threads on
    that processor may wait for part of this time. Threads that yield to others end last, and free the memory when no
    other thread needs the processor. There is one per processor, because each processor ends its own threads.
    """
    processors = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    for processor in processors[:LAST_THREADS_MAX]:
        threading.Thread(target=_end_last, args=(processor,), name=f"last-{processor}", daemon=True).start()


def _end_last(processor: int) -> None:
    with contextlib.suppress(OSError):  # the processor was taken away meanwhile
        os.sched_setaffinity(0, {processor})
        if request_background_slices():
            threading.Event().wait()
