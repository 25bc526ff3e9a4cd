"""The committed messages of a source journal, in the order in which a channel took them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tandemfeed.feedcore.wire.source_packet import SOURCE_LAYOUT, unpack_source_header
from tandemfeed.journal import Tailer
from tandemfeed.spark_feed.journaling.records import PACKET_HEAD, SourceJournalError, stream_folder

READ_COUNT = 4_096  # packets
SENT_AT = slice(SOURCE_LAYOUT.offsets["sent_at_ns"], SOURCE_LAYOUT.offsets["sent_at_ns"] + 8)


class SourceCursor:
    """Reads each source stream forward."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._streams: dict[int, Iterator[tuple[int, int, bytes]]] = {}
        self._newest: dict[int, tuple[int, int, bytes]] = {}

    def take(self, source_stream_id: int, first_seq: int, count: int) -> Iterator[tuple[bytes, int, int]]:
        """(source packet, messages to skip, messages to take) for consecutive messages, after those taken before.

        Raises:
            SourceJournalError: the journal does not have them.
        """
        end_seq = first_seq + count
        while first_seq < end_seq:
            first, end, packet = self._newest.get(source_stream_id, (0, 0, b""))
            if end <= first_seq:
                self._newest[source_stream_id] = self._next(source_stream_id, first_seq)
                continue
            if first_seq < first:
                raise SourceJournalError(self._lack(source_stream_id, first_seq))
            taken = min(end, end_seq) - first_seq
            yield packet, first_seq - first, taken
            first_seq += taken

    @staticmethod
    def sent_at(packet: bytes, sent_at_ns: int) -> bytes:
        """The packet as the gateway sent it, with the time."""
        return packet[: SENT_AT.start] + sent_at_ns.to_bytes(8, "little") + packet[SENT_AT.stop :]

    def _next(self, source_stream_id: int, first_seq: int) -> tuple[int, int, bytes]:
        packets = self._streams.setdefault(source_stream_id, self._packets(source_stream_id))
        found = next(packets, None)
        if found is None:
            raise SourceJournalError(self._lack(source_stream_id, first_seq))
        return found

    def _packets(self, source_stream_id: int) -> Iterator[tuple[int, int, bytes]]:
        with Tailer(stream_folder(self._journal, source_stream_id)) as tailer:
            while (batch := tailer.read_batch(READ_COUNT, mixed=True)) is not None:
                for place in range(len(batch)):
                    packet = batch[place].tobytes()[PACKET_HEAD.size :]
                    header = unpack_source_header(packet)
                    yield header.first_source_seq, header.first_source_seq + header.message_count, packet

    def _lack(self, source_stream_id: int, first_seq: int) -> str:
        return (
            f"{self._journal} lacks message {first_seq:,} of source stream {source_stream_id}, which adapters "
            "converted; give the source journal of their session"
        )
