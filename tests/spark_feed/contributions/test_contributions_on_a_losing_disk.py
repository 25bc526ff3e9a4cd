"""A contribution log on a disk that loses what was not flushed, or refuses: what was acknowledged is there, once."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tandemfeed.journal import JournalError, JournalFailed
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.spark_feed.contributions import contribution_log
from tandemfeed.spark_feed.contributions.book import ContributionRefused, Limits
from tandemfeed.spark_feed.contributions.contribution_log import ContributionLog, log_folder, read_end
from tandemfeed.spark_feed.contributions.former_session import FormerSession
from tandemfeed.spark_feed.contributions.records import StreamPlace
from tandemfeed.spark_feed.contributions.recovery import Carried
from tests.losing_disk import FailsAt, LosingDisk, losing_disk
from tests.spark_feed.contributions.contribution_material import ALICE, PLACE, SOURCE_FORMAT, A, trade
from tests.spark_feed.contributions.test_contributed_stream import NEXT_DAY, SECOND, Site, contribute

FORK = multiprocessing.get_context("fork")
PATIENCE_S = 60.0


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(contribution_log, "BLOCK_SIZE", BLOCK_SIZE_MIN)
    monkeypatch.setattr(contribution_log, "ContributionLog", ContributionLog)
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def disk(work: Path, tmp_path: Path) -> Iterator[LosingDisk]:
    with losing_disk(work, tmp_path / "kept") as found:
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


def die(*_: object) -> None:
    """In place of a flush: the process is killed."""
    os._exit(1)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_what_was_acknowledged_survives_a_power_failure(
    work: Path, disk: LosingDisk, tmp_path: Path, seed: int | None
) -> None:
    chance, images = None if seed is None else random.Random(seed), list[tuple[Path, int, int]]()
    with closing(Site(work / "today")) as site:
        site.open(ALICE)
        for first in range(1, 9, 2):
            contribute(site, ALICE, first, 2, hold_ns=SECOND if first % 4 == 1 else 0)
            site.call(site.stream.cancel, "alice", "model", [first])
            image = disk.image(tmp_path / f"image-{first}", chance) / "today"
            images.append((image, first + 2, len(site.sent)))
    for image, next_number, sent_count in images:
        with closing(Site(image)) as again:
            assert again.open(ALICE) == next_number
            assert sum(count for _, count, _ in again.log.recovered[1]) == sent_count
            again.now_ns += SECOND
            again.turn()
            cancelled = [number for number in range(1, next_number) if number % 4 == 1]
            assert again.call(again.stream.cancel, "alice", "model", cancelled).numbers == cancelled


def test_what_a_killed_gateway_appended_without_a_flush_is_on_the_disk_before_it_counts(
    work: Path, disk: LosingDisk, tmp_path: Path
) -> None:
    def contribute_and_die() -> None:
        site = Site(work / "today")
        site.open(ALICE)
        site.log._sync = die  # type: ignore[method-assign]
        contribute(site, ALICE, 1, 5)

    in_child(contribute_and_die)
    with closing(Site(work / "today")) as site:
        assert [each[:2] for each in site.log.recovered[1]] == [(1, 5)]
        assert site.log.end_index == read_end(disk.image(tmp_path / "image") / "today").end_index


def test_a_session_ends_only_when_the_next_ones_beginning_is_on_the_disk(
    work: Path, disk: LosingDisk, tmp_path: Path
) -> None:
    """Also if the process was killed in between: what is pending is always in one of the two."""
    with closing(Site(work / "day 1")) as first:
        first.open(ALICE)
        contribute(first, ALICE, 1, 3, hold_ns=1)

    def hand_over(*, dying: bool) -> None:
        def open_log(former: FormerSession | None = None, carried: dict[int, Carried] | None = None) -> ContributionLog:
            folder, place = (work / "day 2", NEXT_DAY) if former is None else (former.folder, PLACE)
            return opened(folder, place, carried)

        former = FormerSession(work / "day 1", [1], work / "day 2", NEXT_DAY.session)
        if dying:
            ContributionLog.end = die  # type: ignore[method-assign]
            ContributionLog._sync = lambda _self: None  # type: ignore[method-assign]
        former.hand_over(open_log).close()  # type: ignore[arg-type]

    in_child(lambda: hand_over(dying=True))
    hand_over(dying=False)
    image = disk.image(tmp_path / "image")
    assert read_end(image / "day 1").is_ended
    with closing(Site(image / "day 2", NEXT_DAY)) as second:
        assert (second.stream.pending_count, second.open(ALICE)) == (3, 4)


def opened(folder: Path, place: StreamPlace, carried: dict[int, Carried] | None = None) -> ContributionLog:
    return ContributionLog(
        folder, {1: place}, SOURCE_FORMAT, lambda: None, clock_ns=lambda: 1_000 * SECOND, limits=Limits(),
        carried=carried,
    )  # fmt: skip


@pytest.mark.parametrize("operation", ["flush", "flush_folder"])
def test_whichever_flush_fails_nothing_is_acknowledged_and_a_retry_accepts_each_message_once(
    work: Path, disk: LosingDisk, tmp_path: Path, operation: str
) -> None:
    failed_count = 0
    for first_flush in range(1, 100):
        folder, acknowledged = work / str(first_flush), 0
        disk.fault = fault = FailsAt(first_flush, operations=(operation,))
        with suppress(JournalFailed), closing(Site(folder)) as site:
            site.open(ALICE)
            for first in range(1, 11, 2):
                contribute(site, ALICE, first, 2)
                acknowledged = first + 1
        if not fault.failed:
            break
        failed_count += 1
        with closing(Site(disk.image(tmp_path / f"failed-{first_flush}") / str(first_flush))) as image:
            assert image.open(ALICE) > acknowledged
        with closing(Site(folder)) as again:
            assert again.open(ALICE) > acknowledged
            contribute(again, ALICE, 1, 10)  # all of it again
            recovered = sum(count for _, count, _ in again.log.recovered[1])
            assert again.sent == [(number, number) for number in range(recovered + 1, 11)]
            assert again.stream.next_source_seq == 11
    assert failed_count > (10 if operation == "flush" else 1)


def test_a_call_in_a_turn_whose_flush_fails_is_refused_and_the_log_takes_nothing_more(
    work: Path, disk: LosingDisk
) -> None:
    site = Site(work / "today")
    with ThreadPoolExecutor(1) as caller:
        site.open(ALICE)
        site.woken.clear()
        answer = caller.submit(site.stream.contribute, ALICE, A, 1, [trade(1)], 0)
        assert site.woken.wait(PATIENCE_S)
        disk.fault = FailsAt(1)
        with pytest.raises(JournalFailed, match="the disk refused a flush"):
            site.log.take_turn()
        with suppress(JournalFailed):
            site.log.close()
        with pytest.raises(ContributionRefused, match="the gateway is stopping"):
            answer.result(PATIENCE_S)


def test_a_log_whose_folder_was_removed_acknowledges_nothing_more(work: Path) -> None:
    with closing(Site(work / "today")) as site:
        site.open(ALICE)
        log_folder(work / "today").rename(work / "removed")
        with pytest.raises(JournalError, match="was removed or replaced while it was open"):
            contribute(site, ALICE, 1, 1)


@pytest.mark.parametrize("has_died", [False, True])
def test_a_log_that_was_never_begun_is_dropped_as_a_whole(
    work: Path, disk: LosingDisk, tmp_path: Path, has_died: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_and_die() -> None:
        StreamPlace.begin_record = die  # type: ignore[method-assign, assignment]
        opened(work / "today", PLACE, {1: Carried()})

    in_child(begin_and_die)
    if has_died:
        with monkeypatch.context() as patched:
            patched.setattr(contribution_log.shutil, "rmtree", lambda *_, **__: None)
            contribution_log.drop_unbegun(work / "today")
    for chance in (None, random.Random(3)):
        image = disk.image(tmp_path / f"image-{chance is None}", chance)
        with closing(Site(image / "today")) as site:
            assert site.open(ALICE) == 1
    with closing(Site(work / "today")) as site:
        assert site.open(ALICE) == 1
