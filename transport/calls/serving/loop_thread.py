"""The event loop of all gRPC servers of this process, in a thread of its own. Nothing that waits may run on it."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tandemfeed.runtime.threads import end_process, start_thread

Result = TypeVar("Result")
END_TIMEOUT_S = 5.0
_LOCK = threading.Lock()
_LOOPS: list[asyncio.AbstractEventLoop] = []  # at most one: grpc.aio has one completion queue for a process's loops


def run_on_loop(coroutine: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
    """Run a coroutine on the servers' loop, and wait for its result. Not for the loop's own thread.

    Raises:
        TimeoutError: it did not end in time; it is cancelled.
    """
    running = asyncio.run_coroutine_threadsafe(coroutine, serving_loop())
    try:
        return running.result(timeout_s)
    except TimeoutError:
        running.cancel()
        raise


def serving_loop() -> asyncio.AbstractEventLoop:
    """The loop, which runs until the process ends."""
    with _LOCK:
        if not _LOOPS:
            loop = asyncio.new_event_loop()
            thread = start_thread(loop.run_forever, "calls", end_process)
            atexit.register(_end, loop, thread)
            _LOOPS.append(loop)
        return _LOOPS[0]


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Stop the thread before the interpreter's last steps, in which it could no longer run Python code."""
    loop.call_soon_threadsafe(loop.stop)
    thread.join(END_TIMEOUT_S)
