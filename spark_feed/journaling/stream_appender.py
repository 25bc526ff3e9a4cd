"""Appends a micro-batch's packets to the journal of one source stream, by the task that owns the stream.

A task may run twice: after a crash, or because Spark started it a second time. It then finds what its predecessor has
appended after the committed end, compares it byte by byte with what it would append itself, and appends the rest.
Invariants: after the committed end, the journal of a stream has a prefix of the packets that follow, however often and
far they were appended; when `close` returns, all that it reports is on the disk, also what a predecessor had appended.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tandemfeed.feedcore.pause_free_clock import PauseFreeClock
from tandemfeed.journal import Journal, JournalLocked, NoSuchRecord
from tandemfeed.journal.format.layout import CONTROL_NAME
from tandemfeed.spark_feed.journaling.presence import Presence
from tandemfeed.spark_feed.journaling.records import (
    BLOCK_SIZE,
    SEGMENT_SIZE_MAX,
    Commit,
    NumberingPlan,
    SourceJournalError,
    StreamEnd,
    commits_folder,
    stream_folder,
)
from tandemfeed.spark_feed.numbering.rows.packing import Block, Packed, join_blocks, pack_stream
from tandemfeed.spark_feed.sharing import access_in

SECOND_NS = 1_000_000_000
TWIN_PATIENCE_NS = 60 * SECOND_NS  # another task may still append to the stream: a micro-batch takes a few seconds
PAUSE_NS = SECOND_NS  # this process was paused if it did not try for longer
TWIN_POLL_S = 0.005
READ_COUNT = 4_096


class Appended(NamedTuple):
    """What a task did with its part of a micro-batch."""

    source_stream_id: int
    end: StreamEnd
    next_record_index: int


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a micro-batch continues; the driver gives it to the tasks.

    Attributes:
        journal: the folder of the source journal.
        is_ended: the streams have ended, so no record may follow.
    """

    journal: Path
    plan: NumberingPlan
    commit: Commit
    is_ended: bool


class StreamAppender:
    """The owner of a source stream for one task. It holds the stream's journal until it is closed.

    Args:
        segment_size_max: of the journal.
    """

    def __init__(self, continued: Continuation, stream_id: int, segment_size_max: int = SEGMENT_SIZE_MAX) -> None:
        check_host(continued.journal)
        self._continued, self._stream_id, self._segment_size_max = continued, stream_id, segment_size_max
        self._end = continued.commit.streams[stream_id]
        self._next_record_index = continued.commit.next_record_index
        self._stream: Journal | None = None
        self._presence: Presence | None = None
        self._is_compared = False  # no packet is in the journal that is not appended here

    def append(self, blocks: Sequence[Block]) -> None:
        """Number, pack and append the messages of the records that follow.

        Args:
            blocks: of this stream, in any order; together they have every record up to the last.

        Raises:
            SourceJournalError: records are missing, a message fits in no packet, the rerun differs from the journal, or
                the streams have ended.
        """
        block = join_blocks(blocks, self._next_record_index)
        if self._continued.is_ended and block.end_record_index > self._next_record_index:
            raise SourceJournalError(
                f"record {self._next_record_index} comes after the end of the streams in {self._continued.journal}: "
                "give the new session a new journal and checkpoint"
            )
        self._next_record_index = block.end_record_index
        if not block.sizes.size:
            return
        packed = pack_stream(self._continued.plan, self._stream_id, self._end.next_source_seq, block)
        if self._stream is None:
            self._stream = _open(stream_folder(self._continued.journal, self._stream_id))
            self._presence = Presence(self._stream.folder)
        place, end_index = (0, self._end.end_index) if self._is_compared else self._compare(self._stream, packed)
        end_index = self._append(self._stream, packed, place, end_index)
        self._end = StreamEnd(self._end.next_source_seq + block.sizes.size, end_index)

    def close(self) -> Appended:
        """Flush the journal to the disk and release it.

        Raises:
            JournalFailed, JournalError: the disk refused; commit nothing of the micro-batch.
        """
        if self._stream is not None and self._presence is not None:
            self._stream.close()
            self._presence.require()
        return Appended(self._stream_id, self._end, self._next_record_index)

    def _compare(self, stream: Journal, packed: Packed) -> tuple[int, int]:
        found = _compare(stream, self._end.end_index, packed)
        self._is_compared = found[0] < packed.ends.size
        return found

    def _append(self, stream: Journal, packed: Packed, place: int, end_index: int) -> int:
        """Append what is missing; returns the index after the last of these packets."""
        while place < packed.ends.size:
            start = int(packed.ends[place - 1]) if place else 0
            following = int(np.searchsorted(packed.ends, start + self._segment_size_max, side="right"))
            following = max(following, place + 1)
            ends = packed.ends[place:following]
            first_index = stream.append_columns(packed.data[start : int(ends[-1])], ends - start)
            end_index = first_index + ends.size
            place = following
        return end_index


def append_to_stream(
    continued: Continuation, stream_id: int, blocks: Sequence[Block], segment_size_max: int = SEGMENT_SIZE_MAX
) -> Appended:
    """Number, pack, append and flush the messages of a source stream that follow the last commit.

    Args:
        blocks: of this stream, in any order; together they have every record of the micro-batch.

    Raises:
        SourceJournalError, JournalError: as of `StreamAppender.append` and `close`.
    """
    appender = StreamAppender(continued, stream_id, segment_size_max)
    try:
        appender.append(blocks)
    finally:
        appended = appender.close()
    return appended


def check_host(journal: Path) -> None:
    """Refuse to work on a host where the gateway would never find what a task appends.

    Raises:
        SourceJournalError: this host does not have the driver's commit log.
    """
    if not (commits_folder(journal) / CONTROL_NAME).is_file():
        raise SourceJournalError(
            f"{journal}: the executor's host {socket.gethostname()} does not have the driver's commit log: tasks must "
            "number on the host of the source journal, so start Spark's workers there"
        )


def _open(folder: Path, clock_ns: Callable[[], int] = time.monotonic_ns) -> Journal:
    """The stream's journal, which no other task appends to; closing it flushes it to the disk."""
    group_id = access_in(folder.parent).group_id
    clock = PauseFreeClock(clock_ns(), pause_ns=PAUSE_NS, moment_ns=0, counted_ns=0)
    give_up_at_ns = clock.now_ns + TWIN_PATIENCE_NS
    while True:
        try:
            return Journal.open(folder, block_size=BLOCK_SIZE, exclusive=True, group=group_id)
        except JournalLocked as locked:
            if clock.look(clock_ns()) >= give_up_at_ns:
                raise SourceJournalError(str(locked)) from locked
            time.sleep(TWIN_POLL_S)


def _compare(stream: Journal, committed_index: int, packed: Packed) -> tuple[int, int]:
    """(how many of the packets are in the journal after the committed end, the index after them).

    Raises:
        SourceJournalError: what is there differs, or the journal ends before the committed end.
    """
    count, end_index = 0, committed_index
    with stream.tailer() as tailer:
        try:
            tailer.to_index(committed_index) if committed_index else tailer.to_start()
        except NoSuchRecord as missing:
            raise SourceJournalError(
                f"{stream.folder}: packets that were committed are missing ({missing}): restore the journal from a "
                "copy, or give a new journal and checkpoint"
            ) from missing
        while count < packed.ends.size and (batch := tailer.read_batch(READ_COUNT)) is not None:
            batch = batch.until(batch.first_index + packed.ends.size - count)
            ends = packed.ends[count : count + len(batch)]
            start = int(packed.ends[count - 1]) if count else 0
            is_equal = np.array_equal(batch.sizes, np.diff(ends, prepend=start))
            if not is_equal or not np.array_equal(batch.packed(), packed.data[start : int(ends[-1])]):
                raise SourceJournalError(
                    f"{stream.folder}: the rerun of a micro-batch differs from what is already in the journal, from "
                    f"index {batch.first_index:#018x} on, because the recording has changed: restore the recording, "
                    "or give a new journal and checkpoint"
                )
            count, end_index = count + len(batch), batch.next_index
    return count, end_index
