"""A contributed source stream on the disk: numbered once, cancelled for good, whatever the moment of a crash."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.spark_feed.contributions.book import ContributionRefused, Limits, Producer, Why
from tandemfeed.spark_feed.contributions.contributed_stream import Cancelled, ContributedStream
from tandemfeed.spark_feed.contributions.records import StreamPlace
from tandemfeed.spark_feed.contributions.recovery import JournalOfOtherStream
from tandemfeed.spark_feed.journaling.records import PACKET_HEAD
from tests.spark_feed.contributions.contribution_material import (
    ALICE,
    BOB,
    PLACE,
    SOURCE_FORMAT,
    A,
    B,
    messages_in,
    trade,
)  # fmt: skip

SECOND = 1_000_000_000


class Crash(BaseException):
    """The process ends here."""


class Site:
    """A stream that a test opens, crashes and opens again; it decides in a thread of its own while a call waits."""

    def __init__(self, folder: Path, place: StreamPlace = PLACE, **options: Any) -> None:
        self.woken = threading.Event()
        self.now_ns = 1_000 * SECOND
        self.stream = ContributedStream(
            folder, place, SOURCE_FORMAT, self.woken.set, clock_ns=lambda: self.now_ns, **options
        )
        self.sent: list[tuple[int, int]] = []  # (source_seq, sequence of the trade)

    def close(self) -> None:
        self.stream.close()

    def crash(self) -> None:
        """Leave the files as they are, as far as a process can do that to itself."""
        self.close()

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call while the gateway's thread decides."""
        with ThreadPoolExecutor(1) as caller:
            answer = caller.submit(function, *arguments)
            while not answer.done():
                if self.woken.wait(0.01):
                    self.woken.clear()
                    self.decide()
            return answer.result()

    def open(self, producer: Producer, instance: bytes = A) -> int:
        number: int = self.call(self.stream.open, producer, instance)
        return number

    def decide(self) -> None:
        for _, record in self.stream.decide():
            self.sent += messages_in(record[PACKET_HEAD.size :])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with closing(Site(tmp_path)) as opened:
        yield opened


def contribute(site: Site, producer: Producer, first: int, count: int, hold_ns: int = 0) -> int:
    messages = [trade(number) for number in range(first, first + count)]
    return site.stream.contribute(producer, A, first, messages, hold_ns)


def test_contributed_messages_are_numbered_in_order_and_only_once(site: Site) -> None:
    assert site.open(ALICE) == 1
    assert contribute(site, ALICE, 1, 40) == 41
    assert contribute(site, ALICE, 31, 20) == 51  # a retry, with ten more
    site.decide()
    assert site.sent == [(number, number) for number in range(1, 51)]
    assert site.stream.pending_count == 0
    assert site.stream.decide() == []


def test_after_a_restart_nothing_is_repeated_and_nothing_is_missing(tmp_path: Path) -> None:
    with closing(Site(tmp_path)) as first:
        first.open(ALICE)
        contribute(first, ALICE, 1, 10)
        first.decide()
        contribute(first, ALICE, 11, 5)
    with closing(Site(tmp_path)) as second:
        assert [each[:2] for each in second.stream.recovered] == [(1, 10)]
        assert second.open(ALICE) == 16
        assert contribute(second, ALICE, 9, 8) == 17
        second.decide()
        assert second.sent == [(number, number) for number in range(11, 17)]


@pytest.mark.parametrize("moment", ["before the journal", "before the queue"])
def test_a_crash_between_two_steps_of_a_decision_numbers_nothing_twice(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise Crash

    with closing(Site(tmp_path)) as first:
        first.open(ALICE)
        contribute(first, ALICE, 1, 3)
        monkeypatch.setattr(first.stream, "_append" if moment == "before the journal" else "_settle", crash)
        with pytest.raises(Crash):
            first.decide()
    with closing(Site(tmp_path)) as second:
        second.decide()
        numbered = [(number, number) for number in range(1, 4)]
        assert second.sent == (numbered if moment == "before the journal" else [])
        assert second.stream.next_source_seq == 4
        assert second.stream.pending_count == 0


def test_a_cancelled_message_is_never_sent_and_its_number_never_used_again(tmp_path: Path) -> None:
    with closing(Site(tmp_path)) as first:
        first.open(ALICE)
        contribute(first, ALICE, 1, 5, hold_ns=SECOND)
        assert first.call(first.stream.cancel, "alice", "model", [2, 4, 99]) == Cancelled(2, [2, 4])
        assert first.call(first.stream.cancel, "alice", "model", [4, 5]) == Cancelled(1, [4, 5])  # 4 again: as before
        assert first.call(first.stream.cancel, "bob", None, None) == Cancelled(0, [])
    with closing(Site(tmp_path)) as second:
        assert second.open(ALICE) == 6
        assert contribute(second, ALICE, 4, 2) == 6  # a retry of what was cancelled
        second.now_ns += SECOND
        second.decide()
        assert second.sent == [(1, 1), (2, 3)]
        assert second.call(second.stream.cancel, "alice", "model", [1, 2, 3]) == Cancelled(0, [2])


def test_a_crash_before_the_queue_knows_of_a_cancellation_does_not_undo_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Site(tmp_path)) as first:
        first.open(ALICE)
        contribute(first, ALICE, 1, 2, hold_ns=SECOND)
        with ThreadPoolExecutor(1) as caller, monkeypatch.context() as patched:
            patched.setattr(first.stream, "_settle", lambda *_: (_ for _ in ()).throw(Crash))
            first.woken.clear()
            answer = caller.submit(first.stream.cancel, "alice", None, None)
            assert first.woken.wait(60)
            with pytest.raises(Crash):
                first.decide()
            first.close()
            with pytest.raises(ContributionRefused):
                answer.result(60)
    with closing(Site(tmp_path)) as second:
        second.now_ns += 2 * SECOND
        second.decide()
        assert second.sent == []


def test_a_message_that_does_not_fit_the_source_format_is_refused_with_all_of_its_request(site: Site) -> None:
    site.open(ALICE)
    for bad in (b"", b"x" * 7, trade(1)[:-1], trade(1) + b"x", b"\0" * 40, bytes(2_000)):
        with pytest.raises(ContributionRefused, match="message 1") as refused:
            site.stream.contribute(ALICE, A, 1, [trade(1), bad], 0)
        assert refused.value.why is Why.INVALID
    assert contribute(site, ALICE, 1, 1) == 2


def test_another_process_takes_a_producer_over_also_after_a_restart(tmp_path: Path) -> None:
    with closing(Site(tmp_path)) as first:
        first.open(ALICE, A)
        assert first.open(ALICE, B) == 1
    with closing(Site(tmp_path)) as second:
        with pytest.raises(ContributionRefused) as refused:
            contribute(second, ALICE, 1, 1)
        assert refused.value.why is Why.SUPERSEDED


def test_the_rate_of_the_stream_keeps_messages_pending(tmp_path: Path) -> None:
    with closing(Site(tmp_path, messages_per_second=100)) as site:
        site.open(ALICE)
        site.open(BOB)
        contribute(site, ALICE, 1, 500)
        site.decide()
        contribute(site, BOB, 1, 1)
        contribute(site, ALICE, 501, 500)
        site.decide()
        assert (len(site.sent), site.stream.pending_count) == (500, 501)
        assert site.stream.next_deadline_ns() == site.now_ns + round(4.9 * SECOND)
        site.now_ns += 5 * SECOND
        site.decide()
        assert [number for _, number in site.sent[500:503]] == [501, 1, 502] or site.sent[500][1] == 1


def test_a_full_queue_accepts_nothing_and_blocks_nobody(tmp_path: Path) -> None:
    with closing(Site(tmp_path, limits=Limits(pending_count_max=10))) as site:
        site.open(ALICE)
        contribute(site, ALICE, 1, 10, hold_ns=SECOND)
        with pytest.raises(ContributionRefused) as refused:
            contribute(site, ALICE, 11, 1)
        assert refused.value.why is Why.LIMIT
        site.open(BOB)
        assert contribute(site, BOB, 1, 10) == 11


def test_the_journal_of_another_session_is_refused(tmp_path: Path) -> None:
    Site(tmp_path).close()
    other = StreamPlace(PLACE.feed, PLACE.feed_id, PLACE.session + 1, 1, PLACE.datagram_size_max)
    with pytest.raises(JournalOfOtherStream, match="give another folder"):
        Site(tmp_path, other)


NEXT_DAY = StreamPlace(PLACE.feed, PLACE.feed_id, PLACE.session + 1, 1, PLACE.datagram_size_max)


def test_the_next_session_continues_with_what_is_pending_and_with_the_numbers_of_producers(tmp_path: Path) -> None:
    with closing(Site(tmp_path / "day 1")) as first:
        first.open(ALICE)
        contribute(first, ALICE, 1, 3)
        first.decide()
        contribute(first, ALICE, 4, 2)
        carried = first.stream.carried()
    with closing(Site(tmp_path / "day 2", NEXT_DAY, carried=carried)) as second:
        second.decide()
        assert second.sent == [(1, 4), (2, 5)]
        assert contribute(second, ALICE, 4, 3) == 7  # of the same process: two of them were accepted the day before
        second.decide()
        assert second.sent[2:] == [(3, 6)]
    with closing(Site(tmp_path / "day 2", NEXT_DAY, carried=carried)) as again:
        assert again.stream.pending_count == 0  # what was left counts only once
        assert again.open(ALICE) == 7


def test_a_crash_while_a_session_begins_carries_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Site(tmp_path / "day 1")) as first:
        first.open(ALICE)
        contribute(first, ALICE, 1, 2)
        carried = first.stream.carried()
    with monkeypatch.context() as patched:
        patched.setattr(StreamPlace, "begin_record", lambda _self: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            Site(tmp_path / "day 2", NEXT_DAY, carried=carried)
    with closing(Site(tmp_path / "day 2", NEXT_DAY, carried=carried)) as second:
        second.decide()
        assert second.sent == [(1, 1), (2, 2)]


def test_a_session_that_has_ended_is_not_opened_again(tmp_path: Path) -> None:
    with closing(Site(tmp_path)) as first:
        first.stream.end()
    with pytest.raises(JournalOfOtherStream, match="has ended"):
        Site(tmp_path)
