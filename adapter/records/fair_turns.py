"""Turns that identities take: however many calls one of them has waiting, the others' turns come in between.

For work of which only so much may go on at a time, such as a search, or what a limit of bytes allows. A call that ends
while it waits costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tandemfeed.transport.calls.serving.limits import Turns


class FairTurns:
    """Owner: the serving loop.

    Args:
        count: turns at a time.
    """

    def __init__(self, count: int = 1) -> None:
        self._turns: Turns[asyncio.Future[None]] = Turns(count, 0)

    @asynccontextmanager
    async def turn(self, identity: str) -> AsyncIterator[None]:
        """Wait for a turn of this identity; it lasts as long as the block."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.add(identity, mine)
        self._give()
        try:
            await mine
            yield
        finally:
            if mine.cancelled():
                self._give()  # it is passed over when its turn comes
            else:
                self._turns.end(identity)
                self._give()

    def _give(self) -> None:
        while (due := self._turns.take()) is not None:
            identity, waiting = due
            if waiting.cancelled():
                self._turns.end(identity)
            else:
                waiting.set_result(None)
