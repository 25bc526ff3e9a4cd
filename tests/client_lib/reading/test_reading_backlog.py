"""What an application that is too slow is given, by policy: the pure core, over generated streams."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.client_lib.items import Batch, Filled, Item
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.reading.backlog import Backlog
from tandemfeed.client_lib.reading.conflation import check_key
from tandemfeed.client_lib.reading.lag import (
    BEHIND_NS,
    Disconnected,
    Dropped,
    Lag,
    LagEnded,
    Lagging,
    LagPolicy,
    QueueWatch,
)
from tandemfeed.feedcore.merge.effects import Takeover
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.feedcore.wire.sbe_header import SBE_MESSAGE_HEADER
from tests.client_lib.toy_cluster import MESSAGE_MODEL

DECODER = Decoder(MESSAGE_MODEL)
LIMIT = 100
SESSION = 20261121


def batch(channel: int, first_seq: int, keys: list[int], stream: int = 0) -> Batch:
    """A batch with a message for each key; each source message made one. It was received at its first number, in ns."""
    count = len(keys)
    run = Run(1, first_seq, first_seq, stream or 10 + channel, first_seq, count, count)
    bodies = [SBE_MESSAGE_HEADER.pack(24, 1, 7, 0) + key.to_bytes(8, "little") + bytes(16) for key in keys]
    frames = b"".join(OUTPUT_FRAME.pack(len(body) + OUTPUT_FRAME.size, at) + body for at, body in enumerate(bodies))
    packet = OutputPacket(
        0, 1, channel, 1, SESSION, 1, first_seq, first_seq, count, (run,), 0, 0, encode_runs((run,)) + frames
    )
    return Batch(packet, first_seq, first_seq, DECODER)


def numbers(items: list[Item]) -> list[tuple[int, int]]:
    """(channel, message_seq) of every message."""
    return [(each.channel_id, seq) for each in items if isinstance(each, Batch) for seq in each.message_seqs.tolist()]


def events(items: list[Item]) -> list[Any]:
    return [each for each in items if not isinstance(each, Batch)]


def whole(backlog: Backlog) -> list[Item]:
    taken: list[Item] = []
    while backlog:
        taken += backlog.take(7)
    return taken


def test_up_to_the_limit_nothing_is_lost() -> None:
    backlog = Backlog(LagPolicy("drop", LIMIT))
    backlog.put([batch(1, 1, [5] * 50), batch(1, 51, [5] * 50)])
    assert backlog.lag(61) == Lag(100, 60)
    assert numbers(whole(backlog)) == [(1, seq) for seq in range(1, 101)]
    assert not backlog


def test_beyond_the_limit_the_oldest_messages_are_dropped_and_named_before_the_next() -> None:
    backlog = Backlog(LagPolicy("drop", LIMIT))
    takeover = Takeover(1, 2, 2, 30, 0)
    backlog.put([batch(1, 1, [5] * 20), takeover, *(batch(1, first, [5] * 20) for first in range(21, 121, 20))])
    taken = whole(backlog)
    assert taken[:3] == [Dropped(1, SESSION, 1, 81, 80, ((11, 1, 81),)), Lagging(120), takeover]
    assert numbers(taken) == [(1, seq) for seq in range(81, 121)]
    assert taken[-1] == LagEnded(80, 0)
    assert backlog.lag(0) == Lag(0, 0, 80, 0)


@pytest.mark.parametrize("on_lag", ["drop", "conflate"])
def test_a_cursor_moves_past_what_was_removed(on_lag: Any) -> None:
    """Of two source streams; the other channel's batch is not concerned."""
    backlog = Backlog(LagPolicy(on_lag, LIMIT, "number"))
    backlog.put([batch(1, 1, [5] * 60, stream=21), batch(2, 1, [5] * 10), batch(1, 61, [5] * 40, stream=22)])
    taken = [each for each in whole(backlog) if isinstance(each, Batch)]
    reached: dict[int, int] = {}
    for each in taken:
        reached.update(each.next_source_seqs())
    assert reached == {21: 61, 22: 101, 12: 11}


def test_too_slow_an_application_is_disconnected_and_what_waited_is_counted() -> None:
    backlog = Backlog(LagPolicy("disconnect", LIMIT))
    backlog.put([batch(1, 1, [5] * 101)])
    (item,) = whole(backlog)
    assert isinstance(item, Disconnected)
    assert item.message_count == 101
    assert "101 messages waited for the application, of which at most 100 may" in item.reason
    assert backlog.is_over


def test_conflation_keeps_the_newest_message_of_each_key_in_order() -> None:
    backlog = Backlog(LagPolicy("conflate", LIMIT, "number"))
    backlog.put([batch(1, 1, [1, 2, 3]), batch(1, 4, [2] * 50), batch(1, 54, [1] * 60 + [7])])
    taken = whole(backlog)
    assert numbers(taken) == [(1, 3), (1, 53), (1, 113), (1, 114)]
    assert events(taken) == [Lagging(114), LagEnded(0, 110)]
    assert [each.number for item in taken if isinstance(item, Batch) for each in item.messages()] == [3, 2, 1, 7]


def test_more_keys_than_may_wait_are_dropped() -> None:
    backlog = Backlog(LagPolicy("conflate", LIMIT, "number"))
    backlog.put([batch(1, 1, list(range(40))), batch(1, 41, list(range(40, 120)))])
    taken = whole(backlog)
    (dropped,) = (each for each in taken if isinstance(each, Dropped))
    assert dropped.message_count + len(numbers(taken)) == 120
    assert numbers(taken)[-1:] == [(1, 120)] or dropped.end_message_seq == 121


def test_a_key_that_no_message_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"conflate_by is 'symbol'; no message has such a field .* number, text"):
        check_key("symbol", DECODER)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("ignore",), "on_lag is 'ignore'; it must be one of replay, drop"),
        (("drop", 5), "lag_max is 5; .* at least 100"),
    ],
)
def test_a_policy_that_cannot_be_followed_is_refused(arguments: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        LagPolicy(*arguments)


@st.composite
def steps(draw: st.DrawFn) -> list[Item | int]:
    """What is put and, as numbers, how many items are taken."""
    next_seq: Counter[int] = Counter({1: 1, 2: 1})
    found: list[Item | int] = []
    for _ in range(draw(st.integers(1, 30))):
        kind = draw(st.sampled_from(["batch"] * 6 + ["filled", "event", "take"]))
        channel = draw(st.sampled_from([1, 2]))
        if kind == "take":
            found.append(draw(st.integers(1, 9)))
        elif kind == "event":
            found.append(Takeover(channel, 2, 1, next_seq[channel], 0))
        else:
            keys = draw(st.lists(st.integers(0, 9), max_size=60))
            made = batch(channel, next_seq[channel], keys)
            next_seq[channel] += len(keys)
            found.append(Filled(made) if kind == "filled" else made)
    return found


@given(steps(), st.sampled_from(["drop", "conflate"]))
def test_every_message_is_taken_once_or_counted_and_what_waits_is_bounded(script: list[Any], on_lag: Any) -> None:
    backlog = Backlog(LagPolicy(on_lag, LIMIT, "number"))
    taken: list[Item] = []
    put: list[Item] = []
    for step in script:
        if isinstance(step, int):
            taken += backlog.take(step)
        else:
            put.append(step)
            backlog.put([step])
            assert backlog.lag(0).message_count <= LIMIT
    taken += whole(backlog)
    delivered = numbers([each.batch if isinstance(each, Filled) else each for each in taken])
    assert len(set(delivered)) == len(delivered)
    for channel in (1, 2):
        assert all(one < other for one, other in pairwise(seq for each, seq in numbers(taken) if each == channel))
    named = sum(each.message_count for each in taken if isinstance(each, Dropped))
    lag = backlog.lag(0)
    everything = numbers([each.batch if isinstance(each, Filled) else each for each in put])
    assert named == lag.dropped_count
    assert len(delivered) + lag.dropped_count + lag.conflated_count == len(everything)
    assert [each for each in taken if isinstance(each, Takeover)] == [
        each for each in put if isinstance(each, Takeover)
    ]
    newest = {(channel, key): seq for channel, seq, key in _keyed(put)}
    if on_lag == "conflate" and not lag.dropped_count:
        assert {(channel, seq) for (channel, _), seq in newest.items()} <= set(delivered)


def _keyed(items: list[Item]) -> list[tuple[int, int, int]]:
    """(channel, message_seq, key)."""
    batches = [each.batch if isinstance(each, Filled) else each for each in items]
    return [
        (each.channel_id, message.origin.message_seq, message.number)
        for each in batches
        if isinstance(each, Batch)
        for message in each.messages()
    ]


def test_full_receive_queues_are_reported_once_after_a_second_and_when_they_are_empty() -> None:
    watch = QueueWatch()
    assert watch.on_turn(has_more=True, now_ns=5) is None
    assert watch.age_ns(7) == 2
    assert watch.on_turn(has_more=False, now_ns=6) is None
    assert watch.on_turn(has_more=True, now_ns=10) is None
    assert watch.on_turn(has_more=True, now_ns=9) is None
    assert not watch.has_lagged(10)
    assert watch.on_turn(has_more=True, now_ns=10 + BEHIND_NS) == Lagging(0)
    assert watch.has_lagged(20 + BEHIND_NS)
    assert watch.on_turn(has_more=True, now_ns=20 + 2 * BEHIND_NS) is None
    assert watch.on_turn(has_more=False, now_ns=30 + 2 * BEHIND_NS) == LagEnded()
    assert watch.age_ns(40) == 0
