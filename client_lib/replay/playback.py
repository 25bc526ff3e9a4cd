"""Plays history back: up to a time, and at the speed at which it was sent, or another. Pure.

Times are the source's: when it sent the newest source message of a packet. Channels are played together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from tandemfeed.client_lib.items import Batch, Item

SETTLED_NS = 1_000_000_000  # after the end, until what was sent before it has passed through the adapters


class Playback:
    """One subscription's.

    Args:
        until_ns: the time before which messages were sent; None: no end.
        speed: 1: as they were sent, 10: ten times as fast; 0: without waiting.

    Attributes:
        is_over: everything before the end was taken.
    """

    def __init__(self, until_ns: int | None, speed: float) -> None:
        self._until_ns, self._speed = until_ns, speed
        self._over_at_ns: int | None = None  # on the monotonic clock
        self._waiting: deque[Item] = deque()
        self._origin: tuple[int, int] | None = None  # sent, played: of the first batch
        self._channels_over: set[int] = set()
        self._has_all = False

    @property
    def is_over(self) -> bool:
        """Whether everything before the end was taken."""
        return self._has_all and not self._waiting

    def put(
        self, items: Iterable[Item], channel_ids: Collection[int], *, is_live: bool, unix_ns: int, now_ns: int
    ) -> None:
        """Add what was received.

        Args:
            channel_ids: all channels of the subscription.
            is_live: nothing is known to be missing, so more comes only if it is sent later.
            unix_ns: the wall clock, of which only the first one counts: later it may be set.
            now_ns: the monotonic clock.
        """
        for item in items:
            channel_id = getattr(item, "channel_id", None)
            if isinstance(item, Batch) and self._until_ns is not None and item.source_sent_at_ns >= self._until_ns:
                self._channels_over.add(item.channel_id)
            elif channel_id not in self._channels_over:
                self._waiting.append(item)
        if self._until_ns is not None:
            if self._over_at_ns is None:
                self._over_at_ns = now_ns + self._until_ns + SETTLED_NS - unix_ns
            is_past = is_live and now_ns >= self._over_at_ns
            self._has_all = is_past or self._channels_over >= set(channel_ids)

    def take(self, now_ns: int) -> list[Item]:
        """The items that are due."""
        due: list[Item] = []
        while self._waiting and self._due_at_ns(self._waiting[0], now_ns) <= now_ns:
            due.append(self._waiting.popleft())
        return due

    def next_due_ns(self, now_ns: int) -> int | None:
        """When the next item is due; None: none waits."""
        return self._due_at_ns(self._waiting[0], now_ns) if self._waiting else None

    def _due_at_ns(self, item: Item, now_ns: int) -> int:
        if not self._speed or not isinstance(item, Batch) or not item.source_sent_at_ns:
            return 0
        if self._origin is None:
            self._origin = item.source_sent_at_ns, now_ns
        sent_ns, played_ns = self._origin
        return played_ns + int((item.source_sent_at_ns - sent_ns) / self._speed)
