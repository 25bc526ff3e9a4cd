"""Subscriptions that begin at a time or with a snapshot, and continue live without a seam."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandemfeed.client_lib import Gap, HistoryShortened, HistoryUnavailable, SnapshotTaken, read_losses
from tandemfeed.client_lib.items import Batch, Item
from tandemfeed.client_lib.reading import conflation
from tandemfeed.client_lib.reading.conflation import SnapshotIntake
from tandemfeed.client_lib.replay import last_values
from tandemfeed.client_lib.replay.locating import Located, Wanted, choose, last_heartbeats
from tandemfeed.client_lib.stream.starts import check_start, time_of
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import SessionChanged
from tandemfeed.feedcore.merge.history.place import Place
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OutputFlag,
    decode_output_packet,
    encode_output_packet,
    encode_runs,
)
from tests.client_lib.reading.test_reading_backlog import batch
from tests.client_lib.toy_cluster import (
    SESSION,
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
            HistoryShortened(1, 11, AT_NS + 5 * S, SESSION)
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


def located(session: int, seq: int, at_ns: int, epoch: int = 1, flags: int = 0) -> Located:
    beat = heartbeat(seq, lineage=((epoch, 1),), flags=flags)._replace(session=session)
    return Located(session, Place(seq, seq), at_ns, seq == 1, beat)


AT_A_TIME = Wanted(0, 50)


@pytest.mark.parametrize(
    ("wanted", "answers", "expected"),
    [
        (AT_A_TIME, [located(1, 5, 100), located(1, 3, 100)], [(1, 3)]),
        (AT_A_TIME, [located(1, 5, 100), located(1, 9, 0)], [(1, 5)]),
        (AT_A_TIME, [located(1, 9, 0), located(1, 12, 0), located(0, 70, 0)], [(1, 12)]),
        (AT_A_TIME, [], []),
        (AT_A_TIME, [located(2, 7, 300), located(1, 5, 100), located(2, 1, 200), located(0, 9, 0)], [(1, 5), (2, 1)]),
        (Wanted(1, message_seq=8), [located(1, 6, 0), located(1, 8, 100), located(2, 1, 200)], [(1, 8), (2, 1)]),
        (Wanted(1, message_seq=8), [located(1, 6, 0), located(1, 7, 0)], [(1, 7)]),
    ],
)
def test_the_adapter_with_the_longest_history_says_where_to_begin(
    wanted: Wanted, answers: list[Located], expected: Any
) -> None:
    assert [(each.session, each.place.message_seq) for each in choose(answers, wanted)] == expected


def test_the_newest_history_of_a_session_comes_first_and_final_heartbeats_before_others() -> None:
    end = OutputFlag.END_OF_STREAM
    answers = [located(1, 5, 100), located(1, 9, 100, 2), located(1, 8, 100, 2, end), located(1, 4, 100, 1, end)]
    found = [(each.epoch, bool(each.flags & end)) for each in last_heartbeats(answers)]
    assert found == [(2, True), (2, False), (1, True), (1, False)]


# ---- former sessions ----

YESTERDAY, TODAY = SESSION + 1, SESSION + 2


def three_days(cluster: ToyCluster) -> None:
    """Two sessions that are over, and one that goes on. Each adapter lacks something of the first."""
    cluster.session = TODAY
    for at, session in enumerate((SESSION, YESTERDAY, TODAY)):
        packets = [packet(1 + 5 * seq, 1 + 5 * seq, 5) for seq in range(4)]
        whole = [sent(each, 1_000 * at + seq)._replace(session=session) for seq, each in enumerate(packets)]
        for adapter in cluster.adapters:
            adapter.lose(*(each for each in whole if session != SESSION or whole.index(each) != adapter.adapter_id))
            adapter.applied_sessions = {SESSION, YESTERDAY}


def read_sessions(cluster: ToyCluster, start: Any, **options: Any) -> list[Any]:
    """(session, message_seq) of each message up to the 25th of the present session, and changes, gaps and shortenings
    between them; the last five are sent once the history is read."""
    found: list[Any] = []
    is_sent = False
    with cluster.connect() as client, client.subscribe(TOPIC, start=start, **options) as subscription:
        while (TODAY, 25) not in found:
            for adapter in cluster.adapters:
                adapter.send(heartbeat(26 if is_sent else 21)._replace(session=TODAY))
            for item in subscription.poll(1):
                if isinstance(item, Batch):
                    found += [(item.packet.session, seq) for seq in item.message_seqs.tolist()]
                elif isinstance(item, SessionChanged | Gap | HistoryShortened):
                    found.append(item)
            if (TODAY, 20) in found and not is_sent:
                is_sent = True
                cluster.adapters[0].send(packet(21, 21, 5)._replace(session=TODAY))
    return found


def day(session: int, first: int, last: int) -> list[tuple[int, int]]:
    return [(session, seq) for seq in range(first, last + 1)]


def changed(session: int, *, is_complete: bool = True) -> SessionChanged:
    return SessionChanged(1, session, session + 1, is_complete)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (AT_NS + 1 * S, 6),
        (AT_NS + 2 * S - 5, 11),
        ({TOPIC: (SESSION, 8)}, 8),
        ({TOPIC: (SESSION, 1)}, 1),
        (AT_NS - 1_000 * S, 1),
    ],
)
def test_a_subscription_begins_in_a_former_session_and_continues_live(
    cluster: ToyCluster, start: Any, first: int
) -> None:
    three_days(cluster)
    assert read_sessions(cluster, start) == [
        *day(SESSION, first, 20), changed(SESSION), *day(YESTERDAY, 1, 20), changed(YESTERDAY), *day(TODAY, 1, 25)
    ]  # fmt: skip


def test_a_time_between_two_sessions_is_the_beginning_of_the_later_one(cluster: ToyCluster) -> None:
    three_days(cluster)
    expected = [*day(YESTERDAY, 1, 20), changed(YESTERDAY), *day(TODAY, 1, 25)]
    assert read_sessions(cluster, AT_NS + 500 * S) == expected
    assert [seq for seq in read_sessions(cluster, {TOPIC: (TODAY, 7)}) if isinstance(seq, tuple)] == day(TODAY, 7, 25)


def test_what_retention_removed_of_former_sessions_is_told_before_the_first_message(cluster: ToyCluster) -> None:
    three_days(cluster)
    for adapter in cluster.adapters:
        adapter.applied_sessions = {SESSION}
        adapter.journal = [
            each for each in adapter.journal if each.session > SESSION and (each.session, each[7]) >= (YESTERDAY, 11)
        ]
    assert read_sessions(cluster, AT_NS) == [
        HistoryShortened(1, 11, AT_NS + 1_002 * S, YESTERDAY),
        *day(YESTERDAY, 11, 20), changed(YESTERDAY, is_complete=False), *day(TODAY, 1, 25)
    ]  # fmt: skip
    assert read_sessions(cluster, {TOPIC: (YESTERDAY, 9)})[:2] == [
        HistoryShortened(1, 11, AT_NS + 1_002 * S, YESTERDAY), (YESTERDAY, 11)
    ]  # fmt: skip
    for adapter in cluster.adapters:
        adapter.journal = [each for each in adapter.journal if each.session == TODAY]
    assert read_sessions(cluster, {TOPIC: (YESTERDAY, 9)})[:2] == [
        HistoryShortened(1, 1, AT_NS + 2_000 * S, TODAY), (TODAY, 1)
    ]  # fmt: skip


def test_a_playback_of_a_former_session_ends_at_its_end(cluster: ToyCluster) -> None:
    three_days(cluster)
    with cluster.connect() as client:
        subscription = client.subscribe(TOPIC, start=AT_NS, until=AT_NS + 1_002 * S)
        items: list[Item] = []
        while not subscription.is_closed:
            for adapter in cluster.adapters:
                adapter.send(heartbeat(21)._replace(session=TODAY))
            items += subscription.poll(0.1)
    found = [(item.packet.session, seq) for item in items if isinstance(item, Batch) for seq in item.message_seqs]
    assert found == [*day(SESSION, 1, 20), *day(YESTERDAY, 1, 10)]


def test_the_history_of_former_sessions_is_no_loss_and_a_gap_in_it_is_one_of_its_session(
    cluster: ToyCluster, tmp_path: Path
) -> None:
    three_days(cluster)
    for adapter in cluster.adapters:
        adapter.journal = [each for each in adapter.journal if (each.session, each[7]) != (YESTERDAY, 6)]
    config = MergerConfig(declare_after_ns=500_000_000)
    found = read_sessions(cluster, AT_NS, loss_report=tmp_path, merger_config=config)
    assert [each for each in found if isinstance(each, Gap)] == [Gap(1, 6, 11, 6, 11)]
    losses = [(each.session, each.first, each.end) for each in read_losses(tmp_path)]
    assert losses == [(YESTERDAY, 6, 11)]


def test_a_session_that_has_not_begun_is_refused(cluster: ToyCluster) -> None:
    with (
        cluster.connect() as client,
        pytest.raises(HistoryUnavailable, match=f"session {TODAY} of {TOPIC} has not"),
    ):
        client.subscribe(TOPIC, start={TOPIC: (TODAY, 1)})


@pytest.mark.parametrize("wrong", ["of another session", "no heartbeat", "no packet", "no position"])
def test_an_impossible_answer_of_an_adapter_is_not_used(
    cluster: ToyCluster, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_days(cluster)
    located_by_toy = ToyAdapter._located

    def forged(adapter: ToyAdapter, *arguments: Any) -> Any:
        answer = located_by_toy(adapter, *arguments)
        if adapter is cluster.adapters[0]:
            beat = decode_output_packet(answer.heartbeat)
            if wrong == "no packet":
                answer.heartbeat = b"nothing"
            elif wrong == "no position":
                answer.position.next_input_seq = 0
            else:
                change = {"session": 7} if wrong == "of another session" else {"flags": 0}
                answer.heartbeat = encode_output_packet(beat._replace(**change))
        return answer

    monkeypatch.setattr(ToyAdapter, "_located", forged)
    assert read_sessions(cluster, {TOPIC: (YESTERDAY, 18)})[:4] == [*day(YESTERDAY, 18, 20), changed(YESTERDAY)]
    cluster.adapters.pop(1)
    with cluster.connect() as client, pytest.raises(HistoryUnavailable, match="no adapter said"):
        client.subscribe(TOPIC, start={TOPIC: (YESTERDAY, 18)})


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (4711, "start is 4711; a number is a time in ns since 1970; give message_seqs by topic"),
        (datetime(2026, 11, 22, 14, 30), "without a time zone"),
        (np.datetime64("NaT"), "start is NaT"),
        ("yesterday", "must be 'live', 'first', 'snapshot', a time, or message_seqs by topic"),
        (True, "must be 'live'"),
        ({TOPIC: (20_261_121, 0)}, "expected a topic and a message_seq of at least 1, or (session, message_seq)"),
        ({TOPIC: (20_261_121,)}, "expected a topic and a message_seq"),
    ],
)
def test_what_is_no_start_is_refused(start: object, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        check_start(start)


def test_times_keep_their_nanoseconds() -> None:
    assert time_of(datetime(2026, 11, 22, 14, 30, 0, 123_456, tzinfo=UTC)) == AT_NS + 123_456_000
    assert time_of(np.datetime64(AT_NS + 1, "ns")) == AT_NS + 1
    assert (time_of("live"), time_of({TOPIC: 5}), time_of("snapshot")) == (None, None, 0)
