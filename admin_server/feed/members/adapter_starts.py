"""Which starts of a feed's adapters are announced, with the packet counter of each. Pure.

A start is announced until the adapter's next start registers, and for a short time after that, because its last packets
may still be in flight. Each adapter reports its counters over its own connection; a new receiver refuses every packet
with a lower counter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tandemfeed.admin_server.feed.keys.key_times import SECOND
from tandemfeed.v1 import admin_pb2, common_pb2

FORMER_START_NS = 10 * SECOND  # far longer than a datagram is in flight
FIRST_COUNTER = 1


class AdapterStarts:
    """The starts of one feed. Not safe for several threads at once.

    Args:
        starts: adapter_id -> its recorded starts, the newest last. Former ones count as if their successors had begun
            now: the clock may have been set since.
        channel_ids: the feed's channels.
    """

    def __init__(
        self, starts: Mapping[int, Sequence[common_pb2.AdapterStart]], channel_ids: Iterable[int], now_ns: int
    ) -> None:
        self._channel_ids = tuple(channel_ids)
        self._starts = {adapter_id: list(each) for adapter_id, each in starts.items()}
        self._former_until_ns = dict.fromkeys(self._starts, now_ns + FORMER_START_NS)

    def resumable(self, adapter_id: int, request: admin_pb2.RegisterRequest) -> common_pb2.AdapterStart | None:
        """The newest start, if the request resumes it after the server or the connection was lost; otherwise None.

        Incarnation, salt and public key must all match, because after a restore from a backup one incarnation may
        belong to two starts.
        """
        newest = self._newest(adapter_id)
        if newest is None:
            return None
        asked = (request.resume_incarnation, request.resume_salt, request.public_key)
        return newest if asked == (newest.incarnation, newest.salt, newest.public_key) else None

    def contradicts(self, request: admin_pb2.RegisterRequest) -> bool:
        """Whether the request resumes an incarnation that a different start is known to have."""
        return any(
            start.incarnation == request.resume_incarnation and start.salt != request.resume_salt
            for starts in self._starts.values()
            for start in starts
        )

    def begin(self, adapter_id: int, start: common_pb2.AdapterStart, now_ns: int) -> None:
        """A new start registered; it has not sent anything."""
        for channel_id in self._channel_ids:
            start.next_packet_counters[channel_id] = FIRST_COUNTER
        former = self._newest(adapter_id)
        self._starts[adapter_id] = [start] if former is None else [former, start]
        self._former_until_ns[adapter_id] = now_ns + FORMER_START_NS

    def note_counters(self, adapter_id: int, incarnation: int, next_counters: Mapping[int, int]) -> None:
        """A start reported its packet counters."""
        newest = self._newest(adapter_id)
        if newest is not None and newest.incarnation == incarnation:
            for channel_id, counter in next_counters.items():
                known = newest.next_packet_counters.get(channel_id, 0)
                if counter > known and channel_id in self._channel_ids:
                    newest.next_packet_counters[channel_id] = counter

    def announced(self, adapter_id: int, now_ns: int) -> list[common_pb2.AdapterStart]:
        """The starts of an adapter that are valid now, the newest last."""
        self._forget_former(adapter_id, now_ns)
        return list(self._starts.get(adapter_id, ()))

    def withdraw(self, now_ns: int) -> bool:
        """Withdraw the former starts whose time is over; True if there was one."""
        return sum(self._forget_former(adapter_id, now_ns) for adapter_id in self._starts) > 0

    def next_deadline_ns(self) -> int | None:
        """When `withdraw` will next find a start."""
        ends = (self._former_until_ns[adapter_id] for adapter_id, each in self._starts.items() if len(each) > 1)
        return min(ends, default=None)

    def _newest(self, adapter_id: int) -> common_pb2.AdapterStart | None:
        known = self._starts.get(adapter_id)
        return known[-1] if known else None

    def _forget_former(self, adapter_id: int, now_ns: int) -> bool:
        known = self._starts.get(adapter_id, [])
        if len(known) < 2 or now_ns < self._former_until_ns[adapter_id]:
            return False
        del known[:-1]
        return True
