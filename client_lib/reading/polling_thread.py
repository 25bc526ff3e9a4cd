"""A thread that polls a subscription for `async for`, and hands the items over to the event loop.

At most HANDED_OVER_COUNT_MAX results of `poll` wait there; then the thread waits too, and datagrams stay in the usual
receive queues.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Protocol

from tandemfeed.client_lib.items import Item
from tandemfeed.client_lib.reading.lag import LagPolicy
from tandemfeed.runtime.threads import start_thread

HANDED_OVER_COUNT_MAX = 64
LOOK_FOR_END_S = 1.0  # how often a thread that waits for its reader looks whether the subscription has ended


class PolledItems(Protocol):
    """What is polled for items. Does not refer to the `Readable`, so that threads do not keep it.

    Attributes:
        is_stopping: no more will come.
    """

    is_stopping: bool

    def poll(self, timeout_s: float | None) -> list[Item]:
        """Wait until there are items, the time-out (None: no limit) has passed, or no more will come."""

    def stop(self) -> None:
        """Make `poll` return."""


class Unopened(Protocol):
    """A subscription, before it is polled."""

    @property
    def lag_policy(self) -> LagPolicy:
        """What happens if the application is slow."""

    def open_items(self) -> PolledItems | None:
        """Open it, and return what is polled then; None: it was stopped before."""


class PollingThread:
    """Polls a subscription, and passes the results to the event loop that runs now.

    Once the subscription is open, it does not refer to it, so that an application can drop it.
    """

    def __init__(self, subscription: Unopened) -> None:
        self._handed_over: asyncio.Queue[list[Item] | BaseException | None] = asyncio.Queue()
        reads_ahead = subscription.lag_policy.reads_ahead  # then what waits must wait there
        self._room = threading.Semaphore(1 if reads_ahead else HANDED_OVER_COUNT_MAX)
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        unopened = [subscription]
        run, name = partial(self._run, unopened), "tandemfeed-subscription"
        self._thread = start_thread(run, name, lambda _, failure: self._hand_over(failure))

    async def take(self) -> list[Item] | None:
        """The next result of a poll; None at the end."""
        items = await self._handed_over.get()
        if isinstance(items, BaseException):
            self._handed_over.put_nowait(None)
            raise items
        if items is None:
            self._handed_over.put_nowait(None)
            return None
        self._room.release()
        return items

    def end(self) -> None:
        """The subscription is closed: do not wait for room."""
        self._is_closed = True
        self._room.release()

    async def wait_ended(self) -> None:
        """Wait until the thread has ended; `end` was called."""
        await asyncio.to_thread(self._thread.join)

    def _run(self, unopened: list[Unopened]) -> None:
        source = unopened.pop().open_items()
        while source is not None and not (source.is_stopping or self._is_closed):
            items = source.poll(None)
            self._wait_for_room(source)
            if not self._hand_over(items):  # the event loop is closed, so no coroutine reads
                source.stop()
        self._hand_over(None)

    def _wait_for_room(self, source: PolledItems) -> None:
        """Wait until the coroutine has taken enough, or the subscription has ended."""
        while not self._room.acquire(timeout=LOOK_FOR_END_S):
            if source.is_stopping:
                return

    def _hand_over(self, what: list[Item] | BaseException | None) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._handed_over.put_nowait, what)
        except RuntimeError:
            return False
        return True
