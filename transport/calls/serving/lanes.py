"""A lane is the room reserved for one kind of caller: threads, and places for calls that are open.

A lane that is full never delays another one. Runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from tandemfeed.transport.calls.serving.call_context import CallContext

THREADS_PER_LANE = 8
OPEN_CALLS_MAX = 256  # with requests of at most 256 KiB, a lane's calls hold at most 64 MiB
REQUEST_TIMEOUT_S = 10.0  # a request comes with the call's headers; a busy host or a lost datagram may delay it


class Lane:
    """Room for one kind of caller. Attributes: threads: where its calls' work runs."""

    def __init__(self, name: str) -> None:
        self.threads = ThreadPoolExecutor(THREADS_PER_LANE, thread_name_prefix=name)
        self._open: set[CallContext] = set()
        self._arriving: dict[CallContext, None] = {}  # open calls without a request yet, the oldest first

    @property
    def is_full(self) -> bool:
        """Whether every place is taken."""
        return len(self._open) >= OPEN_CALLS_MAX

    @contextmanager
    def place_for(self, call: CallContext) -> Generator[None, None, None]:
        """Give a call a place. If there is none, the call that has waited longest for its request loses its place, so
        that silent callers cannot keep others out; if every request has arrived, this call is refused."""
        if self.is_full:
            silent = next(iter(self._arriving), None)
            if silent is None:
                call.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{OPEN_CALLS_MAX} calls are open; try again later")
            self._forget(silent)
            silent.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "the request did not arrive, and other calls need the place")
        self._open.add(call)
        try:
            yield
        finally:
            self._forget(call)

    @contextmanager
    def awaiting_request(self, call: CallContext) -> Generator[None, None, None]:
        """End the call if its request does not arrive in time."""
        self._arriving[call] = None
        text = f"the request did not arrive within {REQUEST_TIMEOUT_S:g} s"
        timer = asyncio.get_running_loop().call_later(
            REQUEST_TIMEOUT_S, call.end, grpc.StatusCode.DEADLINE_EXCEEDED, text
        )
        try:
            yield
        finally:
            timer.cancel()
            self._arriving.pop(call, None)

    def _forget(self, call: CallContext) -> None:
        self._open.discard(call)
        self._arriving.pop(call, None)
