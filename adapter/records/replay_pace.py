"""How fast an adapter serves replays, so that clients that catch up leave its network to the live streams.

An administrator sets the limit; without one, replays are not slowed down. The clients share it and take turns, a chunk
each, however many replays each of them has open. A replay that waits says so by empty chunks: a client takes silence
for a dead adapter. Nothing is dropped, and a replay that its client ends while it waits costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from tandemfeed.adapter.records.fair_turns import FairTurns
from tandemfeed.feedcore.token_bucket import TokenBucket
from tandemfeed.transport.calls.serving.loop_thread import serving_loop

CHUNKS_PER_SECOND = 40  # at least, while one client is served: short turns let many share the limit evenly
CHUNK_SIZE_MAX = 1 << 20
ALIVE_AFTER_S = 0.4  # clients wait a second, if they cannot ask another adapter


class ReplayPace:
    """The limit of one adapter. Owner: the serving loop; other threads call `limit`, and read the attributes.

    Args:
        clock_ns: the monotonic clock.

    Attributes:
        bytes_per_s: the limit; 0: there is none.
        sent_byte_count: what replays have sent.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.bytes_per_s = self.sent_byte_count = 0
        self._clock_ns = clock_ns
        self._bucket: TokenBucket | None = None
        self._turns, self._changed = FairTurns(), asyncio.Event()

    @property
    def chunk_size(self) -> int:
        """How many bytes a chunk should have at most; one packet may have more."""
        return min(self.bytes_per_s // CHUNKS_PER_SECOND, CHUNK_SIZE_MAX) if self.bytes_per_s else CHUNK_SIZE_MAX

    def limit(self, bytes_per_s: int) -> None:
        """Spend at most this on replays from now on; 0: as much as there is. From any thread."""
        serving_loop().call_soon_threadsafe(self._limit, bytes_per_s)

    def _limit(self, bytes_per_s: int) -> None:
        if bytes_per_s == self.bytes_per_s:
            return
        self.bytes_per_s = bytes_per_s
        burst = bytes_per_s // CHUNKS_PER_SECOND
        self._bucket = TokenBucket(bytes_per_s, burst, self._clock_ns()) if bytes_per_s else None
        self._changed.set()

    async def turn(self, identity: str, size: int) -> AsyncGenerator[None, None]:
        """End when this identity may be sent so many bytes; until then, yield now and then."""
        self.sent_byte_count += size
        if self._bucket is None:
            return
        waiting = asyncio.create_task(self._wait(identity, size))
        try:
            while not (await asyncio.wait({waiting}, timeout=ALIVE_AFTER_S))[0]:
                yield
            waiting.result()
        finally:
            waiting.cancel()

    async def _wait(self, identity: str, size: int) -> None:
        async with self._turns.turn(identity):
            while (bucket := self._bucket) is not None:
                now_ns = self._clock_ns()
                if not (wait_ns := bucket.wait_ns(now_ns)):
                    bucket.spend(size, now_ns)
                    return
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_ns / 1e9):
                        await self._changed.wait()
