"""A source journal on a disk that loses what was not flushed, or refuses: what is committed is there, once."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tandemfeed.journal import JournalError, JournalFailed
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.runtime.durable import FlushFailed
from tandemfeed.spark_feed.journaling import commit_log, end_session, stream_appender
from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.journaling.committed_records import last_commit
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.records import (
    COMMITS_NAME,
    Commit,
    NumberingPlan,
    RecordKind,
    SourceJournalError,
)
from tandemfeed.spark_feed.journaling.stream_appender import Appended, StreamAppender
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import BY_LETTER
from tandemfeed.spark_feed.numbering.rows.packing import Block
from tandemfeed.spark_feed.numbering.tasks import running
from tests.losing_disk import FailsAt, LosingDisk, losing_disk
from tests.spark_feed.source_material import (
    FEED,
    MESSAGES_MAX,
    SOURCE_FORMAT,
    batches_of,
    commits_of,
    journal_without_spark,
    make_recording,
    records_of,
    stream_records_of,
)

FORK = multiprocessing.get_context("fork")
BATCHES, ROWS = 4, 100
PATIENCE_S = 60.0
Batches = list[list[list[Block]]]


class Site:
    """A recording, and the journal that an undisturbed job makes of it."""

    def __init__(self, folder: Path) -> None:
        make_recording(folder / "recording", BATCHES * ROWS, ROWS)
        self.plan: NumberingPlan = numbering_plan(folder / "recording", SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX)
        self.batches: Batches = list(batches_of(folder / "recording"))
        journal_without_spark(folder / "recording", folder / "expected")
        self.expected, self.work = folder / "expected", folder / "work"
        self.work.mkdir()
        self.journal = self.work / "journals" / "today"

    def number(self, journal: Path, on_acknowledged: Callable[[int], object] = lambda batch_id: None) -> None:
        """Do the work of the job, from where it was left; call back after each acknowledgement."""
        with SourceJournalWriter(journal, self.plan) as writer:
            for batch_id in range(writer.last_commit.next_record_index // ROWS, BATCHES):
                writer.append_batch(batch_id, self.batches[batch_id])
                on_acknowledged(batch_id)
            writer.end()
            on_acknowledged(BATCHES)

    def check_whole(self, journal: Path) -> None:
        """Check that it is the journal of an undisturbed job."""
        assert stream_records_of(journal) == stream_records_of(self.expected)
        assert [commit[24:] for commit in commits_of(journal)] == [commit[24:] for commit in commits_of(self.expected)]
        assert records_of(journal) == records_of(self.expected)

    def check_has(self, image: Path, batch_id: int) -> None:
        """Check that an image has everything up to a batch; the last one is the end of the streams."""
        records = records_of(image)
        assert records == records_of(self.expected)[: len(records)]
        committed = [Commit.decode(each).batch_id for each in records if each[0] == RecordKind.COMMIT]
        assert committed[-1] >= min(batch_id, BATCHES - 1)
        if batch_id == BATCHES:
            assert records[-1][0] == RecordKind.END


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for module in (commit_log, stream_appender):
        monkeypatch.setattr(module, "BLOCK_SIZE", BLOCK_SIZE_MIN)
    return Site(tmp_path)


@pytest.fixture
def disk(site: Site, tmp_path: Path) -> Iterator[LosingDisk]:
    with losing_disk(site.work, tmp_path / "kept") as found:
        yield found


def in_child(work: Callable[[], object]) -> None:
    """Run something in a process that is then killed, at the latest when it returns."""

    def run() -> None:
        try:
            work()
        finally:
            os._exit(1)

    process = FORK.Process(target=run)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 1


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_what_is_committed_survives_a_power_failure_and_the_rest_is_numbered_once(
    site: Site, disk: LosingDisk, tmp_path: Path, seed: int | None
) -> None:
    chance, images = None if seed is None else random.Random(seed), list[tuple[Path, int]]()

    def take_image(batch_id: int) -> None:
        images.append((disk.image(tmp_path / f"image-{batch_id}", chance) / "journals" / "today", batch_id))

    site.number(site.journal, take_image)
    assert len(images) == BATCHES + 1
    for image, batch_id in images:
        site.check_has(image, batch_id)
        site.number(image)
        site.check_whole(image)


def die(*_: object) -> None:
    """In place of a flush: the process is killed."""
    os._exit(1)


def begin(site: Site) -> None:
    CommitLog(site.journal, site.plan)


def commit(site: Site) -> None:
    writer = SourceJournalWriter(site.journal, site.plan)
    writer._sync = die  # type: ignore[method-assign]
    writer.append_batch(0, site.batches[0])


def end(site: Site) -> None:
    log = CommitLog(site.journal, site.plan)
    log._sync = die  # type: ignore[method-assign]
    log.end()


@pytest.mark.parametrize(
    ("work", "kinds"), [(begin, [RecordKind.BEGIN]), (commit, [RecordKind.BEGIN, RecordKind.COMMIT]),
    (end, [RecordKind.BEGIN, RecordKind.END, RecordKind.END])],
)  # fmt: skip
def test_what_a_killed_driver_appended_without_a_flush_is_on_the_disk_before_it_counts(
    site: Site,
    disk: LosingDisk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[Site], None],
    kinds: list[RecordKind],
) -> None:
    with monkeypatch.context() as patched:
        if work is begin:
            patched.setattr(CommitLog, "_sync", die)
        in_child(lambda: work(site))
    assert [record[0] for record in commits_of(site.journal)] == kinds
    with CommitLog(site.journal, site.plan) as log:
        assert (log.last_commit.next_record_index, log.is_ended) == (ROWS if work is commit else 0, work is end)
        image = disk.image(tmp_path / "image") / "journals" / "today"
        assert [record[0] for record in commits_of(image)] == kinds
        if work is commit:
            site.check_has(image, 0)


def test_what_a_killed_task_appended_without_a_flush_is_on_the_disk_before_it_is_committed(
    site: Site, disk: LosingDisk, tmp_path: Path
) -> None:
    def append_and_die() -> None:
        with CommitLog(site.journal, site.plan) as log:
            continued = log.continuation
        for place, stream_id in enumerate(FEED.source_stream_ids):
            appender = StreamAppender(continued, stream_id)
            appender.append([part[place] for part in site.batches[0]])

    in_child(append_and_die)
    assert all(stream_records_of(site.journal).values())
    with SourceJournalWriter(site.journal, site.plan) as writer:
        writer.append_batch(0, site.batches[0])
        site.check_has(disk.image(tmp_path / "image") / "journals" / "today", 0)


@pytest.mark.parametrize("operation", ["flush", "flush_folder"])
def test_whichever_flush_fails_nothing_is_committed_and_the_next_job_numbers_each_record_once(
    site: Site, disk: LosingDisk, tmp_path: Path, operation: str
) -> None:
    failed_count = 0
    for first in range(1, 200):
        journal, acknowledged = site.work / str(first) / "journal", list[int]()
        disk.fault = fault = FailsAt(first, operations=(operation,))
        with suppress(JournalError, FlushFailed):
            site.number(journal, acknowledged.append)
        if not fault.failed:
            break
        failed_count += 1
        if acknowledged:
            site.check_has(disk.image(tmp_path / f"failed-{first}") / str(first) / "journal", acknowledged[-1])
        site.number(journal)
        site.check_whole(disk.image(tmp_path / f"image-{first}") / str(first) / "journal")
    assert failed_count > (20 if operation == "flush" else 2)


@pytest.mark.parametrize("folder", [COMMITS_NAME, "stream-1"])
def test_a_disk_that_fails_for_good_ends_every_attempt_with_a_sentence(
    site: Site, disk: LosingDisk, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    site.number(site.journal)
    before = commits_of(site.journal)
    journal = site.work / "other" / "journal"
    with SourceJournalWriter(journal, site.plan) as writer:
        writer.append_batch(0, site.batches[0])

    def fault(operation: str, path: Path) -> None:
        if folder in (path.name, path.parent.name) and operation in ("flush", "rewrite"):
            raise OSError(5, os.strerror(5))

    disk.fault = fault
    for _ in range(3):
        with pytest.raises(JournalFailed, match=r"the disk refuse[ds] a flush"):
            site.number(journal)
        assert last_commit(journal) == writer.last_commit or folder == COMMITS_NAME
    if folder == COMMITS_NAME:
        assert end_session.main(["--journal", str(journal)]) == 2
        assert "the disk refuses a flush" in capsys.readouterr().err
    disk.fault = lambda operation, path: None
    site.number(journal)
    site.check_whole(journal)
    assert commits_of(site.journal) == before


def test_a_task_whose_flush_fails_reports_a_sentence_and_its_rerun_completes_the_batch(
    site: Site, disk: LosingDisk
) -> None:
    with CommitLog(site.journal, site.plan) as log:
        continued = log.continuation
        parts = site.batches[0]
        disk.fault = FailsAt(2, matching=".tfj")
        problem = running._append_parts(continued, [0, 1], parts)
        assert isinstance(problem, str)
        assert "the disk refused a flush" in problem
        done = running._append_parts(continued, [0, 1], parts)
        assert not isinstance(done, str)
        assert log.commit(0, done) == ROWS


@pytest.mark.parametrize("name", [COMMITS_NAME, "stream-2"])
def test_a_journal_whose_folder_was_removed_commits_nothing_more(site: Site, name: str) -> None:
    with SourceJournalWriter(site.journal, site.plan) as writer:
        writer.append_batch(0, site.batches[0])
        if name == COMMITS_NAME:
            removed = site.journal.rename(site.journal.with_name("removed"))
            with pytest.raises(SourceJournalError, match="does not have the driver's commit log"):
                writer.append_batch(1, site.batches[1])
            removed.rename(site.journal)
            (site.journal / name).rename(site.work / "removed")
            appended = [Appended(each, end, 2 * ROWS) for each, end in writer.last_commit.streams.items()]
            with pytest.raises(JournalError, match="was removed or replaced while it was open"):
                writer.commit(1, appended)
            (site.work / "removed").rename(site.journal / name)
        else:
            appender = StreamAppender(writer.continuation, 2)
            appender.append([part[1] for part in site.batches[1]])
            (site.journal / name).rename(site.work / "removed")
            with pytest.raises(JournalError, match="was removed or replaced while it was open"):
                appender.close()
