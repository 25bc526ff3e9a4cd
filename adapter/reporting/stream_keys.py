"""The keys that the admin server sends: which of them this adapter seals with, and which it opens with.

The server alone decides when a new key is used: it sends a key before that time, so that every reader has it, and again
at that time, marked as valid whatever the receiver's clock says. So no step of this host's clock lets an adapter seal
with a key that readers do not have yet, or go on sealing with one that was replaced because a reader lost its right.
"""

from __future__ import annotations

from tandemfeed.transport.sealing.opening import Opener
from tandemfeed.transport.sealing.sealing import Sealer
from tandemfeed.transport.sealing.source_sealing import SourceOpener
from tandemfeed.transport.sealing.start_keys import SealingKey
from tandemfeed.v1 import admin_pb2


class StreamKeys:
    """Owner: the loop's thread, and before the loop runs the thread that starts it."""

    def __init__(self, sealer: Sealer, opener: Opener, source_opener: SourceOpener) -> None:
        self._sealer, self._opener, self._source_opener = sealer, opener, source_opener

    def adopt(self, message: admin_pb2.RegisterReply | admin_pb2.ClusterChanged) -> None:
        """Use just the keys in this message from now on."""
        self._source_opener.use_keys({key.key_id: key.key for key in message.source_keys})
        self._source_opener.refuse_starts(message.ended_source_starts)
        halves = {(half.channel_id, half.key_id): half.key for half in message.decision_keys}
        chosen: dict[int, SealingKey] = {}
        for key in message.keys:  # oldest first
            sealing = SealingKey(key.key_id, key.channel_id, key.key, halves.get((key.channel_id, key.key_id), b""))
            self._opener.add_key(sealing)
            if not key.not_before_unix_ns or key.channel_id not in chosen:  # every reader has the oldest one
                chosen[key.channel_id] = sealing
        for sealing in chosen.values():
            self._sealer.use_key(sealing)
        for expired in self._opener.key_ids - {key.key_id for key in message.keys}:
            self._opener.remove_key(expired)
