"""A lane is the room reserved for one kind of caller: threads, and places for calls that are open.

A lane that is full never delays another one. Within a lane, each identity has a share (`limits`). Runs on the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from contextlib import contextmanager

import grpc

from tandemfeed.transport.calls.serving.call_context import CallContext
from tandemfeed.transport.calls.serving.fair_threads import FairThreads
from tandemfeed.transport.calls.serving.limits import REFUSAL_PAUSE_NS, CallLimits, Refusal, Share

THREADS_PER_LANE = 8
SPARE_THREADS = 8  # for identities that would otherwise wait for the work of others
OPEN_CALLS_MAX = 256  # with requests of at most 256 KiB, a lane's calls hold at most 64 MiB
REQUEST_TIMEOUT_S = 10.0  # a request comes with the call's headers; a busy host or a lost datagram may delay it
SHARES_KEPT = 1_024  # beyond that, those that are not used are forgotten


class NoRoom(Exception):
    """A call is refused, because its identity takes too much, or the lane is full."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class Lane:
    """Room for one kind of caller.

    Args:
        name: of its threads.
        limits: of each identity.
        now_ns: the monotonic clock.
    """

    def __init__(self, name: str, limits: CallLimits, *, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._limits, self._now_ns = limits, now_ns
        self._threads = FairThreads(name, THREADS_PER_LANE, SPARE_THREADS)
        self._shares: dict[str, Share] = {}
        self._open: set[CallContext] = set()
        self._arriving: dict[CallContext, None] = {}  # open calls without a request yet, the oldest first

    @property
    def is_full(self) -> bool:
        """Whether every place is taken."""
        return len(self._open) >= OPEN_CALLS_MAX

    def threads_of(self, call: CallContext) -> Executor:
        """Where a call's work runs."""
        return self._threads.of(_owner_of(call))

    async def turn(self, call: CallContext, *, is_patient: bool = False) -> None:
        """Count a call, or a request within a call, and wait until its identity's rate allows it.

        Args:
            is_patient: wait however long it takes: for a request within a call, which is not read meanwhile.

        Raises:
            NoRoom: that would take too long.
        """
        share = self._share_of(call)
        while isinstance(wait := share.turn(self._now_ns()), Refusal):
            if not is_patient:
                raise NoRoom(wait)
            await self._hold(share, REFUSAL_PAUSE_NS)
        if wait > 0:
            await self._hold(share, wait)

    async def pause(self, call: CallContext, refusal: Refusal) -> None:
        """Wait before a refusal."""
        await self._hold(self._share_of(call), refusal.pause_ns)

    @contextmanager
    def place_for(self, call: CallContext) -> Generator[None, None, None]:
        """Give a call a place. If there is none, the call that has waited longest for its request loses its place, so
        that silent callers cannot keep others out; if every request has arrived, this call is refused.

        Raises:
            NoRoom
        """
        share, owner = self._share_of(call), _owner_of(call)
        if self.is_full:
            self._end_silent(next(iter(self._arriving), None))
        if share.has_all_places:
            self._end_silent(next((each for each in self._arriving if _owner_of(each) == owner), None))
        if (refusal := share.place(len(self._open), OPEN_CALLS_MAX)) is not None:
            raise NoRoom(refusal)
        self._open.add(call)
        share.open_count += 1
        try:
            yield
        finally:
            self._forget(call)

    @contextmanager
    def stream_of(self, call: CallContext) -> Generator[None, None, None]:
        """Count an open stream.

        Raises:
            NoRoom: its identity has too many.
        """
        share = self._share_of(call)
        if (refusal := share.stream()) is not None:
            raise NoRoom(refusal)
        share.stream_count += 1
        try:
            yield
        finally:
            share.stream_count -= 1

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

    def shutdown(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def _share_of(self, call: CallContext) -> Share:
        owner = _owner_of(call)
        share = self._shares.get(owner)
        if share is None:
            now_ns = self._now_ns()
            if len(self._shares) >= SHARES_KEPT:
                self._shares = {name: each for name, each in self._shares.items() if not each.is_idle(now_ns)}
            share = self._shares[owner] = Share(owner, self._limits, now_ns)
        return share

    def _end_silent(self, call: CallContext | None) -> None:
        if call is not None:
            self._forget(call)
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "the request did not arrive, and other calls need the place")

    async def _hold(self, share: Share, duration_ns: int) -> None:
        share.held_count += 1
        try:
            await asyncio.sleep(duration_ns / 1e9)
        finally:
            share.held_count -= 1

    def _forget(self, call: CallContext) -> None:
        self._arriving.pop(call, None)
        if call in self._open:
            self._open.remove(call)
            self._share_of(call).open_count -= 1


def _owner_of(call: CallContext) -> str:
    return "" if call.caller is None else call.caller.identity
