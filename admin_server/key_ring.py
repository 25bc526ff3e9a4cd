"""A feed's channel keys, and when the next one begins: each is announced before any adapter seals with it.

A key is made a while before the former expires, and begins later still: whoever is told meanwhile can open with it when
the first packet comes. Whoever seals changes over when it hears of the cluster behind that moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from admin_server.channel_keys import ChannelKey
from admin_server.lease_records import ClusterRecords
from tandemfeed.v1 import admin_pb2, common_pb2

SOURCE = 0  # in place of a channel_id, which begins at 1: the key that the feed's source seals with


class KeyRing:
    """The keys of a feed's channels, and of its source if that seals.

    `refresh` is for one thread at a time; the rest for any.

    Attributes:
        look_again_unix_ns: when `refresh` may find another picture.
    """

    def __init__(
        self, records: ClusterRecords, feed_id: int, channel_ids: Iterable[int], *, source_is_sealed: bool = True
    ) -> None:
        self._records, self._feed_id = records, feed_id
        self._channel_ids = (SOURCE, *channel_ids) if source_is_sealed else tuple(channel_ids)
        self._keys: dict[int, list[ChannelKey]] = {}
        self.look_again_unix_ns = 0
        self.refresh(time.time_ns())

    def keys(self, channel_ids: Iterable[int]) -> list[common_pb2.StreamKey]:
        """What readers of these channels get, in the order in which they begin."""
        return [key.stream_key() for channel_id in sorted(channel_ids) for key in self._keys[channel_id]]

    def decision_keys(self) -> list[admin_pb2.DecisionKey]:
        """What only the feed's adapters get: of every channel, in the same order."""
        channel_ids = sorted(self._keys.keys() - {SOURCE})
        return [key.adapters_half() for channel_id in channel_ids for key in self._keys[channel_id]]

    def source_keys(self) -> list[common_pb2.StreamKey]:
        """What the feed's source and its adapters get, in the order in which they begin; none if it does not seal."""
        return [key.stream_key() for key in self._keys.get(SOURCE, ())]

    def refresh(self, now_unix_ns: int) -> None:
        """Take the keys as they now are, made anew where that is due. Waits for the disk.

        Raises:
            RecordsUnavailable: the keys stay as they are; try again later.
        """
        keys = {channel_id: self._records.stream_keys(self._feed_id, channel_id) for channel_id in self._channel_ids}
        self._keys = keys
        times = [time_ns for each in keys.values() for time_ns in self._changes(each)]
        self.look_again_unix_ns = min(time_ns for time_ns in times if time_ns > now_unix_ns)

    def _changes(self, keys: list[ChannelKey]) -> Iterable[int]:
        for key in keys:
            yield key.not_before_unix_ns
            yield key.expires_unix_ns
        yield self._records.key_times.renew_at_ns(keys[-1].expires_unix_ns)
