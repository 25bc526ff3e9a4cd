"""What adapters exchange about one channel: its state at every sync interval, and answers to continue from.

An answer belongs to a session; 0: to the one that its receiver is in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tandemfeed.feedcore.replica.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.position import MessageStreamState, Run


@dataclass(frozen=True, slots=True)
class ChannelSnapshot:
    """Conversion state of one channel at a position, enough for another adapter to continue from there.

    Attributes:
        conversion_state: the converter's own bytes (`Converter.snapshot`).
        digests: of the conversion state, one per bucket; checked after restoring. Empty: not known.
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
        digests: of the whole state there, one per bucket.
    """

    position: MessageStreamState
    data: bytes
    digests: tuple[int, ...]
    session: int = 0


@dataclass(frozen=True, slots=True)
class RunsReply:
    """Consecutive decisions after a position, if there are any yet, in the history of the adapter that replies."""

    lineage: Lineage
    runs: tuple[Run, ...]
    session: int = 0


@dataclass(frozen=True, slots=True)
class RunsRefused:
    """The decisions asked for are not available any more."""

    reason: str
    session: int = 0


Answer: TypeAlias = RunsReply | RunsRefused | ChannelSnapshot | Buckets


@dataclass(frozen=True, slots=True)
class DigestPoint:
    """Conversion-state digests, one per bucket of symbols, where `epoch` decided last and `input_seq` is next.

    Two are comparable where both numbers are equal; 0: no digest was taken yet.
    """

    epoch: int = 0
    input_seq: int = 0
    digests: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """What an adapter reports of one channel at a sync interval. `available_source_seqs`: per source stream, one past
    the last message that it has without a gap, converted or not."""

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
        heard_report_ids: adapter_id -> the newest report heard of it.
        abstains: without contact to an admin server: it accepts no grant for a while (docs/protocol.md clause 6.7).
        out_of_sync: it was repeatedly out of sync lately.
        health: its score, 0 (unfit) to 1.
        session: the session that the adapter is in; 0: not said.
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
