"""Subscriptions that begin at a time or with a snapshot, and continue live without a seam."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandemfeed.client_lib import Gap, HistoryShortened, HistoryUnavailable, SnapshotTaken
from tandemfeed.client_lib.items import Batch, Item
from tandemfeed.client_lib.reading import conflation
from tandemfeed.client_lib.reading.conflation import SnapshotIntake
from tandemfeed.client_lib.replay import last_values
from tandemfeed.client_lib.replay.locating import Located, choose
from tandemfeed.client_lib.stream.starts import check_start, time_of
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    decode_output_packet,
    encode_output_packet,
    encode_runs,
)
from tests.client_lib.reading.test_reading_backlog import batch
from tests.client_lib.toy_cluster import (
    TOPIC,
    Client,
    OutputPacket,
    ToyAdapter,
    ToyCluster,
    collect,
    heartbeat,
    message_seqs,
    note,
    packet,
)

AT_NS = 1_795_357_800_000_000_000
S = 1_000_000_000


def sent(each: OutputPacket, second: int) -> OutputPacket:
    return each._replace(source_sent_at_ns=AT_NS + second * S)


def read(cluster: ToyCluster, client: Client, last_seq: int, lineage: Any = ((1, 1),), **options: Any) -> list[Item]:
    """All items up to a message, while adapters send heartbeats."""
    end = max(each.end_message_seq for each in cluster.adapters[1].journal)
    subscription = client.subscribe(TOPIC, **options)

    def is_over(items: list[Item]) -> bool:
        for adapter in cluster.adapters:
            adapter.send(heartbeat(end, lineage=lineage))
        return last_seq in message_seqs(items)

    items = collect(subscription, is_over)
    subscription.close()
    return items


@pytest.mark.parametrize(
    "start",
    [
        AT_NS + 2 * S,
        AT_NS + 2 * S - 5,
        np.datetime64(AT_NS + 2 * S, "ns"),
        datetime(2026, 11, 22, 14, 30, 2, tzinfo=UTC),
    ],
)
def test_a_subscription_begins_with_what_the_source_sent_since_a_time(cluster: ToyCluster, start: Any) -> None:
    for adapter in cluster.adapters:
        adapter.lose(*(sent(packet(1 + 5 * at, 1 + 5 * at, 5), at) for at in range(4)))
    with cluster.connect() as client:
        items = read(cluster, client, 20, start=start)
    assert message_seqs(items) == list(range(11, 21))
    assert not any(isinstance(each, HistoryShortened | Gap) for each in items)


def test_a_takeover_during_the_start_neither_loses_nor_repeats_a_message(cluster: ToyCluster) -> None:
    """The time is located in epoch 1, whose messages from 14 on epoch 2 numbers afresh: other source streams first."""
    one, other = cluster.adapters
    shared = [sent(packet(1, 1, 5), 0), sent(packet(6, 6, 8), 2)]
    one.lose(*shared, sent(packet(14, 14, 3), 3))
    renumbered = [packet(14, 1, 2, stream=2, epoch=2), packet(16, 14, 3, epoch=2), packet(19, 17, 4, epoch=2)]
    other.lose(*shared, *(sent(each, 3) for each in renumbered))
    with cluster.connect() as client:
        items = read(cluster, client, 22, ((1, 1), (2, 14)), start=AT_NS + 1 * S)
    found = [
        (span.source_stream_id, seq)
        for each in items
        if isinstance(each, Batch)
        for span in each.sources()
        for seq in range(span.first_source_seq, span.end_source_seq)
    ]
    assert sorted(found) == [*((1, seq) for seq in range(6, 21)), (2, 1), (2, 2)]
    assert [seq for stream, seq in found if stream == 1] == list(range(6, 21))
    assert not any(isinstance(each, Gap) for each in items)


def test_a_time_before_the_history_is_reported_and_one_after_it_begins_at_its_end(cluster: ToyCluster) -> None:
    for adapter in cluster.adapters:
        adapter.lose(sent(packet(11, 11, 5), 5), sent(packet(16, 16, 5), 6))
    with cluster.connect() as client:
        items = read(cluster, client, 20, start=AT_NS)
        assert message_seqs(items) == list(range(11, 21))
        assert [each for each in items if isinstance(each, HistoryShortened)] == [
            HistoryShortened(1, 11, AT_NS + 5 * S)
        ]
        subscription = client.subscribe(TOPIC, start=AT_NS + 60 * S)
        items = collect(
            subscription,
            lambda items: cluster.adapters[0].send(heartbeat(21), packet(21, 21, 1)) or 21 in message_seqs(items),  # type: ignore[func-returns-value]
        )
        assert message_seqs(items) == [21]


def keyed(first: int, count: int) -> OutputPacket:
    """A packet whose messages have the keys 0 to 2 in turn."""
    frames = b"".join(
        OUTPUT_FRAME.pack(len(note(0)) + OUTPUT_FRAME.size, at) + note((first + at) % 3) for at in range(count)
    )
    plain = packet(first, first, count)
    return plain._replace(payload=encode_runs(plain.runs) + frames)


def test_a_snapshot_is_the_last_message_of_each_key_and_the_stream_continues_after_it(cluster: ToyCluster) -> None:
    for adapter in cluster.adapters:
        adapter.lose(keyed(1, 5), keyed(6, 1), keyed(7, 4))

    def hear(items: list[Item]) -> bool:
        cluster.adapters[0].send(heartbeat(11))
        return any(isinstance(each, SnapshotTaken) for each in items)

    with cluster.connect() as client:
        subscription = client.subscribe(TOPIC, start="snapshot", conflate_by="number")
        items = collect(subscription, hear)
        found = [each for item in items if isinstance(item, Batch) for each in item.message_seqs.tolist()]
        assert (found, items[-1]) == ([8, 9, 10], SnapshotTaken(1, 3, 11))
        cluster.adapters[0].send(keyed(11, 5))
        items = collect(subscription, lambda items: 15 in message_seqs(items))
        assert message_seqs(items) == [11, 12, 13, 14, 15]


def with_table(adapter: ToyAdapter, *packets: OutputPacket) -> None:
    """Give an adapter these packets, and a table of their last values."""
    adapter.lose(*packets)
    adapter.last_values = [each._replace(adapter_id=adapter.adapter_id) for each in packets]


def test_a_snapshot_of_last_values_needs_no_history_and_continues_where_the_furthest_adapter_was(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_values, "OTHERS_WITHIN_S", last_values.ANSWER_WITHIN_S)  # of a slow machine
    first, second = cluster.adapters
    with_table(first, keyed(1, 5), keyed(6, 1))
    with_table(second, keyed(1, 5), keyed(6, 1), keyed(7, 4))
    with cluster.connect() as client:
        subscription = client.subscribe(TOPIC, start="snapshot", conflate_by="number")
        items = collect(subscription, lambda items: any(isinstance(each, SnapshotTaken) for each in items))
        assert (message_seqs(items), items[-1]) == ([8, 9, 10], SnapshotTaken(1, 3, 11))
        assert [each.message_seq for each in map(origin_of, items[:3])] == [8, 9, 10]
        first.lose(keyed(7, 4), keyed(11, 2))

        def hear(items: list[Item]) -> bool:
            first.send(heartbeat(13))
            return len(message_seqs(items)) >= 2

        assert message_seqs(collect(subscription, hear)) == [11, 12]
        assert {each.first for call in first.asked + second.asked for each in call.input_ranges} == {11}


def origin_of(item: Item) -> Any:
    assert isinstance(item, Batch)
    return next(item.messages()).origin


def test_a_snapshot_of_last_values_whose_history_was_superseded_repeats_nothing(cluster: ToyCluster) -> None:
    first, second = cluster.adapters
    with_table(first, keyed(1, 10))
    renumbered = [packet(8, 20, 2, stream=2, epoch=2), packet(10, 8, 5, epoch=2)]
    second.lose(keyed(1, 7), *renumbered)

    def hear(items: list[Item]) -> bool:
        second.send(heartbeat(15, lineage=((1, 1), (2, 8))))
        return len(message_seqs(items)) >= 7

    with cluster.connect() as client:
        first.journal.clear()
        subscription = client.subscribe(TOPIC, start="snapshot", conflate_by="number")
        items = collect(subscription, hear)
    assert message_seqs(items) == [8, 9, 10, 8, 9, 13, 14]  # source messages 8 to 10 were among the last values
    assert not [each for each in items if isinstance(each, Gap)]


@pytest.mark.parametrize("wrong", ["of another adapter", "after the position"])
def test_impossible_last_values_are_not_used(cluster: ToyCluster, wrong: str) -> None:
    for adapter in cluster.adapters:
        with_table(adapter, keyed(1, 5))
        fake = {"adapter_id": 9} if wrong == "of another adapter" else {"first_input_seq": 77}
        adapter.forge = lambda data, fake=fake: encode_output_packet(decode_output_packet(data)._replace(**fake))

    def hear(items: list[Item]) -> bool:
        cluster.adapters[0].send(heartbeat(6))
        return any(isinstance(each, SnapshotTaken) for each in items)

    with cluster.connect() as client:
        subscription = client.subscribe(TOPIC, start="snapshot", conflate_by="number")
        items = collect(subscription, hear)
        assert [seq for item in items if isinstance(item, Batch) for seq in item.message_seqs.tolist()] == [3, 4, 5]
        assert sum(adapter.replay_calls for adapter in cluster.adapters)


def test_a_cursor_moves_only_once_a_snapshot_of_last_values_was_handled(cluster: ToyCluster, tmp_path: Path) -> None:
    for adapter in cluster.adapters:
        with_table(adapter, keyed(1, 10))
    options: Any = {"start": "snapshot", "conflate_by": "number", "cursor": tmp_path / "cursor.json"}
    with cluster.connect() as client:
        for _ in range(2):
            with client.subscribe(TOPIC, **options) as subscription:
                first = next(iter(subscription))
                assert first.origin.message_seq == 8
        with client.subscribe(TOPIC, **options) as subscription:
            for item in subscription.items():
                if isinstance(item, SnapshotTaken):
                    break
        with client.subscribe(TOPIC, **options) as subscription:

            def hear(items: list[Item]) -> bool:
                cluster.adapters[0].send(heartbeat(13))
                return len(message_seqs(items)) >= 2

            cluster.adapters[0].lose(keyed(11, 2))
            assert message_seqs(collect(subscription, hear)) == [11, 12]


def test_without_an_answer_a_start_at_a_time_is_refused(cluster: ToyCluster) -> None:
    for adapter in cluster.adapters:
        adapter.replay_fault = "refuse"
    with cluster.connect() as client, pytest.raises(HistoryUnavailable, match=f"no adapter said where {TOPIC} was"):
        client.subscribe(TOPIC, start=AT_NS)


def test_a_snapshot_keeps_memory_for_each_key_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflation, "SNAPSHOT_COUNT_MIN", 50)
    intake = SnapshotIntake("number")
    intake._count_max = 50
    for first in range(1, 5_001, 10):
        intake.add(batch(1, first, [key % 7 for key in range(first, first + 10)], stream=10 + first % 3))
        assert len(intake._batches) <= 60
    taken = intake.take()
    assert [seq for each in taken for seq in each.message_seqs.tolist()] == list(range(4_994, 5_001))
    assert set(taken[-1].next_source_seqs()) == {10, 11, 12}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([Located(5, 100), Located(3, 100)], Located(3, 100)),
        ([Located(5, 100), Located(9, 0), Located(0, 0)], Located(5, 100)),
        ([Located(9, 0), Located(12, 0)], Located(12, 0)),
        ([Located(0, 0)], Located(1, 0)),
    ],
)
def test_the_adapter_with_the_longest_history_says_where_to_begin(answers: Any, expected: Located) -> None:
    assert choose(answers) == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (4711, "start is 4711; a number is a time in ns since 1970; give message_seqs by topic"),
        (datetime(2026, 11, 22, 14, 30), "without a time zone"),
        (np.datetime64("NaT"), "start is NaT"),
        ("yesterday", "must be 'live', 'first', 'snapshot', a time, or message_seqs by topic"),
        (True, "must be 'live'"),
    ],
)
def test_what_is_no_start_is_refused(start: object, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        check_start(start)


def test_times_keep_their_nanoseconds() -> None:
    assert time_of(datetime(2026, 11, 22, 14, 30, 0, 123_456, tzinfo=UTC)) == AT_NS + 123_456_000
    assert time_of(np.datetime64(AT_NS + 1, "ns")) == AT_NS + 1
    assert (time_of("live"), time_of({TOPIC: 5}), time_of("snapshot")) == (None, None, 0)
