"""History is played back at the source's speed or another, and up to a time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tandemfeed.client_lib.items import Batch, Item
from tandemfeed.client_lib.replay.playback import SETTLED_NS, Playback
from tandemfeed.feedcore.merge.effects import Takeover
from tests.client_lib.reading.test_reading_backlog import batch
from tests.client_lib.reading.test_reading_backlog import numbers as message_numbers
from tests.client_lib.toy_cluster import TOPIC, ToyCluster, heartbeat, packet

S = 1_000_000_000


def at(second: float, channel: int, first_seq: int) -> Batch:
    """A batch of one message that the source sent at this time."""
    made = batch(channel, first_seq, [0])
    made.packet = made.packet._replace(source_sent_at_ns=int(second * S))
    return made


def put(playback: Playback, *items: Item, is_live: bool = False, unix_ns: int = 0, now_ns: int | None = None) -> None:
    now_ns = unix_ns if now_ns is None else now_ns
    playback.put(items, {1, 2}, is_live=is_live, unix_ns=unix_ns, now_ns=now_ns)


@pytest.mark.parametrize(("speed", "step_ns"), [(1, S), (10, S // 10), (0.5, 2 * S)])
def test_messages_are_due_at_the_intervals_at_which_they_were_sent(speed: float, step_ns: int) -> None:
    playback = Playback(None, speed)
    takeover = Takeover(1, 2, 2, 30, 0)
    put(playback, at(100, 1, 1), at(101, 2, 1), takeover, at(103, 1, 2))
    now_ns = 7 * S
    assert message_numbers(playback.take(now_ns)) == [(1, 1)]
    assert playback.take(now_ns + step_ns - 1) == []
    assert playback.next_due_ns(now_ns) == now_ns + step_ns
    second, event = playback.take(now_ns + step_ns)
    assert (message_numbers([second]), event) == ([(2, 1)], takeover)
    assert message_numbers(playback.take(now_ns + 3 * step_ns)) == [(1, 2)]
    assert playback.next_due_ns(now_ns) is None
    assert not playback.is_over


def test_it_ends_when_every_channel_has_come_to_the_end() -> None:
    playback = Playback(102 * S, 0)
    put(playback, at(100, 1, 1), at(102, 1, 2), at(101, 2, 1), at(101, 1, 3), unix_ns=500 * S)
    assert not playback.is_over
    put(playback, at(103, 2, 2))
    assert not playback.is_over
    assert message_numbers(playback.take(0)) == [(1, 1), (2, 1)]
    assert playback.is_over


def test_it_ends_when_the_time_is_over_and_nothing_is_missing() -> None:
    playback = Playback(102 * S, 0)
    put(playback, at(100, 1, 1), is_live=True, unix_ns=102 * S)
    put(playback, is_live=False, unix_ns=200 * S)
    playback.take(0)
    assert not playback.is_over
    put(playback, is_live=True, unix_ns=102 * S + SETTLED_NS)
    assert playback.is_over


@pytest.mark.parametrize("step_ns", [-3_600 * S, 3_600 * S])
def test_a_step_of_the_wall_clock_neither_delays_the_end_nor_brings_it_forward(step_ns: int) -> None:
    playback, end_ns = Playback(102 * S, 0), 7 * S + 2 * S + SETTLED_NS
    put(playback, at(99, 1, 1), is_live=True, unix_ns=100 * S, now_ns=7 * S)
    playback.take(0)
    put(playback, is_live=True, unix_ns=102 * S + step_ns, now_ns=end_ns - 1)
    assert not playback.is_over
    put(playback, is_live=True, unix_ns=103 * S + step_ns, now_ns=end_ns)
    assert playback.is_over


def test_a_loop_over_history_ends_by_itself(cluster: ToyCluster) -> None:
    for adapter in cluster.adapters:
        adapter.lose(*(packet(1 + 5 * n, 1 + 5 * n, 5)._replace(source_sent_at_ns=(100 + n) * S) for n in range(4)))
        adapter.send(heartbeat(21))
    with cluster.connect() as feed:
        subscription = feed.subscribe(TOPIC, start="first", until=10_000_102 * S, speed=1_000)
        found = []
        while not subscription.is_closed and len(found) < 20:
            cluster.adapters[0].send(heartbeat(21))
            found += message_numbers(subscription.poll(0.05))
        assert found == [(1, seq) for seq in range(1, 21)]
        subscription.close()
        until: Any = 10_000_000 * S
        subscription = feed.subscribe(TOPIC, start="first", until=until)
        found = []
        while not subscription.is_closed:
            cluster.adapters[0].send(heartbeat(21))
            found += message_numbers(subscription.poll(0.05))
        assert found == [(1, seq) for seq in range(1, 21)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"speed": -1}, "speed is -1; it must be 0"),
        ({"speed": "fast"}, "speed is 'fast'"),
        ({"until": "noon"}, "until is 'noon'; it must be a time"),
        ({"speed": 1, "on_lag": "drop"}, "until and speed need on_lag='replay'"),
    ],
)
def test_what_cannot_be_played_back_is_refused(cluster: ToyCluster, options: Any, expected: str) -> None:
    with cluster.connect() as feed, pytest.raises(ValueError, match=re.escape(expected)):
        feed.subscribe(TOPIC, **options)
