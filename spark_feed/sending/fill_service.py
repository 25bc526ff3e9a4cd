"""SourceReplay: adapters fill their gaps from the source journal. Serves only packets that have been sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import grpc

from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.source_packet import SourceFlag, encode_source_header
from tandemfeed.journal import Tailer
from tandemfeed.journal.read.sequence_marks import Stretch
from tandemfeed.spark_feed.journaling.records import datagram_in, packet_numbers, stream_folder
from tandemfeed.spark_feed.sending.send_core import stamped
from tandemfeed.spark_feed.sending.sent_index import SentIndex
from tandemfeed.transport.calls.serving.call_context import caller_of
from tandemfeed.v1 import replay_pb2, replay_pb2_grpc

SERVICE_NAME = "tandemfeed.v1.SourceReplay"
CALLER_ROLES = frozenset({"adapter"})
CHUNK_DATAGRAM_COUNT = 128  # 180 KB: an adapter converts it in a few milliseconds
RANGE_COUNT_MAX = 10_000
READ_COUNT = 256  # records taken from the journal at once


class JournalReader:
    """Reads packets that are no longer cached. Safe to use from several threads.

    Args:
        feed_id: the feed whose adapters receive them.
    """

    def __init__(self, journal: Path, feed_id: int) -> None:
        self._journal, self._feed_id = journal, feed_id

    def packets(self, stretches: Sequence[Stretch], stream_id: int, first_seq: int, end_seq: int) -> Iterator[bytes]:
        """The datagrams of a source stream that contain any of `[first_seq, end_seq)`, in order."""
        if not stretches:
            return
        with Tailer(stream_folder(self._journal, stream_id)) as tailer:
            tailer.to_index(stretches[0].begin_index)  # numbers never restart, so there is only one stretch
            while records := tailer.read_many(READ_COUNT):
                for _, record in records:
                    _, first, count = packet_numbers(record)
                    if first + count <= first_seq:
                        continue
                    if first >= end_seq:
                        return
                    yield datagram_in(record, self._feed_id)


@dataclass(frozen=True, slots=True)
class PreviousSession:
    """The previous session, all of which was sent. Adapters fill their gaps in it from its journal.

    Attributes:
        session: its number.
        index: covers its whole journal.
        is_released: whether all of it is old enough for the feed; until then adapters receive nothing of it.
    """

    feed_id: int
    session: int
    index: SentIndex
    reader: JournalReader
    is_released: Callable[[], bool] = lambda: True

    def end_of(self, stream_id: int) -> bytes:
        """The heartbeat that says where a source stream ended; an adapter that was away when it was sent waits for
        it."""
        return encode_source_header(
            feed_id=self.feed_id,
            source_stream_id=stream_id,
            message_count=0,
            session=self.session,
            first_source_seq=self.index.next_source_seqs[stream_id],
            sent_at_ns=0,
            flags=SourceFlag.HEARTBEAT | SourceFlag.END_OF_STREAM | SourceFlag.RETRANSMISSION,
        )


@dataclass(frozen=True, slots=True)
class _Served:
    """What is served: the present session, and the previous one if its journal is available."""

    session: int
    index: SentIndex
    reader: JournalReader
    previous: PreviousSession | None


class SourceReplayService(replay_pb2_grpc.SourceReplayServicer):
    """Answers `Fill`, with nothing before the first session begins. A call keeps the sessions that it began with.

    Args:
        source_stream_ids: of the feed.
        feed: its name; adapters of other feeds are refused.
    """

    def __init__(self, source_stream_ids: Sequence[int], feed: str) -> None:
        self._source_stream_ids = tuple(source_stream_ids)
        self._feed = feed
        self._served: _Served | None = None
        self.datagram_count = 0

    def begin_session(
        self, session: int, index: SentIndex, reader: JournalReader, previous: PreviousSession | None = None
    ) -> None:
        """Serve this session from now on, and the one before it.

        Args:
            session: 0: whatever adapters request.
        """
        self._served = _Served(session, index, reader, previous)

    def Fill(  # noqa: N802
        self, request: replay_pb2.FillRequest, context: grpc.ServicerContext
    ) -> Iterator[replay_pb2.FillChunk]:
        """The sent packets that contain any requested message, in order.

        A request that reaches past the end of the previous session also gets the heartbeat that says where it ended.
        """
        caller = caller_of(context)
        if not caller.is_adapter_of(self._feed):
            text = f"{caller.identity!r} is not an adapter of feed {self._feed!r}"
            context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        stream_id = request.source_stream_id
        if stream_id not in self._source_stream_ids:
            known = ", ".join(map(str, self._source_stream_ids))
            text = f"no source stream {stream_id}; the source streams of feed {self._feed!r} are {known}"
            context.abort(grpc.StatusCode.NOT_FOUND, text)
        if len(request.ranges) > RANGE_COUNT_MAX:
            text = f"{len(request.ranges)} ranges requested; the limit is {RANGE_COUNT_MAX} per request"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        try:
            wanted = RangeSet((each.first_seq, each.last_seq + 1) for each in request.ranges)
        except ValueError as backwards:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(backwards))
        datagrams = self._of_session(request.session, stream_id, wanted)
        while chunk := list(islice(datagrams, CHUNK_DATAGRAM_COUNT)):
            self.datagram_count += len(chunk)
            yield replay_pb2.FillChunk(datagrams=chunk)

    def _of_session(self, session: int, stream_id: int, wanted: RangeSet) -> Iterator[bytes]:
        """The requested datagrams of a session, and its end if the request reaches past it."""
        served = self._served
        if served is None:
            return
        previous = served.previous
        if previous is not None and session == previous.session:
            if not previous.is_released():
                return
            yield from self._datagrams(previous.index, previous.reader, stream_id, wanted)
            if wanted and wanted.end > previous.index.next_source_seqs[stream_id]:
                yield previous.end_of(stream_id)
        elif 0 in (session, served.session) or session == served.session:
            yield from self._datagrams(served.index, served.reader, stream_id, wanted)

    def _datagrams(self, index: SentIndex, reader: JournalReader, stream_id: int, wanted: RangeSet) -> Iterator[bytes]:
        for first_seq, end_seq in wanted:
            yield from self._range(index, reader, stream_id, first_seq, end_seq)

    @staticmethod
    def _range(
        index: SentIndex, reader: JournalReader, stream_id: int, first_seq: int, end_seq: int
    ) -> Iterator[bytes]:
        found = index.covering(stream_id, first_seq, end_seq)
        journaled_end_seq = min(end_seq, found.before_seq)
        for datagram in reader.packets(found.stretches, stream_id, first_seq, journaled_end_seq):
            yield stamped(datagram, 0, SourceFlag.RETRANSMISSION)  # 0: the first send time is not recorded
        for packet in found.cached:
            yield stamped(packet.datagram, packet.sent_at_ns, SourceFlag.RETRANSMISSION)
