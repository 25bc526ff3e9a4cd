"""What a subscription hands to the application: batches of messages, and in-band events, in the order of the stream.

A `Batch` costs little per packet: it is a slice of the packet that the merger delivered, and everything about single
messages is worked out when asked for. `arrays()` is the fast way to the fields, `messages()` the plain one.

Invariant: over all `Batch` items of a channel, `source_seq` only grows within each source stream, and over those that
are not provisional `message_seq` only grows within each epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from client_lib.stream_trust import Distrusted
from feedcore.merge.effects import MergeEvent
from feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE, OutputFlag, OutputPacket, message_frames
from feedcore.wire.packet_parts import cut_runs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from client_lib.decoding import Decoder
    from feedcore.documents.message_model import ModelMessage


class SourceSpan(NamedTuple):
    """Consecutive messages of a batch that one run of source messages became.

    Attributes:
        first_source_seq, end_source_seq: the source messages consumed; also those that became no message.
        first_message_seq, message_count: the messages they became; the count is 0 if all were filtered or bad.
    """

    source_stream_id: int
    first_source_seq: int
    end_source_seq: int
    first_message_seq: int
    message_count: int
    is_source_gap: bool


class Message(NamedTuple):
    """One application message of a batch.

    Attributes:
        name: the message's name in the message model.
        fields: decoded by the message model, by field name; a decimal is its mantissa.
        body: the SBE message header and body as they came.
    """

    message_seq: int
    source_stream_id: int
    source_seq: int
    name: str
    fields: Mapping[str, Any]
    body: memoryview


class Batch:
    """Messages of one packet that are new to this subscription.

    Attributes:
        packet: the copy that came first, whole.
        first_index, end_index: the batch's messages by their index in the packet.
        first_message_seq: of the first message.
        received_at_ns: wall clock when the loop delivered it.
        received_monotonic_ns: the same moment by the monotonic clock, for intervals.
    """

    __slots__ = (
        "_decoder",
        "end_index",
        "first_index",
        "first_message_seq",
        "packet",
        "received_at_ns",
        "received_monotonic_ns",
    )

    def __init__(
        self,
        packet: OutputPacket,
        first_index: int,
        end_index: int,
        first_message_seq: int,
        received_at_ns: int,
        received_monotonic_ns: int,
        decoder: Decoder,
    ) -> None:
        self.packet = packet
        self.first_index = first_index
        self.end_index = end_index
        self.first_message_seq = first_message_seq
        self.received_at_ns = received_at_ns
        self.received_monotonic_ns = received_monotonic_ns
        self._decoder = decoder

    def __repr__(self) -> str:
        last = self.first_message_seq + self.message_count - 1
        return f"Batch(channel {self.channel_id}, messages {self.first_message_seq}–{last}, adapter {self.adapter_id})"

    @property
    def channel_id(self) -> int:
        """The channel whose numbering `first_message_seq` belongs to."""
        return self.packet.channel_id

    @property
    def message_count(self) -> int:
        """Messages in the batch."""
        return self.end_index - self.first_index

    @property
    def adapter_id(self) -> int:
        """Whose copy came first."""
        return self.packet.adapter_id

    @property
    def epoch(self) -> int:
        """The term in which the messages were numbered."""
        return self.packet.epoch

    @property
    def source_sent_at_ns(self) -> int:
        """The source's wall clock on the newest source message of the packet; 0 if unknown."""
        return self.packet.source_sent_at_ns

    @property
    def adapter_sent_at_ns(self) -> int:
        """The adapter's wall clock when it sent the packet."""
        return self.packet.sent_at_ns

    @property
    def is_replayed(self) -> bool:
        """True if it came from a replay service rather than by multicast."""
        return bool(self.packet.flags & OutputFlag.RETRANSMISSION)

    @property
    def is_provisional(self) -> bool:
        """True if an adapter forwarded it without a lease: each source stream is in order, but `first_message_seq` is
        that adapter's own count and the order between source streams is not everybody's."""
        return bool(self.packet.flags & OutputFlag.PROVISIONAL)

    @property
    def is_whole(self) -> bool:
        """True if the batch is the whole packet, as nearly always."""
        return self.first_index == 0 and self.end_index == self.packet.message_count

    @property
    def payload(self) -> memoryview:
        """The batch's message frames, one behind the other (docs/protocol.md clause 3.3)."""
        packet = self.packet
        view = memoryview(packet.payload)
        if self.is_whole:
            return view[packet.messages_offset :]
        frames = message_frames(packet)[self.first_index : self.end_index]
        if not frames:
            return view[:0]
        return view[frames[0][0] : frames[-1][0] + frames[-1][1]]

    def sources(self) -> list[SourceSpan]:
        """Which source messages the batch consumes, in order; consecutive batches never overlap in them."""
        packet = self.packet
        return [
            SourceSpan(
                run.source_stream_id,
                run.first_source_seq,
                run.end_source_seq,
                run.first_message_seq,
                run.message_count,
                run.is_source_gap,
            )
            for run in (packet.runs if self.is_whole else cut_runs(packet, self.first_index, self.end_index))
        ]

    def arrays(self) -> Iterator[tuple[ModelMessage, NDArray[np.void]]]:
        """The batch's messages as structured numpy views, nothing copied: (message definition, rows).

        Consecutive messages of one kind come together, in the order of the stream.
        """
        return self._decoder.arrays(self.payload)

    def messages(self) -> Iterator[Message]:
        """One message after the other, decoded: convenient, and work per message. What the model lacks is passed over.

        Raises:
            PacketRefused: MALFORMED, if an adapter framed its messages wrongly.
        """
        packet = self.packet
        view = memoryview(packet.payload)
        frames = message_frames(packet)
        for span in self.sources():
            for message_seq in range(span.first_message_seq, span.first_message_seq + span.message_count):
                offset, length = frames[message_seq - packet.first_message_seq]
                source_offset = OUTPUT_FRAME.unpack_from(view, offset)[1]
                decoded = self._decoder.message(view[offset : offset + length])
                if decoded is None:
                    continue
                source_seq = self._run_first_source_seq(message_seq) + source_offset
                body = view[offset + OUTPUT_FRAME_SIZE : offset + length]
                yield Message(message_seq, span.source_stream_id, source_seq, *decoded, body)

    def _run_first_source_seq(self, message_seq: int) -> int:
        for run in self.packet.runs:
            if run.first_message_seq <= message_seq < run.end_message_seq:
                return run.first_source_seq
        raise AssertionError(f"message_seq {message_seq} lies in no run of the packet")


@dataclass(frozen=True, slots=True)
class Filled:
    """Messages of an earlier `Gap` or `ProvisionalGap` that turned up after all: late, behind messages that came after
    them."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Revoked:
    """The administration server no longer grants the subscription; it is the last item."""

    reason: str


Event: TypeAlias = MergeEvent | Filled | Distrusted | Revoked
Item: TypeAlias = Batch | Event
