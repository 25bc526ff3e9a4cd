"""Reads a source journal in sending order: the committed packets of all source streams, merged by their last record.

A COMMIT follows the last of its packets, so the order is a function of the journal alone. Records after the last
COMMIT are not returned: their micro-batch may be appended again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tandemfeed.journal import Batch, Tailer
from tandemfeed.spark_feed.journaling.records import (
    Commit,
    RecordKind,
    SourceJournalError,
    StreamEnd,
    commits_folder,
    packet_place,
    packets_in,
    stream_folder,
)

READ_COUNT = 65_536  # records per batch when reading from the start


class CommittedRecord(NamedTuple):
    """A record, and its index in its own journal: that of the stream, or the commit log."""

    journal_index: int
    record: bytes


class _Stream:
    """A source stream's journal, read up to the last commit."""

    def __init__(self, folder: Path) -> None:
        self.tailer = Tailer(folder)
        self.end_index = 0
        self._read_to = 0

    def next(self) -> CommittedRecord | None:
        """The next committed packet; None if there is none."""
        if self._read_to >= self.end_index:
            return None
        entry = self.tailer.read()
        if entry is None or entry[0] >= self.end_index:
            raise SourceJournalError(
                f"{self.tailer.folder}: the packets before index {self.end_index:#018x} were committed but are missing "
                "from the journal: restore the journal from a copy, or give a new journal and checkpoint"
            )
        self._read_to = entry[0] + 1
        return CommittedRecord(*entry)

    def skip_to(self, position: int) -> Iterator[Batch]:
        """The committed packets whose last record is before a record index; the next one is read next."""
        while self._read_to < self.end_index and (batch := self.tailer.read_batch(READ_COUNT)) is not None:
            batch = batch.until(self.end_index)
            places = packets_in(batch).last_record_index
            count = sum(place < position for place in places)
            if count:
                self._read_to = batch.first_index + count
                yield batch.until(self._read_to)
            if count < len(batch):
                self.tailer.to_index(batch.first_index + count)
                return
        if self._read_to:
            self.tailer.to_index(self._read_to)


class CommittedRecords:
    """A reader of a source journal, which need not exist yet. Not thread-safe.

    Args:
        journal: its folder.
        source_stream_ids: all source streams of the feed.

    Raises:
        SourceJournalError: the journal has the former layout.
    """

    def __init__(self, journal: Path, source_stream_ids: Sequence[int]) -> None:
        self._commits = Tailer(commits_folder(journal))
        self._streams = {stream_id: _Stream(stream_folder(journal, stream_id)) for stream_id in source_stream_ids}
        self._merging: list[tuple[int, int, CommittedRecord]] = []  # a heap: the next packet of each stream
        self._commit: CommittedRecord | None = None  # follows the packets that are merged

    def read(self) -> CommittedRecord | None:
        """The next record: BEGIN, or a PACKET, or the COMMIT of the packets before it, or an END; None: none yet.

        Raises:
            SourceJournalError: a committed packet is missing.
        """
        if not self._merging and self._commit is None:
            entry = self._commits.read()
            if entry is None or entry[1][0] != RecordKind.COMMIT:
                return None if entry is None else CommittedRecord(*entry)
            self._take(CommittedRecord(*entry))
        if not self._merging:
            commit, self._commit = self._commit, None
            return commit
        _, stream_id, packet = heappop(self._merging)
        self._push(stream_id)
        return packet

    def skip_to(self, position: int) -> Iterator[tuple[int, Batch]]:
        """Go past everything before a record index; yields each stream's packets before it, with the stream's id.

        Call it before any `read` but that of the BEGIN record.
        """
        while (entry := self._commits.read()) is not None:
            if entry[1][0] == RecordKind.COMMIT:
                commit = Commit.decode(entry[1])
                self._set_ends(commit.streams)
                if commit.next_record_index >= position:
                    break
            elif entry[1][0] == RecordKind.END:
                self._commits.to_index(entry[0])
                break
        for stream_id, stream in self._streams.items():
            for batch in stream.skip_to(position):
                yield stream_id, batch
        if entry is not None and entry[1][0] == RecordKind.COMMIT:
            self._take(CommittedRecord(*entry))

    def close(self) -> None:
        """Release the journals."""
        self._commits.close()
        for stream in self._streams.values():
            stream.tailer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _take(self, commit: CommittedRecord) -> None:
        """Begin with the packets of a commit."""
        self._commit = commit
        self._set_ends(Commit.decode(commit.record).streams)
        for stream_id in self._streams:
            self._push(stream_id)

    def _set_ends(self, ends: dict[int, StreamEnd]) -> None:
        for stream_id, end in ends.items():
            self._streams[stream_id].end_index = end.end_index

    def _push(self, stream_id: int) -> None:
        packet = self._streams[stream_id].next()
        if packet is not None:
            heappush(self._merging, (packet_place(packet.record), stream_id, packet))


def begin_record(journal: Path) -> bytes | None:
    """The BEGIN record of a source journal; None if the journal is still empty.

    Raises:
        SourceJournalError: it is not a source journal, or has the former layout.
    """
    with Tailer(commits_folder(journal)) as tailer:
        entry = tailer.read()
    if entry is not None and entry[1][0] != RecordKind.BEGIN:
        raise SourceJournalError(f"{journal} is not a source journal; give the folder that the source job writes to")
    return None if entry is None else entry[1]


def last_commit(journal: Path) -> Commit | None:
    """The last COMMIT of a source journal; None if there is none."""
    with Tailer(commits_folder(journal)) as tailer:
        tailer.to_end()
        while (entry := tailer.read_back()) is not None:
            if entry[1][0] == RecordKind.COMMIT:
                return Commit.decode(entry[1])
    return None


class CommittedEnd:
    """Follows the end of what is committed in a source journal, which need not exist yet."""

    def __init__(self, journal: Path) -> None:
        self._commits = Tailer(commits_folder(journal))
        self._next_record_index = 0

    @property
    def next_record_index(self) -> int:
        """The first record that is not committed."""
        for _, record in self._commits:
            if record[0] == RecordKind.COMMIT:
                self._next_record_index = Commit.decode(record).next_record_index
        return self._next_record_index

    def close(self) -> None:
        """Release the log."""
        self._commits.close()
