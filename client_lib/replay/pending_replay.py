"""The part of a replay request that has not arrived. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tandemfeed.feedcore.merge.effects import RequestReplay
from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.output_packet import PROVISIONAL_BIT, OutputPacket
from tandemfeed.feedcore.wire.packet_series import PacketSeries, packets_of
from tandemfeed.v1 import replay_pb2


class PendingReplay:
    """The remainder of a request while adapters answer it.

    Args:
        request: the merger's request.
    """

    def __init__(self, request: RequestReplay) -> None:
        self._channel_id, self._session = request.channel_id, request.session
        self._inputs = RangeSet(request.input_ranges)
        self._messages = RangeSet((request.message_range,) if request.message_range is not None else ())
        self._sources: dict[int, RangeSet] = {}  # by source stream
        for stream, first, end in request.source_ranges:
            self._sources.setdefault(stream, RangeSet()).add(first, end)

    @property
    def is_empty(self) -> bool:
        """True once everything has arrived."""
        return not (self._inputs or self._messages or any(self._sources.values()))

    def message(self) -> replay_pb2.ReplayRequest:
        """The request for the remainder."""
        message = replay_pb2.ReplayRequest(
            channel_id=self._channel_id,
            session=self._session,
            input_ranges=[replay_pb2.NumberRange(first=first, end=end) for first, end in self._inputs],
            source_ranges=[
                replay_pb2.SourceRange(source_stream_id=stream, range=replay_pb2.NumberRange(first=first, end=end))
                for stream, ranges in self._sources.items()
                for first, end in ranges
            ],
        )
        if self._messages:
            message.message_range.first, message.message_range.end = self._messages.first, self._messages.end
        return message

    def remove_received(self, parts: Iterable[OutputPacket | PacketSeries]) -> None:
        """Remove what an adapter sent."""
        for part in parts:
            if self._session not in (0, part.session):
                continue
            if isinstance(part, PacketSeries) or not part.flags & PROVISIONAL_BIT:
                self._inputs.remove(part.first_input_seq, part.end_input_seq)
                self._messages.remove(part.first_message_seq, part.end_message_seq)
            for packet in packets_of(part) if self._sources else ():
                self._remove_sources(packet)

    def _remove_sources(self, packet: OutputPacket) -> None:
        for run in packet.runs:
            if run.source_stream_id in self._sources:
                self._sources[run.source_stream_id].remove(run.first_source_seq, run.end_source_seq)
