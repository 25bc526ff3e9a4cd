"""What adapters exchange about one channel: its state at every sync interval, and answers to each other's requests.

An answer names its session; 0 is the receiver's current session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.position import MessageStreamState, Run


@dataclass(frozen=True, slots=True)
class ChannelSnapshot:
    """The conversion state of one channel at a position, from which another adapter can continue.

    Attributes:
        conversion_state: the converter's own bytes (`Converter.snapshot`).
        digests: of the conversion state, one per bucket; checked after restoring. Empty if not known.
    """

    channel_id: int
    position: MessageStreamState
    lineage: Lineage
    conversion_state: bytes
    digests: tuple[int, ...] = ()
    session: int = 0


@dataclass(frozen=True, slots=True)
class Buckets:
    """Some buckets of a channel's conversion state at a position.

    Attributes:
        data: the converter's own bytes (`Converter.snapshot_buckets`).
        digests: of the entire conversion state at that position, one per bucket.
    """

    position: MessageStreamState
    data: bytes
    digests: tuple[int, ...]
    session: int = 0


@dataclass(frozen=True, slots=True)
class RunsReply:
    """Consecutive decisions after a position, possibly none yet, in the history of the adapter that replies."""

    lineage: Lineage
    runs: tuple[Run, ...]
    session: int = 0


@dataclass(frozen=True, slots=True)
class RunsRefused:
    """The requested decisions are no longer available."""

    reason: str
    session: int = 0


Answer: TypeAlias = RunsReply | RunsRefused | ChannelSnapshot | Buckets


@dataclass(frozen=True, slots=True)
class DigestPoint:
    """Conversion-state digests, one per bucket of symbols, where `epoch` decided last and `input_seq` is next.

    Two digest points are comparable if both numbers are equal. Both are 0 if no digest was taken yet.
    """

    epoch: int = 0
    input_seq: int = 0
    digests: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """What an adapter reports about one channel at every sync interval. `available_source_seqs`: per source stream, one
    past the last message before the first gap, converted or not."""

    channel_id: int
    state: ReplicaState
    position: MessageStreamState
    lineage: Lineage = field(default_factory=Lineage)
    digest: DigestPoint = field(default_factory=DigestPoint)
    available_source_seqs: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PeerState:
    """Feed adapter state as one adapter reports it to the others at every sync interval.

    Attributes:
        report_id: counts the adapter's reports; with `incarnation` it orders them.
        heard_report_ids: adapter_id -> id of the newest report heard from that adapter.
        abstains: it is out of contact with the admin server and accepts no grant for a while (protocol clause 6.7).
        out_of_sync: it was repeatedly out of sync recently.
        health: its score, 0 (unfit) to 1.
        session: the adapter's current session; 0 if not reported.
        silences_ns: adapter_id -> for how long its multicast was not heard while it should have been (`HeardAdapters`).
    """

    adapter_id: int
    incarnation: int
    report_id: int
    channels: tuple[ChannelStatus, ...]
    heard_report_ids: dict[int, int] = field(default_factory=dict)
    abstains: bool = False
    out_of_sync: bool = False
    health: float = 1.0
    session: int = 0
    silences_ns: dict[int, int] = field(default_factory=dict)
