"""Channels that read the same source stream, by different tables: what one packet does in each of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot
from tandemfeed.feedcore.replica.config import ChannelConfig, EngineConfig, ReplicaConfig
from tandemfeed.feedcore.replica.effects import AdapterEffect, RequestSource, RunsLost, SessionBegun
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.replica.input.source_tracker import TrackerConfig
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.position import MessageStreamState
from tandemfeed.feedcore.wire.refusal import Refusal
from tandemfeed.feedcore.wire.source_packet import SourceFlag
from tests.feedcore.replica.engines import LEASE_NS, MS, SECOND, data, of, transmitted
from tests.simulation.toy_feed import FEED_ID, SESSION, ToyConverter, copies_of, encode_source

BOTH, FIRST_ONLY = 1, 2  # channels: one reads both streams by table 0, the other one stream 1 by table 1
CONFIG = ReplicaConfig(tracker=TrackerConfig(declare_after_ns=500 * MS))
VALUES = [7, 15, 11]  # table 0 makes 0, 2 and 1 messages of them, table 1 makes 1, 0 and 1
END = SourceFlag.HEARTBEAT | SourceFlag.END_OF_STREAM


def an_engine(adapter_id: int = 1) -> AdapterEngine:
    """An adapter of the two channels, joining."""
    channels = (ChannelConfig(BOTH, (1, 2)), ChannelConfig(FIRST_ONLY, (1,)))
    config = EngineConfig(FEED_ID, adapter_id, SESSION, channels, replica=CONFIG)
    return AdapterEngine(config, {BOTH: ToyConverter(), FIRST_ONLY: ToyConverter(1)}, CounterSet(), 0)


def an_active() -> AdapterEngine:
    """The same, active since time 0."""
    engine = an_engine()
    engine.on_lease_granted(1, LEASE_NS, 0)
    return engine


def take(
    engine: AdapterEngine, first: int, values: list[int], now_ns: int, *, stream: int = 1, flags: int = 0, days: int = 0
) -> list[AdapterEffect]:
    """Pass a source packet of a session, so many days after the first one, to an adapter."""
    rows = [(stream % 2, value) for value in values]
    return engine.on_source_datagram(encode_source(stream, first, rows, 0, flags, SESSION + days), now_ns)


def numbers(effects: list[AdapterEffect]) -> list[tuple[int, int, int, int]]:
    """Of each transmitted packet with decisions: its channel, first numbers and messages."""
    return [
        (each.channel_id, each.first_input_seq, each.first_message_seq, each.message_count) for each in data(effects)
    ]


def next_source_seqs(engine: AdapterEngine) -> Mapping[int, Mapping[int, int]]:
    """By channel and stream."""
    return {channel_id: replica.line.next_source_seqs for channel_id, replica in engine.replicas.items()}


def test_each_channel_converts_a_packet_by_its_own_table_and_gives_it_its_own_numbers() -> None:
    active = an_active()
    assert [sum(copies_of(value, table) for value in VALUES) for table in (0, 1)] == [3, 2]
    take(active, 1, [11], MS, stream=2)  # moves only the first channel
    assert numbers(take(active, 1, VALUES, MS)) == [(BOTH, 2, 2, 3), (FIRST_ONLY, 1, 1, 2)]
    assert active.counters.counts[Counter.SOURCE_PACKETS] == 2


def test_a_packet_that_does_not_fit_its_format_reaches_no_channel_and_is_counted_once() -> None:
    active = an_active()
    bad = encode_source(1, 1, [(1, 11)], 0, 0) + b"x"
    assert active.on_source_datagram(bad, MS) == []
    assert active.counters.refusals[Refusal.MALFORMED] == 1


def test_a_backup_follows_the_decisions_of_each_channel() -> None:
    active, backup = an_active(), an_engine(2)
    backup.on_cluster_changed(1, 1, 0, [1])
    for channel_id in (BOTH, FIRST_ONLY):
        backup.on_answer(channel_id, active.snapshot(channel_id), 0)
    for packet in transmitted(active.on_timer(20 * MS)):
        backup.on_output_packet(packet, 20 * MS)
    assert {replica.state for replica in backup.replicas.values()} == {ReplicaState.SYNCHRONIZED}
    decided = take(active, 1, VALUES, 21 * MS)
    take(backup, 1, VALUES, 21 * MS)
    for packet in transmitted(decided):
        copies = data(backup.on_output_packet(packet, 22 * MS))
        assert [copy._replace(adapter_id=1, flags=packet.flags) for copy in copies] == [packet]
    assert next_source_seqs(backup) == next_source_seqs(active)


def test_what_several_channels_lack_is_requested_once_and_the_answer_serves_all() -> None:
    active = an_active()
    take(active, 3, [11], MS)
    assert of(active.on_timer(4 * MS), RequestSource) == [RequestSource(1, ((1, 3),), SESSION)]
    effects = take(active, 1, [13, 17], 5 * MS)
    assert [(channel, input_seq) for channel, input_seq, *_ in numbers(effects)] == [
        (BOTH, 1), (BOTH, 3), (FIRST_ONLY, 1), (FIRST_ONLY, 3)
    ]  # fmt: skip
    assert take(active, 1, [13, 17], 6 * MS) == []
    assert not of(active.on_timer(60 * MS), RequestSource)


def test_a_loss_is_declared_only_in_the_channel_that_lacks_the_messages() -> None:
    active = an_engine()
    position = MessageStreamState(1, 3, 3, {1: 3})
    lineage = Lineage().opened(1, 1, 1)
    active.resume_from(ChannelSnapshot(FIRST_ONLY, position, lineage, ToyConverter(1).snapshot(), session=SESSION))
    active.on_lease_granted(2, 10 * SECOND, 0)
    assert numbers(take(active, 3, [11], MS)) == [(FIRST_ONLY, 3, 3, 1)]
    effects = active.on_timer(501 * MS)
    assert of(effects, RunsLost) == [RunsLost(BOTH, 1, 1, 2)]
    assert [(packet.channel_id, packet.runs[0].is_source_gap) for packet in data(effects)] == [
        (BOTH, True), (BOTH, False)
    ]  # fmt: skip
    assert next_source_seqs(active) == {BOTH: {1: 4, 2: 1}, FIRST_ONLY: {1: 4}}


def test_the_session_changes_when_every_channel_has_ended_and_begins_in_each() -> None:
    active = an_active()
    take(active, 1, [11], MS)
    take(active, 2, [], MS, flags=END)
    assert not of(take(active, 1, [13], MS, days=1), SessionBegun)  # stream 2 has not ended
    effects = take(active, 1, [], 2 * MS, stream=2, flags=END)
    assert of(effects, SessionBegun) == [SessionBegun(SESSION, SESSION + 1, is_complete=True)]
    assert numbers(effects) == [(BOTH, 1, 1, 1), (FIRST_ONLY, 1, 1, 1)]


def test_a_channel_reads_a_stream_only_once() -> None:
    with pytest.raises(ValueError, match=r"channel 1 must read each source stream once; it reads \[1, 2, 1\]"):
        ChannelConfig(1, (1, 2, 1))
