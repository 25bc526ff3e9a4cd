"""What of one replay request has not come yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from feedcore.merge.effects import RequestReplay
from feedcore.wire.output_packet import PROVISIONAL_BIT, OutputPacket, decode_output_packet
from feedcore.wire.refusal import PacketRefused
from tandemfeed.v1 import common_pb2, replay_pb2

Ranges = list[tuple[int, int]]  # (first, last) inclusive


class Wanted:
    """The rest of a request while adapters answer it.

    Args:
        request: as the merger made it.
    """

    def __init__(self, request: RequestReplay) -> None:
        self._channel_id = request.channel_id
        self._ranges: Ranges = list(request.ranges)
        self._by_stream: dict[int, Ranges] = {}
        for stream, first, last in request.source_ranges:
            self._by_stream.setdefault(stream, []).append((first, last))

    @property
    def is_empty(self) -> bool:
        """True once all of it came."""
        return not self._ranges and not self._by_stream

    def message(self) -> replay_pb2.ReplayRequest:
        """The request for what is left."""
        return replay_pb2.ReplayRequest(
            channel_id=self._channel_id,
            ranges=[common_pb2.SequenceRange(first_seq=first, last_seq=last) for first, last in self._ranges],
            source_ranges=[
                replay_pb2.SourceRange(
                    source_stream_id=stream, range=common_pb2.SequenceRange(first_seq=first, last_seq=last)
                )
                for stream, ranges in self._by_stream.items()
                for first, last in ranges
            ],
        )

    def came(self, datagrams: Iterable[bytes]) -> None:
        """Packets that an adapter sent; what does not decode brings nothing."""
        for datagram in datagrams:
            try:
                packet = decode_output_packet(datagram)
            except PacketRefused:
                continue
            if packet.message_count and not packet.flags & PROVISIONAL_BIT:
                self._ranges = _without(self._ranges, packet.first_message_seq, packet.end_message_seq)
            if self._by_stream:
                self._sources_came(packet)

    def _sources_came(self, packet: OutputPacket) -> None:
        for run in packet.runs:
            ranges = self._by_stream.pop(run.source_stream_id, [])
            left = _without(ranges, run.first_source_seq, run.end_source_seq)
            if left:
                self._by_stream[run.source_stream_id] = left


def _without(ranges: Ranges, first: int, end: int) -> Ranges:
    """The ranges less first … end - 1."""
    left = []
    for start, last in ranges:
        left += [(a, b) for a, b in ((start, min(last, first - 1)), (max(start, end), last)) if a <= b]
    return left
