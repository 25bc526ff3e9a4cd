"""Which starts of which adapters may be believed: what the admin server announces of each.

A start is one life of an adapter under one incarnation. The server announces its incarnation, a random salt made for
it alone, and the public half of the Ed25519 key that the adapter made when it started. Receivers believe packets of
announced starts only, so no holder of a channel's key can invent one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tandemfeed.v1 import common_pb2

SALT_SIZE = 32
PUBLIC_KEY_SIZE = 32


@dataclass(frozen=True, slots=True)
class AnnouncedStart:
    """One start of one adapter.

    Attributes:
        salt: 32 random bytes that the admin server made for this start.
        public_key: Ed25519, raw; verifies the start's signatures.
        next_counters: channel_id -> a packet counter that the start had not used when it last reported. A receiver
            that has heard nothing of the start yet believes nothing below it: that is how a fresh receiver knows an
            old packet from a live one. A channel that is missing: not reported yet, nothing of it is believed.
    """

    adapter_id: int
    incarnation: int
    salt: bytes = field(repr=False)
    public_key: bytes = field(repr=False)
    next_counters: Mapping[int, int] = field(default_factory=dict, compare=False)

    @property
    def identity(self) -> tuple[int, int]:
        """(adapter_id, incarnation): what a packet's header says."""
        return self.adapter_id, self.incarnation


def announced_starts(adapters: Iterable[common_pb2.AdapterDescription]) -> list[AnnouncedStart]:
    """The starts in the admin server's descriptions; one that cannot be used is left out, so nothing of it is
    believed."""
    return [
        AnnouncedStart(
            adapter.adapter_id, start.incarnation, start.salt, start.public_key, dict(start.next_packet_counters)
        )
        for adapter in adapters
        for start in adapter.starts
        if len(start.salt) == SALT_SIZE and len(start.public_key) == PUBLIC_KEY_SIZE
    ]
