"""A feed's channel keys, and when each becomes valid: a key is announced before any adapter seals with it.

A key is created some time before its predecessor expires, and becomes valid later still, so that readers have it before
the first packet sealed with it. A sender switches keys at the first cluster update after the new key becomes valid.

Expiry follows the wall clock, because readers and adapters compare it with theirs. When a key becomes valid, this
server decides by its monotonic clock, so that a step of the wall clock leaves no time without a valid key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from tandemfeed.admin_server.feed.keys.channel_keys import ChannelKey
from tandemfeed.admin_server.records.lease_records import ClusterRecords
from tandemfeed.v1 import admin_pb2, common_pb2

SOURCE = 0  # used as the channel_id of the key that the feed's source seals with; channel_ids begin at 1


class KeyRing:
    """The keys of a feed's channels, and of its source if it seals its packets.

    Owner: a lock that is held while keys are changed in the records. What others read is replaced as a whole, so
    reading waits for nothing. Safe to call from any thread.

    Attributes:
        channel_ids: of the keys; SOURCE is that of the source's.
    """

    def __init__(
        self,
        records: ClusterRecords,
        feed_id: int,
        channel_ids: Iterable[int],
        *,
        source_is_sealed: bool = True,
        now_unix_ns: Callable[[], int] = time.time_ns,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._records, self._feed_id = records, feed_id
        self._now_unix_ns, self._now_ns = now_unix_ns, now_ns
        self.channel_ids = (SOURCE, *channel_ids) if source_is_sealed else tuple(channel_ids)
        self._keys: dict[int, list[ChannelKey]] = {}
        self._begins_at_ns: dict[int, int] = {}  # by key id, by the monotonic clock
        self._changing = threading.Lock()
        self._to_replace: dict[int, int] = {}  # channel_id -> how soon the new key becomes valid
        self._next_begins_at_ns: int | None = None
        self._next_change_unix_ns = 0
        self.refresh()

    def keys(self, channel_ids: Iterable[int]) -> list[common_pb2.StreamKey]:
        """The keys for readers of these channels, ordered by the start of their validity."""
        return [self._stream_key(key) for channel_id in sorted(channel_ids) for key in self._keys[channel_id]]

    def decision_keys(self) -> list[admin_pb2.DecisionKey]:
        """The decision keys of every channel, for the feed's adapters only, in the same order."""
        channel_ids = sorted(self._keys.keys() - {SOURCE})
        return [key.wire_decision_key() for channel_id in channel_ids for key in self._keys[channel_id]]

    def source_keys(self) -> list[common_pb2.StreamKey]:
        """The keys for the feed's source and its adapters, in the same order; none if the source does not seal."""
        return [self._stream_key(key) for key in self._keys.get(SOURCE, ())]

    def listed(self) -> list[tuple[ChannelKey, int]]:
        """Every key, with the time at which its successor is made; 0 if it has one."""
        times = self._records.key_times
        return [
            (key, times.renew_at_ns(key.expires_unix_ns) if key is keys[-1] else 0)
            for _, keys in sorted(self._keys.items())
            for key in keys
        ]

    def pause_ns(self) -> int:
        """How long until `refresh` may change something; 0 or less: it may now."""
        pause_ns = self._next_change_unix_ns - self._now_unix_ns()
        return pause_ns if self._next_begins_at_ns is None else min(pause_ns, self._next_begins_at_ns - self._now_ns())

    def refresh(self) -> None:
        """Load the present keys, creating those that are due. Waits for the disk.

        Raises:
            RecordsUnavailable: not everything is done; try again later.
        """
        with self._changing:
            self._refresh()

    def replace(self, channel_ids: Iterable[int]) -> None:
        """Replace the keys of channels that a reader lost the right to. Waits for the disk.

        Raises:
            RecordsUnavailable: the next `refresh` does it, and is due immediately.
        """
        self._replace(channel_ids, self._records.key_times.rotation_lead_ns)

    def replace_all(self) -> None:
        """Replace every key, also that of the source, because it may be in wrong hands. Behaves like `replace`."""
        self._replace(self.channel_ids, self._records.key_times.distrust_lead_ns)

    def _replace(self, channel_ids: Iterable[int], lead_ns: int) -> None:
        with self._changing:
            self._to_replace.update(dict.fromkeys(channel_ids, lead_ns))
            self._next_change_unix_ns = 0
            self._refresh()

    def _refresh(self) -> None:
        for channel_id in sorted(self._to_replace):
            self._records.replace_stream_key(self._feed_id, channel_id, self._to_replace[channel_id])
            del self._to_replace[channel_id]
        keys = {channel_id: self._records.stream_keys(self._feed_id, channel_id) for channel_id in self.channel_ids}
        now_unix_ns, now_ns = self._now_unix_ns(), self._now_ns()
        begins_in_ns, known = self._records.key_times.begins_in_ns, self._begins_at_ns
        begins_at_ns = {
            key.key_id: known.get(key.key_id, now_ns + begins_in_ns(key.not_before_unix_ns, now_unix_ns))
            for each in keys.values()
            for key in each
        }
        self._begins_at_ns = begins_at_ns  # before the keys, which are looked up there
        self._keys = keys
        times = [time_ns for each in keys.values() for time_ns in self._changes(each)]
        self._next_change_unix_ns = min(time_ns for time_ns in times if time_ns > now_unix_ns)
        self._next_begins_at_ns = min((at_ns for at_ns in begins_at_ns.values() if at_ns > now_ns), default=None)

    def _changes(self, keys: list[ChannelKey]) -> Iterable[int]:
        """When keys expire, and when the next one is due, by the wall clock."""
        for key in keys:
            yield key.expires_unix_ns
        yield self._records.key_times.renew_at_ns(keys[-1].expires_unix_ns)

    def _stream_key(self, key: ChannelKey) -> common_pb2.StreamKey:
        return key.stream_key(has_begun=self._begins_at_ns.get(key.key_id, 0) <= self._now_ns())
