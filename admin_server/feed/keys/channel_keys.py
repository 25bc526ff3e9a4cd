"""How the admin server creates channel keys and starts of adapters: at random, so that no key or salt repeats."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from tandemfeed.transport.sealing.announced_starts import SALT_SIZE
from tandemfeed.transport.sealing.start_keys import KEY_SIZE
from tandemfeed.v1 import admin_pb2, common_pb2

KEY_ID_END = 1 << 32


@dataclass(frozen=True, slots=True)
class ChannelKey:
    """A channel's key, in two halves.

    Attributes:
        key: for readers and adapters.
        decision_key: only for adapters of the feed.
    """

    key_id: int
    channel_id: int
    key: bytes = field(repr=False)
    decision_key: bytes = field(repr=False)
    not_before_unix_ns: int
    expires_unix_ns: int

    def stream_key(self, *, has_begun: bool) -> common_pb2.StreamKey:
        """The half for readers and adapters, as sent on the wire.

        A key that has become valid at this server is sent as always valid, so that adapters use it from this message
        on, even if their clocks are late.
        """
        return common_pb2.StreamKey(
            key_id=self.key_id,
            channel_id=self.channel_id,
            key=self.key,
            not_before_unix_ns=0 if has_begun else self.not_before_unix_ns,
            expires_unix_ns=self.expires_unix_ns,
        )

    def wire_decision_key(self) -> admin_pb2.DecisionKey:
        """The half for adapters only, as sent on the wire."""
        return admin_pb2.DecisionKey(key_id=self.key_id, channel_id=self.channel_id, key=self.decision_key)


def new_channel_key(channel_id: int, begins_unix_ns: int, ends_unix_ns: int, taken_ids: Collection[int]) -> ChannelKey:
    """A new key; its id is random, not 0 and not in use."""
    key_id = 0
    while key_id == 0 or key_id in taken_ids:
        key_id = secrets.randbelow(KEY_ID_END)
    key, decision_key = secrets.token_bytes(KEY_SIZE), secrets.token_bytes(KEY_SIZE)
    return ChannelKey(key_id, channel_id, key, decision_key, begins_unix_ns, ends_unix_ns)


def new_start(public_key: bytes, incarnation: int = 0) -> common_pb2.AdapterStart:
    """A start that begins now, with a random salt; the records assign its incarnation."""
    return common_pb2.AdapterStart(
        incarnation=incarnation,
        salt=secrets.token_bytes(SALT_SIZE),
        public_key=public_key,
        since_unix_ns=time.time_ns(),  # for people: whether a start counts does not depend on it
    )
