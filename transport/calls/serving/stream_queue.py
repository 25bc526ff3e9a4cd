"""A queue from any thread to one stream."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

Item = TypeVar("Item")


class StreamQueue(queue.SimpleQueue[Item | None]):
    """Items for a stream; None ends it. Any thread may put; one stream drains. The owner bounds what it puts."""

    def __init__(self) -> None:
        self._wake: Callable[[], object] = lambda: None

    def put(self, item: Item | None, block: bool = True, timeout: float | None = None) -> None:
        """Add an item, and wake the stream. Never blocks."""
        super().put(item)
        self._wake()

    async def drain(self) -> AsyncGenerator[Item, None]:
        """Yield what is put, until None."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(arrived.set)
        while True:
            arrived.clear()  # before looking: what is put afterwards sets it again
            while not self.empty():
                item = self.get_nowait()
                if item is None:
                    return
                yield item
            await arrived.wait()
