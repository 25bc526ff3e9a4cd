"""What the client's merger hands its shell: batches, in-band events and requests, in the order of the stream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from feedcore.wire.output_packet import OutputPacket


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand messages `first_index` … `end_index - 1` of the packet to the application.

    Attributes:
        packet: the copy that came first; with `OutputFlag.PROVISIONAL` its `message_seq` is its sender's own count.
        first_index, end_index: message indices in the packet; the whole packet on the hot path.
        first_message_seq: of the first delivered message.
    """

    packet: OutputPacket
    first_index: int
    end_index: int
    first_message_seq: int


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Ask the adapters' replay services for all of this in one request; what comes back is fed in with `on_packet`.

    Attributes:
        ranges: of `message_seq`, (first, last) inclusive.
        source_ranges: of provisional messages, (source_stream_id, first, last `source_seq`).
        copy_count: how many adapters' copies are wanted.
        held_adapter_ids: whose copies are here already: ask them late.
        silent_adapter_ids: whose streams have fallen silent: ask them last.
    """

    channel_id: int
    ranges: tuple[tuple[int, int], ...]
    source_ranges: tuple[tuple[int, int, int], ...] = ()
    copy_count: int = 1
    held_adapter_ids: tuple[int, ...] = ()
    silent_adapter_ids: tuple[int, ...] = ()

    def lateness(self, adapter_id: int) -> tuple[bool, bool]:
        """Sorts whom to ask: the lower the sooner."""
        return adapter_id in self.silent_adapter_ids, adapter_id in self.held_adapter_ids


class GapReason(StrEnum):
    """Why messages are not delivered."""

    NOBODY_HAD_THEM = "nobody had them"
    UNCONFIRMED = "only one adapter had them, or two copies differed"  # confirm=2


@dataclass(frozen=True, slots=True)
class Gap:
    """These messages were not to be had within the limit; the stream goes on behind them. Late ones are `Filled`."""

    channel_id: int
    first_message_seq: int
    last_message_seq: int
    reason: GapReason = GapReason.NOBODY_HAD_THEM


@dataclass(frozen=True, slots=True)
class ProvisionalGap:
    """Nobody had these source messages of a provisional stream within the limit; its stream goes on behind them.

    They have no `message_seq` yet. If they come later, provisionally or numbered, they are `Filled`.
    """

    channel_id: int
    source_stream_id: int
    first_source_seq: int
    last_source_seq: int


@dataclass(frozen=True, slots=True)
class SourceGap:
    """The source itself declared these source messages lost: in the stream's order, once."""

    channel_id: int
    source_stream_id: int
    first_source_seq: int
    last_source_seq: int


@dataclass(frozen=True, slots=True)
class Filled:
    """Messages of an earlier `Gap` or `ProvisionalGap` turned up after all."""

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
class Provisional:
    """From here on an adapter without a lease forwards: each source stream in order, the streams among each other in
    no order that holds, no `message_seq` for good."""

    channel_id: int
    adapter_id: int


@dataclass(frozen=True, slots=True)
class Numbered:
    """All that was delivered provisionally has its `message_seq` for good by now; `epoch` numbered the last of it."""

    channel_id: int
    epoch: int
    next_message_seq: int


@dataclass(frozen=True, slots=True)
class ConfirmationPaused:
    """confirm=2, and fewer than two adapters are heard: nothing can be confirmed, so nothing is delivered."""

    channel_id: int
    live_adapter_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConfirmationResumed:
    """Two adapters are heard again."""

    channel_id: int
    live_adapter_ids: tuple[int, ...]


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
    """Two copies of the same messages differ: an alarm.

    Attributes:
        first_message_seq: where what the two packets have in common begins.
        adapter_ids: whose copies; the first is the one that came first.
        digests: CRC-32 of each adapter's copy of what they have in common, in the same order.
    """

    channel_id: int
    first_message_seq: int
    adapter_ids: tuple[int, int]
    digests: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ended:
    """The active said that every source stream ended and all of it has been delivered here."""

    channel_id: int
    end_message_seq: int


MergeEvent: TypeAlias = (
    Gap
    | ProvisionalGap
    | SourceGap
    | Takeover
    | Provisional
    | Numbered
    | ConfirmationPaused
    | ConfirmationResumed
    | Stale
    | Live
    | Diverged
    | Ended
)
MergeEffect: TypeAlias = Deliver | RequestReplay | Filled | MergeEvent
