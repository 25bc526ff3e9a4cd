"""What the client's merger hands its shell: batches, in-band events and requests, in the order of the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from feedcore.output_packet import OutputPacket


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand messages `first_index` … `end_index - 1` of the packet to the application.

    Attributes:
        packet: the copy that came first.
        first_index, end_index: message indices in the packet; the whole packet on the hot path.
        first_message_seq: of the first delivered message.
    """

    packet: OutputPacket
    first_index: int
    end_index: int
    first_message_seq: int


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Ask any adapter's replay service for these `message_seq` ranges (first, last inclusive), all in one request.

    What comes back is fed in with `on_packet`.
    """

    channel_id: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Nobody had these messages within the limit; the stream goes on behind them. Later copies make a `Filled`."""

    channel_id: int
    first_message_seq: int
    last_message_seq: int


@dataclass(frozen=True, slots=True)
class SourceGap:
    """The source itself declared these source messages lost: in the stream's order, once."""

    channel_id: int
    source_stream_id: int
    first_source_seq: int
    last_source_seq: int


@dataclass(frozen=True, slots=True)
class Filled:
    """Messages of an earlier `Gap` turned up after all."""

    channel_id: int
    packet: OutputPacket
    first_index: int
    end_index: int
    first_message_seq: int


@dataclass(frozen=True, slots=True)
class Takeover:
    """A new epoch's first packet was heard: another active decides from `first_message_seq` on."""

    channel_id: int
    epoch: int
    adapter_id: int
    first_message_seq: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Stale:
    """No packet and no heartbeat from this adapter's stream for the limit."""

    channel_id: int
    adapter_id: int


@dataclass(frozen=True, slots=True)
class Live:
    """The adapter's stream is heard (again)."""

    channel_id: int
    adapter_id: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """Two copies of the same messages differ: an alarm, with both digests."""

    channel_id: int
    first_message_seq: int
    adapter_ids: tuple[int, int]
    digests: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ended:
    """The active said that every source stream ended and all of it has been delivered here."""

    channel_id: int
    end_message_seq: int


MergeEffect: TypeAlias = Deliver | RequestReplay | Gap | SourceGap | Filled | Takeover | Stale | Live | Diverged | Ended
