"""The effects of the client's merger: packets, in-band events and requests, in the order of the stream.

Ranges are half-open: `end_` is the first number after the range. A packet that is not provisional covers the source
messages `first_input_seq` … `end_input_seq - 1` of its channel, including those that made no message.

The order is a contract. Within one history (that is, until a `Takeover`) each `Deliver` begins at the `input_seq` where
the previous one ended. If they do not meet, the `Gap` or `SourceGap` between them names what is missing; without one,
the source messages between them made no message, as the equal `message_seq` on both sides shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tandemfeed.feedcore.range_set import Range
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_series import PacketSeries

SourceRange: TypeAlias = tuple[int, int, int]  # source_stream_id, first source_seq, end


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver all of this packet to the application.

    Attributes:
        packet: the copy that arrived first, or the part of it that is new; with `OutputFlag.PROVISIONAL` its numbers
            are its sender's own count. It may have no message.
    """

    packet: OutputPacket


@dataclass(frozen=True, slots=True)
class DeliverSeries:
    """Deliver all packets of this series, in their order: as a `Deliver` for each."""

    series: PacketSeries


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Request all of this from the adapters' replay services in one call; the shell passes the answer to `on_packet`.

    Attributes:
        input_ranges: of `input_seq`: the known gaps.
        message_range: of `message_seq`, until the subscription's first message is found; then None.
        source_ranges: of provisional source messages.
        copy_count: how many adapters' copies are needed.
        held_adapter_ids: the adapters whose copies are here already: ask them late.
        silent_adapter_ids: the adapters whose streams have fallen silent: ask them last.
        session: the session that all ranges belong to; 0: the services' current session.
    """

    channel_id: int
    input_ranges: tuple[Range, ...] = ()
    message_range: Range | None = None
    source_ranges: tuple[SourceRange, ...] = ()
    copy_count: int = 1
    held_adapter_ids: tuple[int, ...] = ()
    silent_adapter_ids: tuple[int, ...] = ()
    session: int = 0

    def lateness(self, adapter_id: int) -> tuple[bool, bool]:
        """A sort key for adapters: ask the lowest first."""
        return adapter_id in self.silent_adapter_ids, adapter_id in self.held_adapter_ids


class GapReason(StrEnum):
    """Why messages were not delivered."""

    NO_ADAPTER_HAD_THEM = "no adapter had them"
    UNCONFIRMED = "only one adapter had them, or two copies differed"  # confirm=2


@dataclass(frozen=True, slots=True)
class Gap:
    """These messages could not be delivered within the limit; the stream continues. Late ones are `Filled`.

    A gap without messages (what follows it has the next `message_seq`) is counted and not reported.

    Attributes:
        first_input_seq, end_input_seq: the missing source messages; first_input_seq is 0 if it is not known,
            because no adapter still has the `message_seq` with which the subscription was to begin.
        first_message_seq, end_message_seq: the missing messages, at least one.
    """

    channel_id: int
    first_input_seq: int
    end_input_seq: int
    first_message_seq: int
    end_message_seq: int
    reason: GapReason = GapReason.NO_ADAPTER_HAD_THEM

    @property
    def message_count(self) -> int:
        """The number of missing messages."""
        return self.end_message_seq - self.first_message_seq


@dataclass(frozen=True, slots=True)
class ProvisionalGap:
    """No adapter supplied these source messages of a provisional stream within the limit; it continues after them.

    They have no number yet. If they arrive later, provisional or numbered, they are `Filled`.
    """

    channel_id: int
    source_stream_id: int
    first_source_seq: int
    last_source_seq: int


@dataclass(frozen=True, slots=True)
class SourceGap:
    """The active declared these source messages lost; reported once, at their place in the stream."""

    channel_id: int
    source_stream_id: int
    first_source_seq: int
    last_source_seq: int


@dataclass(frozen=True, slots=True)
class Filled:
    """This packet arrived late; all of it belongs to an earlier `Gap` or `ProvisionalGap`."""

    packet: OutputPacket


@dataclass(frozen=True, slots=True)
class Takeover:
    """A new epoch has begun: another active decides from `first_message_seq` on.

    Its history may depart from the previous one at an earlier place. The stream then returns to that place, and omits
    messages that it delivered under other numbers, which it recognises by source identity.

    Attributes:
        adapter_id: the new active; 0 if not known.
        resume_input_seq: where the stream continues now; 0 if it has not begun.
    """

    channel_id: int
    epoch: int
    adapter_id: int
    first_message_seq: int
    at_ns: int
    resume_input_seq: int = 0


@dataclass(frozen=True, slots=True)
class Provisional:
    """From here on the stream includes packets of an adapter without a lease. Each source stream is in order, but the
    order between source streams and every `message_seq` are not final."""

    channel_id: int
    adapter_id: int


@dataclass(frozen=True, slots=True)
class Numbered:
    """All that was delivered provisionally now has its final `message_seq`; `epoch` numbered the last of it."""

    channel_id: int
    epoch: int
    next_message_seq: int


@dataclass(frozen=True, slots=True)
class ConfirmationPaused:
    """With confirm=2, fewer than two adapters are heard: nothing can be confirmed, so nothing is delivered."""

    channel_id: int
    live_adapter_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConfirmationResumed:
    """Two adapters are heard again."""

    channel_id: int
    live_adapter_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """The subscription is far behind the channel, and requests its history in parts; one event for each part."""

    channel_id: int
    next_message_seq: int
    known_end_message_seq: int

    @property
    def remaining_count(self) -> int:
        """Messages known to be missing, from here on."""
        return self.known_end_message_seq - self.next_message_seq


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """After `CatchingUp`: everything known of the channel has been delivered or named by a gap."""

    channel_id: int
    next_message_seq: int


@dataclass(frozen=True, slots=True)
class Stale:
    """This adapter's stream had no packet and no heartbeat for the limit."""

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
        first_input_seq, first_message_seq: where the common part of the two packets begins.
        adapter_ids: the adapters that sent the copies, that of the earlier copy first.
        digests: CRC-32 of the common part of each copy, in the same order.
    """

    channel_id: int
    first_input_seq: int
    first_message_seq: int
    adapter_ids: tuple[int, int]
    digests: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ended:
    """The active reported that every source stream has ended, and all of it has been delivered."""

    channel_id: int
    end_input_seq: int
    end_message_seq: int


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The old session is over. The new session follows; all of its numbers begin at 1.

    Attributes:
        is_complete: all of the old session was delivered or named by a gap. False: no adapter reported its end within
            the grace, so its last messages may be missing without a `Gap`.
    """

    channel_id: int
    old_session: int
    new_session: int
    is_complete: bool


MergeEvent: TypeAlias = (
    Gap
    | ProvisionalGap
    | SourceGap
    | Takeover
    | Provisional
    | Numbered
    | ConfirmationPaused
    | ConfirmationResumed
    | CatchingUp
    | CaughtUp
    | Stale
    | Live
    | Diverged
    | Ended
    | SessionChanged
)
MergeEffect: TypeAlias = Deliver | DeliverSeries | RequestReplay | Filled | MergeEvent
