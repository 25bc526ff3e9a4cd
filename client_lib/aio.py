"""The asyncio interface: `async for item in AsyncSubscription(subscription)`.

A thread runs the subscription's loop and passes the result of each poll to the event loop. At most
HANDED_OVER_COUNT_MAX results wait there; then the thread waits too, and datagrams stay in the usual receive queues.
This object owns the subscription: no other code may poll it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

from tandemfeed.client_lib.items import Item
from tandemfeed.client_lib.stream.subscription import Subscription

HANDED_OVER_COUNT_MAX = 64


class AsyncSubscription:
    """A subscription read from a coroutine.

    Args:
        subscription: from `Client.subscribe`. That call blocks for one round trip; if this matters, call it with
            `asyncio.to_thread`.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._handed_over: asyncio.Queue[list[Item] | BaseException | None] = asyncio.Queue()
        self._room = threading.Semaphore(HANDED_OVER_COUNT_MAX)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="tandemfeed-subscription", daemon=True)
        self._thread.start()

    async def __aiter__(self) -> AsyncIterator[Item]:
        while (items := await self._handed_over.get()) is not None:
            if isinstance(items, BaseException):
                raise items
            self._room.release()
            for item in items:
                yield item

    async def __aenter__(self) -> AsyncSubscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def modify(self, add: Sequence[str] = (), remove: Sequence[str] = (), *, timeout_s: float = 10.0) -> None:
        """Add and remove topics, as `Subscription.modify` does."""
        await asyncio.to_thread(self._subscription.modify, add, remove, timeout_s=timeout_s)

    async def cancel(self) -> None:
        """End the subscription at the administration server, and close it."""
        await self.close()

    async def close(self) -> None:
        """Close the subscription and end the thread."""
        self._subscription.stop()
        self._room.release()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        last: BaseException | None = None
        try:
            with self._subscription:
                while not self._subscription.is_closed:
                    items = self._subscription.poll()
                    self._room.acquire()
                    self._hand_over(items)
        except BaseException as error:  # noqa: BLE001  the coroutine that reads raises it
            last = error
        self._hand_over(last)

    def _hand_over(self, what: list[Item] | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._handed_over.put_nowait, what)
        except RuntimeError:  # the event loop is closed, so no coroutine reads
            self._subscription.stop()
