"""The active's decisions wait for a backup, are announced meanwhile, and are published in order (clause 5.6)."""

from __future__ import annotations

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.config import PublishMode, ReplicaConfig
from tandemfeed.feedcore.replica.effects import AdapterEffect, AppendToJournal, Publish
from tandemfeed.feedcore.replica.output.publish_gate import REANNOUNCED_MAX, PublishGate
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tests.feedcore.replica.engines import MS, a_channel, data, of, slices, transmitted

ACKED = ReplicaConfig(publish=PublishMode.ACKED)


def a_gate(config: ReplicaConfig = ACKED) -> tuple[PublishGate, Channel]:
    """The gate of an active whose backup has acknowledged everything so far, and its channel."""
    channel = a_channel(config)
    gate = PublishGate(channel)
    gate.begin()
    gate.on_acknowledged(1)
    return gate, channel


def decide(gate: PublishGate, channel: Channel, count: int, now_ns: int = 0) -> list[AdapterEffect]:
    """Publish `count` decisions of one source message each together; returns the effects."""
    first = channel.line.next_source_seqs[1]
    pieces = [piece for seq in range(first, first + count) for piece in slices(channel, 1, seq, [11])]
    gate.publish([packet for piece in pieces for packet in channel.line.decide(piece)], now_ns)
    return taken(channel)


def taken(channel: Channel) -> list[AdapterEffect]:
    """The effects since the last call."""
    effects, channel.effects = channel.effects, []
    return effects


def at_timer(gate: PublishGate, channel: Channel, now_ns: int) -> list[AdapterEffect]:
    """Call the gate's timer; returns the effects."""
    gate.on_timer(now_ns)
    return taken(channel)


def ends(packets: list[OutputPacket]) -> list[int]:
    """The `input_seq` after each packet."""
    return [packet.end_input_seq for packet in packets]


def announced(effects: list[AdapterEffect]) -> list[int]:
    """The ends of the announced decisions; checks that nothing else was transmitted."""
    assert all(packet.flags & OutputFlag.ANNOUNCEMENT for packet in data(effects))
    return ends(data(effects))


def published(effects: list[AdapterEffect]) -> list[int]:
    """The ends of the transmitted packets; checks that each was journaled immediately before."""
    assert of(effects, Publish) == effects
    return ends(transmitted(effects))


def test_an_async_feed_publishes_immediately_and_counts_nothing_as_unacknowledged() -> None:
    gate, channel = a_gate(ReplicaConfig())
    assert published(decide(gate, channel, 2)) == [2, 3]
    assert channel.counters.counts[Counter.PACKETS_UNACKED] == 0
    assert gate.next_deadline_ns() is None


def test_an_acked_feed_without_a_backup_publishes_immediately_and_counts_each_packet() -> None:
    channel = a_channel(ACKED)
    gate = PublishGate(channel)
    gate.begin()
    assert published(decide(gate, channel, 2)) == [2, 3]
    assert channel.counters.counts[Counter.PACKETS_UNACKED] == 2


def test_a_term_waits_only_for_a_backup_that_has_reached_its_beginning() -> None:
    gate, channel = a_gate()
    decide(gate, channel, 2)
    gate.journal_unsent()
    taken(channel)
    gate.begin()  # the next term, at input_seq 3
    gate.on_acknowledged(2)
    assert published(decide(gate, channel, 1)) == [4]
    gate.on_acknowledged(3)
    assert announced(decide(gate, channel, 1)) == [5]


def test_an_acknowledgement_releases_exactly_the_packets_that_end_at_or_before_it() -> None:
    gate, channel = a_gate()
    assert gate.released() is None
    assert announced(decide(gate, channel, 3)) == [2, 3, 4]
    assert gate.released() == (1, 1)
    gate.on_acknowledged(3)
    assert published(taken(channel)) == [2, 3]
    assert gate.is_holding
    assert gate.released() == (3, 3)
    gate.on_acknowledged(4)
    assert published(taken(channel)) == [4]
    assert not gate.is_holding


def test_announcements_are_repeated_at_an_interval_that_begins_with_the_first_waiting_one() -> None:
    gate, channel = a_gate()
    decide(gate, channel, 1, 2 * MS)
    decide(gate, channel, 1, 8 * MS)
    assert gate.next_deadline_ns() == 12 * MS
    assert at_timer(gate, channel, 12 * MS - 1) == []
    assert announced(at_timer(gate, channel, 12 * MS)) == [2, 3]
    assert at_timer(gate, channel, 13 * MS) == []
    assert gate.next_deadline_ns() == 22 * MS


def test_only_the_oldest_announcements_are_repeated() -> None:
    gate, channel = a_gate()
    decide(gate, channel, REANNOUNCED_MAX + 1)
    assert announced(at_timer(gate, channel, 10 * MS)) == list(range(2, REANNOUNCED_MAX + 2))


def test_after_the_timeout_the_active_continues_alone_until_a_backup_is_level_again() -> None:
    gate, channel = a_gate()
    decide(gate, channel, 2, MS)
    decide(gate, channel, 1, 30 * MS)
    ends_at_ns = MS + ACKED.ack_timeout_ns
    assert announced(at_timer(gate, channel, ends_at_ns - 1)) == [2, 3, 4]
    assert gate.next_deadline_ns() == ends_at_ns
    assert published(at_timer(gate, channel, ends_at_ns)) == [2, 3, 4]
    assert channel.counters.counts[Counter.PACKETS_UNACKED] == 3
    assert gate.next_deadline_ns() is None
    gate.on_acknowledged(3)
    assert published(decide(gate, channel, 1, ends_at_ns)) == [5]
    gate.on_acknowledged(4)
    assert announced(decide(gate, channel, 1, ends_at_ns)) == [6]


def test_everything_is_published_when_more_packets_wait_than_the_limit() -> None:
    gate, channel = a_gate(ReplicaConfig(publish=PublishMode.ACKED, acked_held_count_max=2))
    assert announced(decide(gate, channel, 2)) == [2, 3]
    effects = decide(gate, channel, 1)
    assert announced(effects[:1]) == [4]
    assert published(effects[1:]) == [2, 3, 4]
    assert channel.counters.counts[Counter.PACKETS_UNACKED] == 3
    assert not gate.is_holding


def test_a_term_that_ends_in_order_publishes_everything_once() -> None:
    gate, channel = a_gate()
    decide(gate, channel, 2)
    gate.release_all()
    assert published(taken(channel)) == [2, 3]
    gate.release_all()
    assert taken(channel) == []


def test_a_term_that_is_cut_off_only_journals_the_waiting_packets() -> None:
    gate, channel = a_gate()
    decide(gate, channel, 2)
    gate.journal_unsent()
    assert ends([effect.packet for effect in of(taken(channel), AppendToJournal)]) == [2, 3]
    assert not gate.is_holding
    gate.on_acknowledged(3)
    assert taken(channel) == []


def test_the_patience_with_the_oldest_packet_that_waits_is_a_deadline() -> None:
    config = ReplicaConfig(publish=PublishMode.ACKED, ack_timeout_ns=55 * MS, announce_every_ns=10 * MS)
    gate, channel = a_gate(config)
    decide(gate, channel, 1)
    decide(gate, channel, 1, 3 * MS)
    for now_ns in range(10 * MS, 60 * MS, 10 * MS):
        assert gate.next_deadline_ns() == now_ns
        at_timer(gate, channel, now_ns)
    assert gate.next_deadline_ns() == 55 * MS
    assert published(at_timer(gate, channel, 55 * MS)) == [2, 3]
