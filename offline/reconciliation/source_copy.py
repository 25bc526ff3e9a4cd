"""What a source journal has of its session: how many messages each source stream has, and their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tandemfeed.journal import Batch, Tailer
from tandemfeed.offline.reconciliation.output_copy import ReconciliationError
from tandemfeed.spark_feed.journaling.committed_records import begin_record, last_commit
from tandemfeed.spark_feed.journaling.records import (
    PACKET_FIELDS,
    NumberingPlan,
    RecordKind,
    StreamEnd,
    commits_folder,
    stream_folder,
)
from tandemfeed.spark_feed.numbering.tasks.quarantine import quarantined_count

READ_COUNT = 8_192  # packets


@dataclass(frozen=True, slots=True)
class SourceStream:
    """A source stream in a journal.

    Attributes:
        message_count: its messages are numbered from 1 to this.
        digest: of its packets.
        problem: what is wrong with its packets; empty: nothing.
    """

    source_stream_id: int
    message_count: int
    digest: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SourceCopy:
    """A source journal, up to its last commit.

    Attributes:
        record_count: rows of the recording.
        quarantined_count: rows in the quarantine table; None: there is no table.
        is_ended: the end of the streams is declared.
    """

    journal: Path
    feed: str
    session: int
    streams: tuple[SourceStream, ...]
    record_count: int
    quarantined_count: int | None
    is_ended: bool

    @property
    def message_count(self) -> int:
        """Of all streams."""
        return sum(each.message_count for each in self.streams)

    def problems(self) -> Iterator[str]:
        """What is wrong, as sentences."""
        for each in self.streams:
            if each.problem:
                yield f"{self.journal}: source stream {each.source_stream_id}: {each.problem}"
        refused_count = self.record_count - self.message_count
        if self.quarantined_count is not None and self.quarantined_count != refused_count:
            yield (
                f"{self.journal}: {refused_count:,} of {self.record_count:,} rows made no message, but the quarantine "
                f"table has {self.quarantined_count:,}"
            )


def read_source(journal: Path, quarantine: Path) -> SourceCopy:
    """Read a source journal.

    Args:
        quarantine: folder of the quarantine table; it need not exist.

    Raises:
        ReconciliationError: it has no commit yet.
        SourceJournalError: it is not a source journal.
    """
    begin, commit = begin_record(journal), last_commit(journal)
    if begin is None or commit is None:
        raise ReconciliationError(f"{journal} has no commit; give the folder that the source job writes to")
    feed = NumberingPlan.decode(begin).feed
    streams = tuple(_read_stream(journal, stream_id, end) for stream_id, end in sorted(commit.streams.items()))
    with Tailer(commits_folder(journal)) as tailer:
        tailer.to_end()
        last = tailer.read_back()
    is_ended = last is not None and last[1][0] == RecordKind.END
    quarantined = quarantined_count(quarantine, commit.next_record_index) if quarantine.is_dir() else None
    return SourceCopy(journal, feed.name, feed.session, streams, commit.next_record_index, quarantined, is_ended)


def _read_stream(journal: Path, stream_id: int, end: StreamEnd) -> SourceStream:
    digest, next_seq = hashlib.blake2b(digest_size=8), 1
    with Tailer(stream_folder(journal, stream_id)) as tailer:
        while (batch := tailer.read_batch(READ_COUNT, mixed=True)) is not None and batch.first_index < end.end_index:
            batch = batch.until(end.end_index)
            if (found := _next_seq(batch, next_seq)) < 0:
                problem = f"the packets do not continue after message {-found - 1:,}"
                return SourceStream(stream_id, next_seq - 1, "", problem)
            next_seq = found
            digest.update(batch.packed().data)
    if next_seq != end.next_source_seq:
        missing = f"messages {next_seq:,}–{end.next_source_seq - 1:,} were committed but are not in the journal"
        return SourceStream(stream_id, next_seq - 1, "", missing)
    return SourceStream(stream_id, next_seq - 1, digest.hexdigest())


def _next_seq(batch: Batch, next_seq: int) -> int:
    """The number after a batch; negative: minus the first number that is missing."""
    packets = batch.heads(PACKET_FIELDS.itemsize).view(PACKET_FIELDS).reshape(-1)["packet"]
    firsts = packets["first_source_seq"].astype(np.int64)
    ends = firsts + packets["message_count"]
    expected = np.concatenate([[next_seq], ends])
    wrong = np.flatnonzero(firsts != expected[:-1])
    return -int(expected[wrong[0]]) if len(wrong) else int(expected[-1])
