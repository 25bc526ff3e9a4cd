"""Which starts of adapters are announced, and with which packet counters."""

from __future__ import annotations

import os

import pytest

from tandemfeed.admin_server.feed.keys.channel_keys import new_channel_key, new_start
from tandemfeed.admin_server.feed.members.adapter_starts import FORMER_START_NS, AdapterStarts
from tandemfeed.v1 import admin_pb2, common_pb2

KEY = bytes(range(32))
HOUR_NS = 3_600 * 1_000_000_000


def request_of(start: common_pb2.AdapterStart, **changed: object) -> admin_pb2.RegisterRequest:
    asked = {
        "resume_incarnation": start.incarnation,
        "resume_salt": start.salt,
        "public_key": start.public_key,
        **changed,
    }
    return admin_pb2.RegisterRequest(**asked)  # type: ignore[arg-type]


def test_a_former_start_is_announced_for_a_while_together_with_its_successor() -> None:
    book = AdapterStarts({}, [1], 0)
    first, second = new_start(KEY, 1), new_start(KEY, 2)
    book.begin(1, first, 50)
    assert book.announced(1, 50) == [first]
    assert book.next_deadline_ns() is None, "an adapter with one start has no former one"
    book.begin(1, second, 100)
    ends = 100 + FORMER_START_NS
    assert book.next_deadline_ns() == ends
    assert not book.withdraw(ends - 1)
    assert book.announced(1, ends - 1) == [first, second]
    assert book.withdraw(ends)
    assert book.announced(1, ends) == [second]
    assert not book.withdraw(ends)


def test_a_former_start_is_not_announced_after_its_time_even_if_it_was_not_withdrawn() -> None:
    book = AdapterStarts({}, [1], 0)
    book.begin(1, new_start(KEY, 1), 0)
    newest = new_start(KEY, 2)
    book.begin(1, newest, 100)
    assert book.announced(1, 100 + FORMER_START_NS) == [newest]


def test_the_next_deadline_is_when_the_first_former_start_of_any_adapter_ends() -> None:
    starts = [new_start(KEY, number) for number in range(1, 5)]
    book = AdapterStarts({1: starts[:2], 3: starts[:1]}, [1], 1_000)
    book.begin(3, starts[2], 2_000)
    assert book.next_deadline_ns() == 1_000 + FORMER_START_NS
    assert not book.withdraw(999 + FORMER_START_NS)
    assert book.withdraw(1_000 + FORMER_START_NS)
    assert book.announced(1, 1_000 + FORMER_START_NS) == [starts[1]]
    assert book.next_deadline_ns() == 2_000 + FORMER_START_NS


def test_recorded_starts_count_from_the_start_of_the_server_whatever_its_clock_was_before() -> None:
    former, newest = new_start(KEY, 1), new_start(KEY, 2)
    for offset_ns in (-HOUR_NS, HOUR_NS):
        newest.since_unix_ns = former.since_unix_ns + offset_ns
        book = AdapterStarts({1: [former, newest]}, [1], 100)
        assert book.announced(1, 99 + FORMER_START_NS) == [former, newest]
        assert book.announced(1, 100 + FORMER_START_NS) == [newest]


def test_only_the_newest_start_can_be_resumed_and_only_by_its_own_process() -> None:
    book = AdapterStarts({}, [1], 0)
    former, newest = new_start(KEY, 1), new_start(os.urandom(32), 2)
    book.begin(1, former, 0)
    book.begin(1, newest, 0)
    assert book.resumable(1, request_of(newest)) == newest
    assert book.resumable(1, request_of(former)) is None
    assert book.resumable(2, request_of(newest)) is None
    assert book.resumable(1, request_of(newest, resume_salt=os.urandom(32))) is None
    assert book.resumable(1, request_of(newest, public_key=KEY)) is None
    assert book.resumable(1, admin_pb2.RegisterRequest(public_key=newest.public_key)) is None


def test_counters_only_grow_and_belong_to_the_newest_start() -> None:
    book = AdapterStarts({1: [new_start(KEY, 1)]}, [1, 2], 0)
    assert not book.announced(1, 0)[0].next_packet_counters, "after a restart, they are unknown"
    book.note_counters(2, 1, {1: 50})
    assert book.announced(2, 0) == [], "the adapter has not registered"
    book.note_counters(1, 1, {1: 1})
    assert dict(book.announced(1, 0)[0].next_packet_counters) == {1: 1}
    book.note_counters(1, 1, {1: 50, 7: 3})
    book.note_counters(1, 1, {1: 40, 2: 6})
    book.note_counters(1, 2, {1: 90})
    (start,) = book.announced(1, 0)
    assert dict(start.next_packet_counters) == {1: 50, 2: 6}
    book.begin(1, new_start(KEY, 2), 0)
    assert dict(book.announced(1, 0)[-1].next_packet_counters) == {1: 1, 2: 1}


def test_key_ids_are_random_not_0_and_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([0, 7, 0xFFFF_FFFF])
    monkeypatch.setattr("tandemfeed.admin_server.feed.keys.channel_keys.secrets.randbelow", lambda _end: next(drawn))
    assert new_channel_key(1, 0, 1, {7}).key_id == 0xFFFF_FFFF


def test_a_request_contradicts_the_known_starts_only_if_one_has_its_incarnation_and_another_salt() -> None:
    book = AdapterStarts({}, [1], 0)
    starts = [new_start(KEY, number) for number in (1, 2, 3)]
    for adapter_id, start in zip((1, 1, 2), starts, strict=True):
        book.begin(adapter_id, start, 0)
    assert book.contradicts(request_of(starts[0])) is False
    for start in starts:
        assert book.contradicts(request_of(start, resume_salt=os.urandom(32))) is True
    assert book.contradicts(request_of(new_start(KEY, 4))) is False
