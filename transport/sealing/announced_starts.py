"""The adapter starts that receivers may believe: what the admin server announces about each.

A start is one run of an adapter process under one incarnation. The server announces the incarnation, a random salt for
this start only, and the public half of the Ed25519 key that the adapter generated when it started. Receivers believe
only packets of announced starts, so a holder of a channel's key cannot invent a start.
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
        salt: 32 random bytes that the admin server generated for this start.
        public_key: Ed25519, raw; verifies the start's signatures.
        next_counters: channel_id -> a packet counter that the start had not used when it last reported. A receiver
            that has not heard the start before believes no lower counter: so it can tell old packets from live ones.
            A missing channel is not reported yet, and none of its packets is believed.
    """

    adapter_id: int
    incarnation: int
    salt: bytes = field(repr=False)
    public_key: bytes = field(repr=False)
    next_counters: Mapping[int, int] = field(default_factory=dict, compare=False)

    @property
    def identity(self) -> tuple[int, int]:
        """(adapter_id, incarnation), as in a packet's header."""
        return self.adapter_id, self.incarnation


def announced_starts(adapters: Iterable[common_pb2.AdapterDescription]) -> list[AnnouncedStart]:
    """The starts in the admin server's descriptions. Unusable starts are left out, so their packets are not
    believed."""
    return [
        AnnouncedStart(
            adapter.adapter_id, start.incarnation, start.salt, start.public_key, dict(start.next_packet_counters)
        )
        for adapter in adapters
        for start in adapter.starts
        if len(start.salt) == SALT_SIZE and len(start.public_key) == PUBLIC_KEY_SIZE
    ]
