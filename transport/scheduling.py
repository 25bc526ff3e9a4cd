"""Settings of the interpreter's scheduler, the operating system's scheduler and the garbage collector, for processes
with short turns that must run without delay, and for work that must not delay them.

Since Linux 6.12, an ordinary thread may choose the length of its processor slices (sched_setattr(2), `sched_runtime`).
A thread with short slices is due sooner when it wakes up, so it interrupts a thread with longer ones. Otherwise it
waits some milliseconds, for the end of that slice or the next tick. Its share of the processor stays the same, and it
needs no privilege. This speeds up a takeover: while a core frees the memory of the killed active, half a dozen threads
must run, one after another, for some 100 microseconds each.

All other work runs in the background: with long slices, the policy SCHED_BATCH (it never interrupts another thread when
it wakes up) and a tenth of an ordinary share; a third, if a process cannot begin before it ends. Lowering a thread's
priority needs no privilege, but raising it again does, as does leaving SCHED_IDLE (sched(7)). So work that ends in the
background gets a thread of its own. A thread has the priority of the thread that starts it, so threads that are to stay
are started before (`started_pool`).
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Literal, TypeVar

from tandemfeed.runtime.threads import mark_unhealthy, start_thread

# After this time, the interpreter switches to a waiting thread. With its default of 5 ms, a call could delay an
# adapter's loop, or a grant of the admin server, for that long; their own turns are far shorter.
SWITCH_INTERVAL_S = 0.000_5
SLICE_NS = 100_000  # the shortest that Linux grants
LONG_SLICE_NS = 10_000_000  # a thread with a longer slice runs later
BACKGROUND_NICE = 10  # of an ordinary share, about a tenth remains
MODERATE_NICE = 5  # about a third: enough to keep up with a stream, even next to a process that is always busy
LAST_THREADS_MAX = 8  # with more processors, one is idle anyway
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # system call numbers; older C libraries have no wrapper
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # struct sched_attr: size, policy, flags, nice, priority, runtime, …
Result = TypeVar("Result")


def request_short_slices() -> bool:
    """Request short slices for the calling thread and for all threads and processes that it starts from now on.

    Call it first. A scheduling policy that was chosen for the process stays in force.

    Returns:
        False if this system or a sandbox refuses; the process is then slower on a busy machine, but correct.
    """
    return _policy() == "default" and _ask_for(os.SCHED_OTHER, _own_nice(), SLICE_NS)


def run_in_background(nice: int = BACKGROUND_NICE) -> bool:
    """Let the calling thread, and all threads and processes that it starts from now on, run after all ordinary ones,
    and give way to any that wakes up.

    They keep a tenth of an ordinary share, so that they end even on a busy machine. Call it once. In a process with a
    real-time policy, they leave it: what is not in the path of a message must not compete at a priority that no other
    program of the host has.

    Args:
        nice: added to the nice value; 0: they keep their whole share.

    Returns:
        False if this system or a sandbox refuses the policy or the slices; the nice value is then raised alone.
    """
    lowered = min(19, _own_nice() + nice)
    if _policy() in ("default", "real-time") and _ask_for(os.SCHED_BATCH, lowered, LONG_SLICE_NS):
        return True
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), lowered)  # on Linux, of this thread alone
    return False


def call_in_background(work: Callable[[], Result]) -> Result:
    """Do this work in a background thread, wait for it, and return its result. The calling thread keeps its priority.

    It has the larger share, because the caller waits for it. Threads that `work` starts stay in the background.
    """
    with ThreadPoolExecutor(1, "background", initializer=run_in_background, initargs=(MODERATE_NICE,)) as pool:
        return pool.submit(work).result()


def started_pool(thread_count: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads start now, with the calling thread's priority. Otherwise the first calls start them, with
    the priority of those who call."""
    pool = ThreadPoolExecutor(thread_count, name)
    together = threading.Barrier(thread_count + 1)  # a thread that had no more to do would be given the next call
    for _ in range(thread_count):
        pool.submit(together.wait)
    together.wait()
    return pool


def _policy() -> Literal["default", "real-time", "other"]:
    if sys.platform != "linux":
        return "other"
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    if policy == os.SCHED_OTHER:
        return "default"
    return "real-time" if policy in (os.SCHED_FIFO, os.SCHED_RR) else "other"


def _own_nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id() if sys.platform == "linux" else 0)


def _ask_for(policy: int, nice: int, slice_ns: int) -> bool:
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return False
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, nice, 0, slice_ns, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)


def tune_for_low_latency() -> None:
    """Call it when everything is set up. From then on, no turn of the process should wait long.

    When the process is killed, its memory is freed when no other thread needs the processor.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_objects()
    _start_threads_that_end_last()


def keep_objects() -> None:
    """Make the objects created so far permanent, so that garbage collections need not scan them again.

    They are mostly modules. A full collection of them would stop the process for 20 to 80 ms at some time in its first
    minute. Later objects are still scanned, so data kept by the ten thousand should be numbers and bytes, not objects
    that refer to others.
    """
    gc.collect()
    gc.freeze()


@cache
def _start_threads_that_end_last() -> None:
    """Start, once, threads whose only purpose is to end last when the process is killed.

    The last thread of a killed process to end frees the memory: hundreds of megabytes take 20 ms, and other threads on
    that processor may wait for part of this time. Threads that yield to any that wakes up end last, and free the memory
    in between. There is one per processor, because each processor ends its own threads. They keep an ordinary share:
    until they end, the process exists, with its sockets and locks, and next to a process that is always busy a tenth
    of a share would take six times as long.
    """
    processors = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    for processor in processors[:LAST_THREADS_MAX]:
        start_thread(partial(_end_last, processor), f"last-{processor}", mark_unhealthy)


def _end_last(processor: int) -> None:
    with contextlib.suppress(OSError):  # the processor was taken away meanwhile
        os.sched_setaffinity(0, {processor})
        if run_in_background(0):
            threading.Event().wait()
