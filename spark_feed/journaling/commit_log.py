"""The commit log of a source journal, which its driver appends to.

A micro-batch is done when its COMMIT is on the disk; Spark learns it afterwards. So the log decides what is numbered,
and never Spark's batch ids, which are stored for people to read.

Invariants: a COMMIT continues exactly where the last one ended, in every stream. It is appended when the disk has the
packets that it covers, and it counts when the disk has it, also if a driver that was killed appended it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from tandemfeed.journal import Journal
from tandemfeed.spark_feed.journaling.presence import Presence
from tandemfeed.spark_feed.journaling.records import (
    BLOCK_SIZE,
    Commit,
    End,
    NumberingPlan,
    RecordKind,
    SourceJournalError,
    StreamEnd,
    commits_folder,
    plan_document,
)
from tandemfeed.spark_feed.journaling.stream_appender import Appended, Continuation
from tandemfeed.spark_feed.sharing import make_for_journal


class CommitLog:
    """The log, open for its only driver.

    Args:
        journal: the folder of the source journal; created if it does not exist.
        plan: must equal the plan that the journal was started with.
        group: with which the folder is shared; None: as it is, or as its parent.

    Raises:
        SourceJournalError: the journal was started with a different plan, or is not a source journal.
        JournalLocked: another driver numbers into it. JournalFailed: the disk refuses to be flushed.
    """

    def __init__(self, journal: Path, plan: NumberingPlan, *, group: str | None = None) -> None:
        self.folder, self.plan = journal, plan
        self.last_commit = Commit(0, 0, {stream_id: StreamEnd() for stream_id in plan.feed.source_stream_ids})
        self.is_ended = False
        group_id = make_for_journal(journal, group).group_id
        self._log = Journal.open(commits_folder(journal), block_size=BLOCK_SIZE, exclusive=True, group=group_id)
        try:
            self._presence = Presence(self._log.folder)
            self._recover()
            self._sync()  # what it has is of a driver that may have died before the flush
        except BaseException:
            self._log.close()
            raise

    @property
    def continuation(self) -> Continuation:
        """What the tasks of the next micro-batch continue."""
        return Continuation(self.folder, self.plan, self.last_commit, self.is_ended)

    def commit(self, batch_id: int, appended: Iterable[Appended]) -> int:
        """Make a micro-batch part of the session; returns how many records were new.

        Args:
            appended: what each stream's task appended; it is on the disk.

        Raises:
            SourceJournalError: a task is missing, or the tasks saw different records.
            JournalFailed, JournalError: the disk refused; nothing is committed, and the log takes nothing more.
        """
        done = {each.source_stream_id: each for each in appended}
        before = self.last_commit.next_record_index
        ends = {each.next_record_index for each in done.values()}
        if done.keys() != self.last_commit.streams.keys() or len(ends) != 1:
            raise SourceJournalError(
                f"batch {batch_id}: the tasks of source streams {sorted(done)} ended at records {sorted(ends)}; every "
                "stream must have one task that ends where the others do: start the job again"
            )
        (end,) = ends
        if end > before:
            commit = Commit(batch_id, end, {stream_id: each.end for stream_id, each in done.items()})
            self._log.append(commit.encode())
            self._sync()  # before Spark considers the batch done, because it will not offer these records again
            self.last_commit = commit
        return end - before

    def end(self) -> None:
        """Mark the end of every stream; a second call does nothing."""
        if not self.is_ended:
            ends = sorted(self.last_commit.next_source_seqs.items())
            self._log.append_batch([End(stream_id, seq).encode() for stream_id, seq in ends])
            self._sync()
            self.is_ended = True

    def close(self) -> None:
        """Release the log."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _recover(self) -> None:
        is_begun = False
        for _, record in self._log.records():
            if not is_begun:
                self._check_plan(record)
                is_begun = True
            elif record[0] == RecordKind.COMMIT:
                self.last_commit = Commit.decode(record)
            elif record[0] == RecordKind.END:
                self.is_ended = True
        if not is_begun:
            self._log.append(self.plan.encode())

    def _sync(self) -> None:
        self._log.sync()
        self._presence.require()

    def _check_plan(self, record: bytes) -> None:
        if record == self.plan.encode():
            return
        if record[0] != RecordKind.BEGIN:
            raise SourceJournalError(f"{self.folder} is not a source journal; give another folder")
        was, now = plan_document(record), plan_document(self.plan.encode())
        changed = {key: (was.get(key), now.get(key)) for key in was | now if was.get(key) != now.get(key)}
        text = "; ".join(f"{key} was {before!r}, is {after!r}" for key, (before, after) in changed.items())
        raise SourceJournalError(
            f"{self.folder} was started with other options, on which its numbers depend ({text}): give the same "
            "options, or a new journal and checkpoint"
        )
