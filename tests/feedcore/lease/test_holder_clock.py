"""The holder counts a lease from the sending of the report that was answered (docs/protocol.md clause 6.2)."""

from __future__ import annotations

from tandemfeed.feedcore.lease.holder_clock import REPORTS_REMEMBERED, HolderClock

MS = 1_000_000


def test_a_lease_counts_from_when_its_report_was_sent_less_a_tenth_of_the_term() -> None:
    clock = HolderClock()
    first, second = clock.on_report_sent(1_000 * MS), clock.on_report_sent(1_100 * MS)
    assert clock.valid_until_ns(first, 300 * MS) == 1_270 * MS
    assert clock.valid_until_ns(second, 300 * MS) == 1_370 * MS
    assert clock.valid_until_ns(first, 300 * MS) == 1_270 * MS  # a second answer to it changes nothing


def test_the_margin_is_a_tenth_of_the_term_in_whole_nanoseconds() -> None:
    clock = HolderClock()
    report_id = clock.on_report_sent(0)
    assert [clock.valid_until_ns(report_id, ttl_ns) for ttl_ns in (9, 10, 39)] == [9, 9, 36]


def test_each_report_has_an_id_of_its_own_and_ids_ascend_from_1() -> None:
    clock = HolderClock()
    assert [clock.on_report_sent(5) for _ in range(4)] == [1, 2, 3, 4]


def test_an_answer_to_no_report_that_was_sent_counts_until_the_past() -> None:
    clock = HolderClock()
    clock.on_report_sent(1_000 * MS)
    assert clock.valid_until_ns(0, 300 * MS) == 0
    assert clock.valid_until_ns(2, 300 * MS) == 0


def test_old_reports_are_forgotten_and_an_answer_to_them_counts_until_the_past() -> None:
    clock = HolderClock()
    for number in range(REPORTS_REMEMBERED + 1):
        clock.on_report_sent(number * MS)
    assert clock.valid_until_ns(1, 300 * MS) == 0
    assert clock.valid_until_ns(2, 300 * MS) == 271 * MS
    assert len(clock._sent_at_ns) == REPORTS_REMEMBERED
