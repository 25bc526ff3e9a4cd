"""The log of a contribution gateway, and the turns that are written to it.

A turn is one segment with the records of all streams. `take_turn` appends it, and syncs; it is finished when the
gateway knows that it is held wherever it must be: here, or here and at the standby.

Invariant: everything before `end_index` is on the disk, also what a gateway had appended that was killed. A log that
failed, or that is not where it was opened, acknowledges nothing more.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.journal import Journal, Tailer
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import CONTROL_NAME
from tandemfeed.runtime.durable import rename_file
from tandemfeed.spark_feed.contributions.book import ContributionBook, Limits
from tandemfeed.spark_feed.contributions.contributed_stream import ContributedStream
from tandemfeed.spark_feed.contributions.records import Kind, StreamPlace, ended_record, term_in, term_record
from tandemfeed.spark_feed.contributions.recovery import Carried, first_segments, recover
from tandemfeed.spark_feed.journaling.presence import Presence
from tandemfeed.spark_feed.journaling.records import BLOCK_SIZE
from tandemfeed.spark_feed.sharing import make_for_journal

LOG_NAME = "log"


def log_folder(folder: Path) -> Path:
    """The log in the folder of a session."""
    return folder / LOG_NAME


def copy_id(folder: Path) -> bytes:
    """What names this copy of the log; empty: there is none."""
    if not (log_folder(folder) / CONTROL_NAME).exists():
        return b""
    with Control(log_folder(folder) / CONTROL_NAME, writable=False) as control:
        return control.journal_id.bytes


class LogEnd(NamedTuple):
    """Where a log ends.

    Attributes:
        term: the last one.
        end_index: after its last record; 0: it has none, or there is no log.
        is_ended: the session has ended.
    """

    term: int = 0
    end_index: int = 0
    is_ended: bool = False


def read_end(folder: Path) -> LogEnd:
    """Where the log in a session's folder ends."""
    found = LogEnd()
    if copy_id(folder):
        with Tailer(log_folder(folder)) as tailer:
            for index, record in tailer:
                term = term_in(record) if record[0] == Kind.TERM else found.term
                found = LogEnd(term, index + 1, found.is_ended or record[0] == Kind.ENDED)
    return found


def drop_unbegun(folder: Path) -> None:
    """Remove a log whose beginning a crash ended."""
    if copy_id(folder):
        with Tailer(log_folder(folder)) as tailer:
            is_begun = any(record[0] == Kind.BEGIN for _, record in tailer)
        if not is_begun:
            dropped = folder / f"{LOG_NAME}.dropped"
            shutil.rmtree(dropped, ignore_errors=True)
            rename_file(log_folder(folder), dropped)  # first, so that no power failure leaves a part of it
            shutil.rmtree(dropped)


class ContributionLog:
    """An open log, and its streams.

    Args:
        folder: of the session.
        places: of the streams, by number.
        wake: called by any thread when there is something to decide.
        clock_ns, wall_clock_ns: as of `ContributedStream`.
        carried: what the session before this one left; it counts only when the log is new.

    Attributes:
        streams: by number.
        end_index: after the last record; everything before it is on the disk.
        on_appended: called before the disk has what was appended: the leader of a replication need not wait for that.

    Raises:
        JournalOfOtherStream, WrongFormat, JournalError: it cannot be opened, or its disk refuses to be flushed.
    """

    def __init__(
        self,
        folder: Path,
        places: Mapping[int, StreamPlace],
        source_format: SourceFormat,
        wake: Callable[[], None],
        *,
        clock_ns: Callable[[], int],
        wall_clock_ns: Callable[[], int] | None = None,
        limits: Limits | None = None,
        messages_per_second: int = 20_000,
        carried: Mapping[int, Carried] | None = None,
    ) -> None:
        drop_unbegun(folder)
        books = {stream_id: ContributionBook(limits) for stream_id in places}
        group_id = make_for_journal(folder).group_id
        self._journal = Journal.open(log_folder(folder), block_size=BLOCK_SIZE, exclusive=True, group=group_id)
        self._turn_index: int | None = None
        self.end_index, self.on_appended = 0, _nothing
        try:
            self._presence = Presence(self._journal.folder)
            if next(iter(self._journal.records()), None) is None:
                for segment in first_segments(places, carried or {}):
                    self._append(segment)
            found = recover(self._journal.records(), places, books, clock_ns())
            self._sync()  # it is of a gateway that may have died before the flush
            self.streams = {
                stream_id: ContributedStream(
                    place, source_format, books[stream_id], found.streams[stream_id], wake,
                    messages_per_second=messages_per_second, clock_ns=clock_ns, wall_clock_ns=wall_clock_ns,
                )
                for stream_id, place in places.items()
            }  # fmt: skip
        except BaseException:
            self._journal.close()
            raise
        self.term, self.copy = found.term, copy_id(folder)
        self.recovered = {stream_id: each.packets for stream_id, each in found.streams.items()}
        self._counts: dict[int, int] = {}
        self.end_index = found.end_index

    @property
    def pending_count(self) -> int:
        """Accepted messages that are not decided."""
        return sum(stream.pending_count for stream in self.streams.values())

    @property
    def has_turn(self) -> bool:
        """Whether a turn is not finished."""
        return self._turn_index is not None

    def begin_term(self, term: int) -> None:
        """The gateway was granted a term: nothing follows the records of the former holder that it would not follow."""
        self._append([term_record(term)])

    def take_turn(self) -> None:
        """Decide what is due, and append it; `end_index` is after it then."""
        assert self._turn_index is None, "the turn before is not finished"
        turns = {stream_id: stream.take() for stream_id, stream in self.streams.items()}
        records = [record for turn in turns.values() for record in turn.records]
        self._counts = {stream_id: len(turn.records) for stream_id, turn in turns.items()}
        self._turn_index = self._append(records) if records else self.end_index

    def finish_turn(self) -> list[tuple[int, bytes]]:
        """The turn is held wherever it must be: answer the callers, and return the packets to send, as (index in the
        log, PACKET record)."""
        assert self._turn_index is not None, "there is no turn to finish"
        index, self._turn_index = self._turn_index, None
        packets: list[tuple[int, bytes]] = []
        for stream_id, stream in self.streams.items():
            packets += stream.finish(index)
            index += self._counts[stream_id]
        return packets

    def next_deadline_ns(self) -> int | None:
        """By `clock_ns`: when a turn has something to do, unless it is woken earlier; None: not before."""
        return min((each for stream in self.streams.values() if (each := stream.next_deadline_ns())), default=None)

    def carried(self) -> dict[int, Carried]:
        """What this session leaves to the next one."""
        return {stream_id: stream.carried() for stream_id, stream in self.streams.items()}

    def end(self) -> None:
        """End the session. It cannot continue: the next one has what `carried` returned."""
        self._append([ended_record()])

    def refuse_calls(self) -> None:
        """Refuse the calls that wait, and any other."""
        for stream in self.streams.values():
            stream.close()

    def close(self) -> None:
        """Close the file; what is pending stays in it."""
        self.refuse_calls()
        self._journal.close()

    def _append(self, records: list[bytes]) -> int:
        first_index = self._journal.append_batch(records)
        self.on_appended()
        self._sync()
        self.end_index = first_index + len(records)
        return first_index

    def _sync(self) -> None:
        self._journal.sync()
        self._presence.require()


def _nothing() -> None:
    """No replication waits for records."""
