"""Contributed source streams and their log: numbered once, cancelled for good, whatever the moment of a crash."""

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
from tandemfeed.spark_feed.contributions.contribution_log import ContributionLog, log_folder
from tandemfeed.spark_feed.contributions.records import StreamPlace
from tandemfeed.spark_feed.contributions.recovery import Carried, JournalOfOtherStream
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
    """A log that a test opens, crashes and opens again; it takes turns in a thread of its own while a call waits."""

    def __init__(
        self, folder: Path, place: StreamPlace = PLACE, carried: Carried | None = None, **options: Any
    ) -> None:
        self.woken = threading.Event()
        self.now_ns = 1_000 * SECOND
        self.log = ContributionLog(
            folder, {1: place}, SOURCE_FORMAT, self.woken.set, clock_ns=lambda: self.now_ns,
            carried=None if carried is None else {1: carried}, **options,
        )  # fmt: skip
        self.sent: list[tuple[int, int]] = []  # (source_seq, sequence of the trade)

    @property
    def stream(self) -> ContributedStream:
        return self.log.streams[1]

    def close(self) -> None:
        self.log.close()

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call while the gateway's thread takes turns."""
        with ThreadPoolExecutor(1) as caller:
            answer = caller.submit(function, *arguments)
            while not answer.done():
                if self.woken.wait(0.01):
                    self.woken.clear()
                    self.turn()
            return answer.result()

    def open(self, producer: Producer, instance: bytes = A) -> int:
        number: int = self.call(self.stream.open, producer, instance)
        return number

    def turn(self) -> None:
        self.log.take_turn()
        for _, record in self.log.finish_turn():
            self.sent += messages_in(record[PACKET_HEAD.size :])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with closing(Site(tmp_path)) as opened:
        yield opened


def contribute(site: Site, producer: Producer, first: int, count: int, hold_ns: int = 0) -> int:
    messages = [trade(number) for number in range(first, first + count)]
    number: int = site.call(site.stream.contribute, producer, A, first, messages, hold_ns)
    return number


def test_contributed_messages_are_numbered_in_order_and_only_once(site: Site) -> None:
    assert site.open(ALICE) == 1
    assert contribute(site, ALICE, 1, 40) == 41
    assert contribute(site, ALICE, 31, 20) == 51  # a retry, with ten more
    assert site.sent == [(number, number) for number in range(1, 51)]
    assert site.stream.pending_count == 0
    site.turn()
    assert len(site.sent) == 50


def test_after_a_restart_nothing_is_repeated_and_nothing_is_missing(tmp_path: Path) -> None:
    with closing(Site(tmp_path)) as first:
        first.open(ALICE)
        contribute(first, ALICE, 1, 10)
        contribute(first, ALICE, 11, 5, hold_ns=1)
    with closing(Site(tmp_path)) as second:
        assert [each[:2] for each in second.log.recovered[1]] == [(1, 10)]
        assert second.open(ALICE) == 16
        second.now_ns += SECOND
        second.turn()
        assert contribute(second, ALICE, 9, 8) == 17
        assert second.sent == [(number, number) for number in range(11, 17)]


def test_a_turn_that_a_crash_ended_is_in_the_log_as_a_whole_and_a_retry_repeats_nothing(tmp_path: Path) -> None:
    with closing(Site(tmp_path)) as first, ThreadPoolExecutor(1) as caller:
        first.open(ALICE)
        first.woken.clear()
        answer = caller.submit(first.stream.contribute, ALICE, A, 1, [trade(1), trade(2)], 0)
        assert first.woken.wait(60)
        first.log.take_turn()  # the log has it; the crash comes before the answer
        first.close()
        with pytest.raises(ContributionRefused) as refused:
            answer.result(60)
        assert refused.value.why is Why.BUSY
    with closing(Site(tmp_path)) as second:
        assert contribute(second, ALICE, 1, 3) == 4
        assert [each[:2] for each in second.log.recovered[1]] == [(1, 2)]
        assert second.sent == [(3, 3)]


def test_a_request_is_not_answered_before_its_turn_is_finished(site: Site) -> None:
    site.open(ALICE)
    site.woken.clear()
    with ThreadPoolExecutor(1) as caller:
        answer = caller.submit(site.stream.contribute, ALICE, A, 1, [trade(1)], 0)
        assert site.woken.wait(60)
        site.log.take_turn()
        with pytest.raises(ContributionRefused) as refused:
            site.stream.contribute(ALICE, A, 1, [trade(1)], 0)
        assert refused.value.why is Why.BUSY
        assert not answer.done()
        site.log.finish_turn()
        assert answer.result(60) == 2
    assert site.stream.contribute(ALICE, A, 1, [trade(1)], 0) == 2


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
        second.turn()
        assert second.sent == [(1, 1), (2, 3)]
        assert second.call(second.stream.cancel, "alice", "model", [1, 2, 3]) == Cancelled(0, [2])


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
        contribute(site, BOB, 1, 1)
        contribute(site, ALICE, 501, 500)
        assert (len(site.sent), site.stream.pending_count) == (500, 501)
        assert site.stream.next_deadline_ns() == site.now_ns + round(4.9 * SECOND)
        site.now_ns += 5 * SECOND
        site.turn()
        assert [number for _, number in site.sent[500:503]] == [501, 1, 502] or site.sent[500][1] == 1


def test_packets_have_the_time_of_the_wall_clock_also_after_it_was_set(tmp_path: Path) -> None:
    with closing(Site(tmp_path, wall_clock_ns=lambda: 7)) as site, ThreadPoolExecutor(1) as caller:
        site.open(ALICE)
        site.woken.clear()
        answer = caller.submit(site.stream.contribute, ALICE, A, 1, [trade(1)], 0)
        assert site.woken.wait(60)
        site.log.take_turn()
        ((_, record),) = site.log.finish_turn()
        assert answer.result(60) == 2
    assert PACKET_HEAD.unpack_from(record)[1] == 7


def test_a_contributor_with_too_much_pending_blocks_nobody_else(tmp_path: Path) -> None:
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
        contribute(first, ALICE, 4, 2, hold_ns=1)
        carried = first.stream.carried()
    with closing(Site(tmp_path / "day 2", NEXT_DAY, carried=carried)) as second:
        second.now_ns += SECOND
        second.turn()
        assert second.sent == [(1, 4), (2, 5)]
        assert contribute(second, ALICE, 4, 3) == 7  # of the same process: two of them were accepted the day before
        assert second.sent[2:] == [(3, 6)]
    with closing(Site(tmp_path / "day 2", NEXT_DAY, carried=carried)) as again:
        assert again.stream.pending_count == 0  # what was left counts only once
        assert again.open(ALICE) == 7


def test_a_crash_while_a_session_begins_carries_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Site(tmp_path / "day 1")) as first:
        first.open(ALICE)
        contribute(first, ALICE, 1, 2, hold_ns=1)
        carried = first.stream.carried()
    with monkeypatch.context() as patched:
        patched.setattr(StreamPlace, "begin_record", lambda _self: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            Site(tmp_path / "day 2", NEXT_DAY, carried=carried)
    assert log_folder(tmp_path / "day 2").exists()
    with closing(Site(tmp_path / "day 2", NEXT_DAY, carried=carried)) as second:
        second.now_ns += SECOND
        second.turn()
        assert second.sent == [(1, 1), (2, 2)]


def test_a_session_that_has_ended_is_not_opened_again(tmp_path: Path) -> None:
    with closing(Site(tmp_path)) as first:
        first.log.end()
    with pytest.raises(JournalOfOtherStream, match="has ended"):
        Site(tmp_path)
