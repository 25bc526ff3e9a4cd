"""The items that a subscription delivers to the application, in stream order: batches of messages and in-band events.

A `Batch` is cheap: it wraps the packet that the merger delivered, and decodes single messages only on request. Use
`arrays()` for fast access to fields, `messages()` for convenient access.

Invariant: in the `Batch` items of a channel, `source_seq` only grows within each source stream; in those that are not
provisional, `input_seq` and `message_seq` only grow within each epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from tandemfeed.client_lib.messages.message import Message, MessageClasses, Origin, new_message
from tandemfeed.client_lib.reading.lag import LagEvent
from tandemfeed.client_lib.reading.storage import StorageEvent
from tandemfeed.client_lib.stream.sockets.transport_choice import UnicastChosen
from tandemfeed.client_lib.stream.trust.stream_trust import Distrusted
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE, MessageModel
from tandemfeed.feedcore.merge.effects import MergeEvent
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OutputFlag, OutputPacket, message_frames
from tandemfeed.feedcore.wire.packet_parts import first_messages_of
from tandemfeed.feedcore.wire.packet_series import PacketSeries
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tandemfeed.client_lib.messages.decoding import Decoder
    from tandemfeed.feedcore.sbe.messages import MessageType


NO_LINEAGE = Lineage()
NOTHING_SKIPPED: Mapping[int, int] = {}


class SourceSpan(NamedTuple):
    """The messages of a batch that result from one run of source messages.

    Attributes:
        first_source_seq, end_source_seq: the consumed source messages, including those that yield no message.
        first_message_seq, message_count: the resulting messages; the count is 0 if all were filtered or bad.
    """

    source_stream_id: int
    first_source_seq: int
    end_source_seq: int
    first_message_seq: int
    message_count: int
    is_source_gap: bool


class Batch:
    """The messages of one packet that are new to this subscription; empty if its source messages yield no message.

    Attributes:
        packet: the copy that arrived first, or the part of it that is new.
        first_input_seq: the position of the batch's first source message in the channel's input.
        first_message_seq: the `message_seq` of the first message.
        received_at_ns: the wall clock when the loop delivered the batch.
        received_monotonic_ns: the same moment on the monotonic clock, for intervals.
        lineage: the history that the batch's numbers belong to; only for subscriptions with a durable cursor.
        skipped: the next `source_seq` of source streams, after batches before this one that a slow application was not
            given.
        moves_cursor: False in the last values of a snapshot: a cursor moves once all of them were handled.

    If only some symbols of the channel are granted, the batch has only their messages: `message_count`, `payload`,
    `message_seqs`, `arrays` and `messages` are about these, while `sources`, `end_message_seq` and the packet's numbers
    and runs cover the others as well, so that positions continue from batch to batch.
    """

    __slots__ = (
        "_decoder",
        "_places",
        "first_input_seq",
        "first_message_seq",
        "lineage",
        "moves_cursor",
        "packet",
        "received_at_ns",
        "received_monotonic_ns",
        "skipped",
    )

    def __init__(
        self,
        packet: OutputPacket,
        received_at_ns: int,
        received_monotonic_ns: int,
        decoder: Decoder,
        places: NDArray[np.int64] | None = None,
    ) -> None:
        """Args: places: the messages that are in the payload, counted from the packet's first; None: all of them."""
        self.packet, self._places = packet, places
        self.first_input_seq = packet.first_input_seq
        self.first_message_seq = packet.first_message_seq
        self.received_at_ns = received_at_ns
        self.received_monotonic_ns = received_monotonic_ns
        self._decoder = decoder
        self.lineage = NO_LINEAGE
        self.skipped: Mapping[int, int] = NOTHING_SKIPPED
        self.moves_cursor = True

    def __repr__(self) -> str:
        return (
            f"Batch(channel {self.channel_id}, input [{self.first_input_seq}, {self.end_input_seq}), "
            f"messages [{self.first_message_seq}, {self.end_message_seq}), adapter {self.adapter_id})"
        )

    @property
    def end_input_seq(self) -> int:
        """One past the batch's last source message; the next batch begins there unless a gap intervenes."""
        return self.packet.end_input_seq

    @property
    def end_message_seq(self) -> int:
        """One past the batch's last message."""
        return self.packet.end_message_seq

    @property
    def channel_id(self) -> int:
        """The channel of the batch and its sequence numbers."""
        return self.packet.channel_id

    @property
    def message_count(self) -> int:
        """The number of messages in the batch."""
        return self.packet.message_count if self._places is None else len(self._places)

    @property
    def message_seqs(self) -> NDArray[np.uint64]:
        """The `message_seq` of each message in the batch."""
        places = np.arange(self.packet.message_count) if self._places is None else self._places
        return places.astype(np.uint64) + np.uint64(self.first_message_seq)

    @property
    def adapter_id(self) -> int:
        """The adapter whose copy arrived first."""
        return self.packet.adapter_id

    @property
    def epoch(self) -> int:
        """The epoch in which the messages were numbered."""
        return self.packet.epoch

    @property
    def source_sent_at_ns(self) -> int:
        """The source's wall clock when it sent the newest source message of the packet; 0 if unknown."""
        return self.packet.source_sent_at_ns

    @property
    def adapter_sent_at_ns(self) -> int:
        """The adapter's wall clock when it sent the packet."""
        return self.packet.sent_at_ns

    @property
    def is_replayed(self) -> bool:
        """True if the batch came from a replay service and not by multicast."""
        return bool(self.packet.flags & OutputFlag.RETRANSMISSION)

    @property
    def is_provisional(self) -> bool:
        """True if an adapter forwarded the batch without a lease. Each source stream is in order, but `input_seq` and
        `message_seq` are provisional, and other clients may receive the source streams interleaved differently."""
        return bool(self.packet.flags & OutputFlag.PROVISIONAL)

    @property
    def model(self) -> MessageModel:
        """The message model that the messages are of."""
        return self._decoder.model

    @property
    def classes(self) -> MessageClasses:
        """The classes of the messages."""
        return self._decoder.classes

    @property
    def payload(self) -> memoryview:
        """The batch's message frames, concatenated (docs/protocol.md clause 3.3)."""
        return memoryview(self.packet.payload)[self.packet.messages_offset :]

    def first_messages(self, message_count: int) -> Batch:
        """The batch with only its first messages; the batch itself if it has no more.

        Args:
            message_count: at least 1.

        Raises:
            PacketRefused: MALFORMED: the adapter framed its messages incorrectly.
        """
        if message_count >= self.message_count:
            return self
        if self._places is not None:
            length = sum(length for _, length in self._frames()[:message_count])
            packet = self.packet._replace(payload=self.packet.payload[: self.packet.messages_offset + length])
            places = self._places[:message_count]
            return Batch(packet, self.received_at_ns, self.received_monotonic_ns, self._decoder, places)
        part = first_messages_of(self.packet, message_count)
        return Batch(part, self.received_at_ns, self.received_monotonic_ns, self._decoder)

    def without_first(self, message_count: int) -> Batch:
        """The batch without its first messages; it has at least that many."""
        frames = self._frames()[:message_count]
        packet, start = self.packet, self.packet.messages_offset
        cut = sum(length for _, length in frames)
        payload = packet.payload[:start] + packet.payload[start + cut :]
        places = np.arange(packet.message_count) if self._places is None else self._places
        part = packet._replace(payload=payload)
        return Batch(part, self.received_at_ns, self.received_monotonic_ns, self._decoder, places[message_count:])

    def chosen(self, mask: NDArray[np.bool_]) -> Batch:
        """The batch with only some of its messages, at its place in the stream. Args: mask: for each message.

        Raises:
            PacketRefused: MALFORMED: the adapter framed its messages incorrectly.
        """
        frames, packet, start = self._frames(), self.packet, self.packet.messages_offset
        wanted = np.flatnonzero(mask)
        parts = [packet.payload[offset : offset + length] for offset, length in (frames[at] for at in wanted.tolist())]
        places = wanted if self._places is None else self._places[wanted]
        part = packet._replace(payload=b"".join((packet.payload[:start], *parts)))
        batch = Batch(part, self.received_at_ns, self.received_monotonic_ns, self._decoder, places)
        batch.lineage, batch.skipped, batch.moves_cursor = self.lineage, self.skipped, self.moves_cursor
        return batch

    def next_source_seqs(self) -> dict[int, int]:
        """After this batch and what was skipped before it, by source stream."""
        return {**self.skipped, **{run.source_stream_id: run.end_source_seq for run in self.packet.runs}}

    def skip(self, former: Batch) -> None:
        """Note that a batch right before this one was removed."""
        self.skipped = {**former.next_source_seqs(), **self.skipped}

    def sources(self) -> list[SourceSpan]:
        """The source messages that the batch consumes, in order. Consecutive batches consume different ones."""
        return [
            SourceSpan(
                run.source_stream_id,
                run.first_source_seq,
                run.end_source_seq,
                run.first_message_seq,
                run.message_count,
                run.is_source_gap,
            )
            for run in self.packet.runs
        ]

    def arrays(self) -> Iterator[tuple[MessageType, NDArray[np.void]]]:
        """The batch's messages as structured numpy views without copying: (message definition, rows).

        Each view contains consecutive messages of one type; the views are in stream order.
        """
        return self._decoder.arrays(self.payload)

    def messages(self) -> Iterator[Any]:
        """Each message as an object with its fields as attributes. Messages unknown to the model are skipped.

        Raises:
            PacketRefused: MALFORMED: the adapter framed its messages incorrectly.
            SbeReadError: a message is shorter than its fields.
        """
        data = self.packet.payload
        spans = self._decoder.model.spans(data, self.packet.messages_offset)
        count = sum(max((end - start) // length, 1) if length else 1 for _, start, end, length in spans)
        if count != self.message_count:
            raise PacketRefused(Refusal.MALFORMED, f"the frames are not {self.message_count} messages")
        for (message, rows), start, end, length in spans:
            if message is not None:
                made = self._decoder.classes.by_template[message.template_id]
                cls = made.cls
                for at in range(start, end, length):
                    if rows is None:
                        made.check(data, at, length)
                    view = new_message(cls)
                    view._data, view._at, view._batch = data, at + PREFIX_SIZE, self
                    yield view

    def message_after(self, message: Message) -> Message | None:
        """The message that follows one of this batch; None: it is the last."""
        messages = self.messages()
        for each in messages:
            if each.is_same_as(message):
                return next(messages, None)
        return None

    def origin_of(self, frame_offset: int) -> Origin:
        """Where the message comes from whose frame begins at this offset of the packet's payload."""
        packet, place = self.packet, [offset for offset, _ in self._frames()].index(frame_offset)
        message_seq = self.first_message_seq + (place if self._places is None else int(self._places[place]))
        run = next(run for run in packet.runs if message_seq < run.end_message_seq)
        return Origin(
            self.channel_id,
            message_seq,
            run.source_stream_id,
            run.first_source_seq + OUTPUT_FRAME.unpack_from(packet.payload, frame_offset)[1],
            packet.session,
            packet.epoch,
            packet.adapter_id,
            packet.source_sent_at_ns,
            self.received_at_ns,
            self.is_replayed,
            self.is_provisional,
        )

    def _frames(self) -> list[tuple[int, int]]:
        return message_frames(self.packet._replace(message_count=self.message_count))


class BatchOfSeries(Batch):
    """The messages of one packet of a replayed history. The packet is made when something needs it. From then on the
    batch, and messages of it that an application keeps, keep only that packet in memory, and not the series."""

    __slots__ = ("_made", "_place", "_series")

    def __init__(
        self, series: PacketSeries, place: int, received_at_ns: int, received_monotonic_ns: int, decoder: Decoder
    ) -> None:
        self._series: PacketSeries | None = series
        self._made: OutputPacket | None = None
        self._place, self._places = place, None
        self.first_input_seq = series.first_input_seqs[place]
        self.first_message_seq = series.first_message_seqs[place]
        self.received_at_ns = received_at_ns
        self.received_monotonic_ns = received_monotonic_ns
        self._decoder = decoder
        self.lineage = NO_LINEAGE
        self.skipped = NOTHING_SKIPPED
        self.moves_cursor = True

    @property
    def packet(self) -> OutputPacket:  # type: ignore[override]
        """The packet, as an adapter's replay service sent it."""
        series = self._series
        if series is not None:
            self._made = series.packet(self._place)
            self._series = None  # last, because messages may be passed to other threads
        made = self._made
        assert made is not None
        return made

    @property
    def channel_id(self) -> int:
        """The channel of the batch and its sequence numbers."""
        series = self._series
        return self.packet.channel_id if series is None else series.channel_id

    @property
    def message_count(self) -> int:
        """The number of messages in the batch."""
        series = self._series
        return self.packet.message_count if series is None else series.message_counts[self._place]

    @property
    def payload(self) -> memoryview:
        """The batch's message frames, concatenated."""
        series = self._series
        return super().payload if series is None else series.frames(self._place)


@dataclass(frozen=True, slots=True)
class Filled:
    """Messages of an earlier `Gap` or `ProvisionalGap` that arrived late, after later messages were delivered."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Revoked:
    """The administration server no longer grants some of the subscription's topics.

    Attributes:
        is_last: nothing is left; this is the last item.
    """

    reason: str
    topics: tuple[str, ...] = ()
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class ChannelsChanged:
    """The subscription has other channels from here on, because it was modified or more was granted to it.

    Attributes:
        added: topics that begin live.
        removed: topics of which nothing more is delivered; revoked ones are in `Revoked`.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelChanged:
    """The feed has another version of its message model; the batches from here on are decoded by it."""

    id: str
    version: str


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """With `start="snapshot"`: the channel's snapshot is complete, and its stream continues with the next message.

    Attributes:
        message_count: messages in the snapshot.
    """

    channel_id: int
    message_count: int
    next_message_seq: int


@dataclass(frozen=True, slots=True)
class HistoryShortened:
    """No adapter has a session of the channel from where the subscription was to begin. It begins with the oldest
    message that there is. What is missing of former sessions is reported before the first message.

    Attributes:
        at_ns: when the source sent it.
        session: the session that is shorter.
    """

    channel_id: int
    first_message_seq: int
    at_ns: int
    session: int


GrantEvent: TypeAlias = Revoked | ChannelsChanged | ModelChanged
StartEvent: TypeAlias = HistoryShortened | SnapshotTaken
Event: TypeAlias = MergeEvent | Filled | Distrusted | UnicastChosen | GrantEvent | StartEvent | LagEvent | StorageEvent
Item: TypeAlias = Batch | Event
