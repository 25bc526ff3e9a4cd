"""What the client's merger hands its shell: packets, in-band events and requests, in the order of the stream.

Ranges are half-open: `end_` is the first number after the range. A packet that is not provisional settles the source
messages `first_input_seq` … `end_input_seq - 1` of its channel, those that made no message included.

The order is a contract. Within one history (that is, until a `Takeover`) each `Deliver` begins at the `input_seq` where
the one before ended. What lies between, if they do not meet, is named by the `Gap` or `SourceGap` between them; without
one, it made no message, which the equal `message_seq` on both sides shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tandemfeed.feedcore.range_set import Range
from tandemfeed.feedcore.wire.output_packet import OutputPacket

SourceRange: TypeAlias = tuple[int, int, int]  # source_stream_id, first source_seq, end


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand all of this packet to the application.

    Attributes:
        packet: the copy that came first, or a part of it where the rest had been delivered; with
            `OutputFlag.PROVISIONAL` its numbers are its sender's own count. It may have no message.
    """

    packet: OutputPacket


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Ask the adapters' replay services for all of this in one request; what comes back is fed in with `on_packet`.

    Attributes:
        input_ranges: of `input_seq`: the gaps that are known.
        message_range: of `message_seq`, while the first message of the subscription is looked for; else None.
        source_ranges: of provisional source messages.
        copy_count: how many adapters' copies are wanted.
        held_adapter_ids: whose copies are here already: ask them late.
        silent_adapter_ids: whose streams have fallen silent: ask them last.
        session: the session that all of it belongs to; 0: the one that the services are in.
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
        """Sorts whom to ask: the lower the sooner."""
        return adapter_id in self.silent_adapter_ids, adapter_id in self.held_adapter_ids


class GapReason(StrEnum):
    """Why messages are not delivered."""

    NO_ADAPTER_HAD_THEM = "no adapter had them"
    UNCONFIRMED = "only one adapter had them, or two copies differed"  # confirm=2


@dataclass(frozen=True, slots=True)
class Gap:
    """These messages could not be had within the limit; the stream goes on after them. Late ones are `Filled`.

    A gap that holds no message, because what follows it has the next `message_seq`, is counted and not reported.

    Attributes:
        first_input_seq, end_input_seq: the source messages missing; first_input_seq is 0 if it is not known,
            because the subscription was to begin with a `message_seq` that no adapter has any more.
        first_message_seq, end_message_seq: the messages missing, at least one.
    """

    channel_id: int
    first_input_seq: int
    end_input_seq: int
    first_message_seq: int
    end_message_seq: int
    reason: GapReason = GapReason.NO_ADAPTER_HAD_THEM

    @property
    def message_count(self) -> int:
        """How many messages are missing."""
        return self.end_message_seq - self.first_message_seq


@dataclass(frozen=True, slots=True)
class ProvisionalGap:
    """No adapter had these source messages of a provisional stream within the limit; its stream goes on after them.

    They have no number yet. If they come later, provisionally or numbered, they are `Filled`.
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
    """All of this packet belongs to an earlier `Gap` or `ProvisionalGap` and turned up after all."""

    packet: OutputPacket


@dataclass(frozen=True, slots=True)
class Takeover:
    """A new epoch was heard of: another active decides from `first_message_seq` on.

    Its history may depart from the one before at an earlier place. The stream then goes back to there: what was
    delivered before under other numbers is recognised by its source identity and left out.

    Attributes:
        adapter_id: the new active; 0 if not known.
        resume_input_seq: where the stream goes on now; 0 if it has not begun.
    """

    channel_id: int
    epoch: int
    adapter_id: int
    first_message_seq: int
    at_ns: int
    resume_input_seq: int = 0


@dataclass(frozen=True, slots=True)
class Provisional:
    """From here on an adapter without a lease forwards: each source stream in order, the order between source streams
    and every `message_seq` not final."""

    channel_id: int
    adapter_id: int


@dataclass(frozen=True, slots=True)
class Numbered:
    """All that was delivered provisionally has its final `message_seq` by now; `epoch` numbered the last of it."""

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
        first_input_seq, first_message_seq: where what the two packets have in common begins.
        adapter_ids: whose copies; the first is the one that came first.
        digests: CRC-32 of each adapter's copy of what they have in common, in the same order.
    """

    channel_id: int
    first_input_seq: int
    first_message_seq: int
    adapter_ids: tuple[int, int]
    digests: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ended:
    """The active said that every source stream ended and all of it has been delivered here."""

    channel_id: int
    end_input_seq: int
    end_message_seq: int


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The old session is over: what follows is the new one, whose numbers all begin at 1.

    Attributes:
        is_complete: all of the old session was delivered or named by a gap. False: no adapter said within the grace
            where it ended, so its last messages may be missing without a `Gap`.
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
    | Stale
    | Live
    | Diverged
    | Ended
    | SessionChanged
)
MergeEffect: TypeAlias = Deliver | RequestReplay | Filled | MergeEvent
