"""How fast an adapter serves replays, so that clients that catch up leave its network to the live streams.

An administrator sets the limit; without one, replays are not slowed down. The replays of all clients share it and take
turns, a chunk each. A replay that waits says so by empty chunks: a client takes silence for a dead adapter. Nothing is
dropped, and a replay that its client ends while it waits costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress

from tandemfeed.feedcore.token_bucket import TokenBucket
from tandemfeed.transport.calls.serving.loop_thread import serving_loop

CHUNKS_PER_SECOND = 40  # at least, while one client is served: short turns let many share the limit evenly
CHUNK_SIZE_MAX = 1 << 20
ALIVE_AFTER_S = 0.4  # clients wait a second, if they cannot ask another adapter


class ReplayPace:
    """The limit of one adapter. `limit` may be called from any thread, the rest on the serving loop.

    Attributes:
        bytes_per_s: the limit; 0: there is none.
        sent_byte_count: what replays have sent.
    """

    def __init__(self) -> None:
        self.bytes_per_s = self.sent_byte_count = 0
        self._bucket: TokenBucket | None = None
        self._turn, self._changed = asyncio.Lock(), asyncio.Event()

    @property
    def chunk_size(self) -> int:
        """How many bytes a chunk should have at most; one packet may have more."""
        return min(self.bytes_per_s // CHUNKS_PER_SECOND, CHUNK_SIZE_MAX) if self.bytes_per_s else CHUNK_SIZE_MAX

    def limit(self, bytes_per_s: int) -> None:
        """Spend at most this on replays from now on; 0: as much as there is."""
        if bytes_per_s == self.bytes_per_s:
            return
        self.bytes_per_s = bytes_per_s
        burst = bytes_per_s // CHUNKS_PER_SECOND
        self._bucket = TokenBucket(bytes_per_s, burst, time.monotonic_ns()) if bytes_per_s else None
        serving_loop().call_soon_threadsafe(self._changed.set)

    async def turn(self, size: int) -> AsyncGenerator[None, None]:
        """End when this many bytes may be sent; until then, yield now and then."""
        self.sent_byte_count += size
        if self._bucket is None:
            return
        waiting = asyncio.create_task(self._wait(size))
        try:
            while not (await asyncio.wait({waiting}, timeout=ALIVE_AFTER_S))[0]:
                yield
            waiting.result()
        finally:
            waiting.cancel()

    async def _wait(self, size: int) -> None:
        async with self._turn:  # which is given in the order of asking
            while (bucket := self._bucket) is not None:
                now_ns = time.monotonic_ns()
                if not (wait_ns := bucket.wait_ns(now_ns)):
                    bucket.spend(size, now_ns)
                    return
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_ns / 1e9):
                        await self._changed.wait()
