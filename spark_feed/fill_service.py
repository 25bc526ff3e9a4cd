"""SourceReplay: adapters fill their gaps from the source journal. Serves only what has been sent already."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc

from feedcore.source_packet import SourceFlag
from journal.tailer import Tailer
from spark_feed.send_core import stamped
from spark_feed.sent_index import SentIndex
from spark_feed.source_journal import PACKET_HEAD
from tandemfeed.v1 import replay_pb2, replay_pb2_grpc

SERVICE_NAME = "tandemfeed.v1.SourceReplay"
CALLER_ROLES = frozenset({"adapter"})
CHUNK_DATAGRAM_COUNT = 128  # 180 KB: an adapter converts it in a few milliseconds
RANGE_COUNT_MAX = 10_000
READ_ON_COUNT_MAX = 4_096  # nearer than this, reading on is cheaper than going to the index


class JournalReader:
    """Reads packets at ascending places without starting over each time. Safe to use from several threads."""

    def __init__(self, journal: Path) -> None:
        self._tailer = Tailer(journal)
        self._lock = threading.Lock()

    def read(self, index: int) -> bytes:
        """The packet at a place in the journal."""
        with self._lock:
            position = self._tailer.position
            if position is None or not 0 <= index - position <= READ_ON_COUNT_MAX:
                self._tailer.to_index(index)
            while (entry := self._tailer.read()) is not None:
                if entry[0] == index:
                    return entry[1][PACKET_HEAD.size :]
        raise AssertionError(f"index {index:#x} was sent, but the journal does not hold it")

    def close(self) -> None:
        """Unmap."""
        with self._lock:
            self._tailer.close()


class SourceReplayService(replay_pb2_grpc.SourceReplayServicer):
    """Answers `Fill`."""

    def __init__(self, index: SentIndex, reader: JournalReader) -> None:
        self._index = index
        self._reader = reader
        self.datagram_count = 0

    def Fill(  # noqa: N802
        self, request: replay_pb2.FillRequest, context: grpc.ServicerContext
    ) -> Iterator[replay_pb2.FillChunk]:
        """The packets that hold any message asked for; nothing for what has not been sent yet."""
        stream_id = request.source_stream_id
        if stream_id not in self._index.source_stream_ids:
            known = ", ".join(map(str, self._index.source_stream_ids))
            context.abort(grpc.StatusCode.NOT_FOUND, f"no source stream {stream_id} here; there are {known}")
        if len(request.ranges) > RANGE_COUNT_MAX:
            text = f"{len(request.ranges)} ranges; ask for at most {RANGE_COUNT_MAX} at once"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        chunk: list[bytes] = []
        for wanted in request.ranges:
            for sent in self._index.covering(stream_id, wanted.first_seq, wanted.last_seq):
                datagram = self._index.cached(sent.journal_index)
                if datagram is None:
                    datagram = self._reader.read(sent.journal_index)
                chunk.append(stamped(datagram, sent.sent_at_ns, SourceFlag.RETRANSMISSION))
                if len(chunk) == CHUNK_DATAGRAM_COUNT:
                    self.datagram_count += len(chunk)
                    yield replay_pb2.FillChunk(datagrams=chunk)
                    chunk = []
        if chunk:
            self.datagram_count += len(chunk)
            yield replay_pb2.FillChunk(datagrams=chunk)
