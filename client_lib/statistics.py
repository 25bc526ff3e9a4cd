"""What a subscription reports of itself, for views and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """One channel's place in the stream.

    Attributes:
        next_input_seq, next_message_seq: None until it is known where to begin.
        session: the session that is delivered; all numbers are of it.
        distrusted: (adapter_id, incarnation) of the starts that another reader impersonates; see `Distrusted`.
    """

    topic: str
    epoch: int
    next_input_seq: int | None
    next_message_seq: int | None
    next_source_seqs: Mapping[int, int]
    distrusted: tuple[tuple[int, int], ...] = ()
    session: int = 0


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """A snapshot of a subscription's counters.

    Attributes:
        datagrams: received by multicast, also those refused.
        counts: by `feedcore.counters.Counter` name, those that are not zero.
        refusals: refused packets by reason, those that are not zero.
        groups: the multicast groups joined.
    """

    datagrams: int
    replayed_packets: int
    counts: Mapping[str, int]
    refusals: Mapping[str, int]
    channels: Mapping[int, ChannelStatistics]
    groups: tuple[str, ...]
    active_adapter_id: int
