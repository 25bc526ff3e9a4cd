"""Which starts of adapters are announced, and with which packet counters."""

from __future__ import annotations

import os

import pytest

from tandemfeed.admin_server.feed.keys.channel_keys import new_channel_key, new_start
from tandemfeed.admin_server.feed.members.adapter_starts import FORMER_START_NS, NEVER_UNIX_NS, AdapterStarts
from tandemfeed.v1 import admin_pb2, common_pb2

KEY = bytes(range(32))


def request_of(start: common_pb2.AdapterStart, **changed: object) -> admin_pb2.RegisterRequest:
    asked = {
        "resume_incarnation": start.incarnation,
        "resume_salt": start.salt,
        "public_key": start.public_key,
        **changed,
    }
    return admin_pb2.RegisterRequest(**asked)  # type: ignore[arg-type]


def test_a_former_start_is_announced_for_a_while_together_with_its_successor() -> None:
    book = AdapterStarts({}, [1])
    first, second = new_start(KEY, 1), new_start(KEY, 2)
    book.begin(1, first)
    assert book.announced(1, first.since_unix_ns) == [first]
    book.begin(1, second)
    ends = second.since_unix_ns + FORMER_START_NS
    assert book.next_change_unix_ns() == ends
    assert not book.withdraw(ends - 1)
    assert book.announced(1, ends - 1) == [first, second]
    assert book.withdraw(ends)
    assert book.announced(1, ends) == [second]
    assert not book.withdraw(ends)


def test_a_former_start_is_not_announced_after_its_time_even_if_it_was_not_withdrawn() -> None:
    book = AdapterStarts({}, [1])
    book.begin(1, new_start(KEY, 1))
    newest = new_start(KEY, 2)
    book.begin(1, newest)
    assert book.announced(1, newest.since_unix_ns + FORMER_START_NS) == [newest]


def test_the_next_change_is_when_the_first_former_start_of_any_adapter_ends() -> None:
    starts = [new_start(KEY, number) for number in range(1, 5)]
    for number, start in enumerate(starts):
        start.since_unix_ns = 1_000 * number
    alone = AdapterStarts({1: starts[:1]}, [1])
    assert alone.next_change_unix_ns() == NEVER_UNIX_NS, "an adapter with one start has no former one"
    book = AdapterStarts({1: starts[:3], 2: starts[1:], 3: starts[:1]}, [1])
    assert book.next_change_unix_ns() == 2_000 + FORMER_START_NS
    assert not book.withdraw(1_999 + FORMER_START_NS)
    assert book.withdraw(2_000 + FORMER_START_NS)
    assert book.announced(1, 0) == [starts[2]]
    assert book.next_change_unix_ns() == 3_000 + FORMER_START_NS


def test_only_the_newest_start_can_be_resumed_and_only_by_its_own_process() -> None:
    book = AdapterStarts({}, [1])
    former, newest = new_start(KEY, 1), new_start(os.urandom(32), 2)
    book.begin(1, former)
    book.begin(1, newest)
    assert book.resumable(1, request_of(newest)) == newest
    assert book.resumable(1, request_of(former)) is None
    assert book.resumable(2, request_of(newest)) is None
    assert book.resumable(1, request_of(newest, resume_salt=os.urandom(32))) is None
    assert book.resumable(1, request_of(newest, public_key=KEY)) is None
    assert book.resumable(1, admin_pb2.RegisterRequest(public_key=newest.public_key)) is None


def test_counters_only_grow_and_belong_to_the_newest_start() -> None:
    book = AdapterStarts({1: [new_start(KEY, 1)]}, [1, 2])
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
    book.begin(1, new_start(KEY, 2))
    assert dict(book.announced(1, 0)[-1].next_packet_counters) == {1: 1, 2: 1}


def test_key_ids_are_random_not_0_and_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([0, 7, 0xFFFF_FFFF])
    monkeypatch.setattr("tandemfeed.admin_server.feed.keys.channel_keys.secrets.randbelow", lambda _end: next(drawn))
    assert new_channel_key(1, 0, 1, {7}).key_id == 0xFFFF_FFFF


def test_a_request_contradicts_the_known_starts_only_if_one_has_its_incarnation_and_another_salt() -> None:
    book = AdapterStarts({}, [1])
    starts = [new_start(KEY, number) for number in (1, 2, 3)]
    for adapter_id, start in zip((1, 1, 2), starts, strict=True):
        book.begin(adapter_id, start)
    assert book.contradicts(request_of(starts[0])) is False
    for start in starts:
        assert book.contradicts(request_of(start, resume_salt=os.urandom(32))) is True
    assert book.contradicts(request_of(new_start(KEY, 4))) is False
