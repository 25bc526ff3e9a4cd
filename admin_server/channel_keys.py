"""Channel keys and starts of adapters as the admin server makes them: all of it at random, so nothing comes twice."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from tandemfeed.v1 import admin_pb2, common_pb2
from transport.announced_starts import SALT_SIZE
from transport.start_keys import KEY_SIZE

KEY_ID_END = 1 << 32


@dataclass(frozen=True, slots=True)
class ChannelKey:
    """A channel's key in its two halves.

    Attributes:
        key: for readers and adapters.
        decision_key: for adapters of the feed alone.
    """

    key_id: int
    channel_id: int
    key: bytes = field(repr=False)
    decision_key: bytes = field(repr=False)
    not_before_unix_ns: int
    expires_unix_ns: int

    def stream_key(self) -> common_pb2.StreamKey:
        """The half that readers get, too."""
        return common_pb2.StreamKey(
            key_id=self.key_id,
            channel_id=self.channel_id,
            key=self.key,
            not_before_unix_ns=self.not_before_unix_ns,
            expires_unix_ns=self.expires_unix_ns,
        )

    def adapters_half(self) -> admin_pb2.DecisionKey:
        """The half that only adapters get."""
        return admin_pb2.DecisionKey(key_id=self.key_id, channel_id=self.channel_id, key=self.decision_key)


def new_channel_key(channel_id: int, begins_unix_ns: int, ends_unix_ns: int, taken_ids: Collection[int]) -> ChannelKey:
    """A key with a random number that is not 0 and not taken."""
    key_id = 0
    while key_id == 0 or key_id in taken_ids:
        key_id = secrets.randbelow(KEY_ID_END)
    key, decision_key = secrets.token_bytes(KEY_SIZE), secrets.token_bytes(KEY_SIZE)
    return ChannelKey(key_id, channel_id, key, decision_key, begins_unix_ns, ends_unix_ns)


def new_start(public_key: bytes, incarnation: int = 0) -> common_pb2.AdapterStart:
    """A start that begins now, with a fresh salt; its incarnation is the records' to give."""
    return common_pb2.AdapterStart(
        incarnation=incarnation,
        salt=secrets.token_bytes(SALT_SIZE),
        public_key=public_key,
        since_unix_ns=time.time_ns(),
    )
