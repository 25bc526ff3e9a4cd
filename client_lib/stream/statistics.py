"""The statistics of a subscription, for views and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandemfeed.client_lib.reading.lag import NO_LAG, Lag
from tandemfeed.feedcore.wire.lineage import EpochStart


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """One channel's position in the stream.

    Attributes:
        next_input_seq, next_message_seq: None until the start position is known.
        session: the session that is delivered; all sequence numbers belong to it.
        filtered: messages that were not delivered, because their symbols are not granted or their fields not wanted.
        epoch_starts: where the newest epochs of the present history begin.
        distrusted: (adapter_id, incarnation) of the starts that may be impersonated; see `Distrusted`.
    """

    topic: str
    epoch: int
    next_input_seq: int | None
    next_message_seq: int | None
    next_source_seqs: Mapping[int, int]
    distrusted: tuple[tuple[int, int], ...] = ()
    session: int = 0
    filtered: int = 0
    epoch_starts: tuple[EpochStart, ...] = ()


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """A snapshot of a subscription's counters.

    Attributes:
        datagrams: the number received by multicast and unicast, including refused ones.
        counts: the counters that are not zero, by `feedcore.counters.Counter` name.
        refusals: the numbers of refused packets that are not zero, by reason.
        groups: the joined multicast groups.
        unicast_endpoints: adapter_id -> the address of the unicast connection to it.
        lag: how far the application is behind.
    """

    datagrams: int
    replayed_packets: int
    counts: Mapping[str, int]
    refusals: Mapping[str, int]
    channels: Mapping[int, ChannelStatistics]
    groups: tuple[str, ...]
    active_adapter_id: int
    unicast_endpoints: Mapping[int, str]
    lag: Lag = NO_LAG
