"""Unit tests of the production line: numbers, runs, digests, conversion ahead of decisions (clauses 4 and 6.8)."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import pairwise

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.input.decision_log import DecisionLogTooShort
from tandemfeed.feedcore.replica.input.source_tracker import Slice
from tandemfeed.feedcore.replica.output.production import (
    DIGESTS_KEPT,
    ConversionDiverged,
    ProductionLine,
    SnapshotRefused,
)
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import MessageStreamState, Run
from tests.feedcore.replica.engines import CHANNEL, a_channel, slices
from tests.simulation.toy_feed import SESSION

CONFIG = ReplicaConfig(digest_interval_messages=4)
EPOCH_1 = Lineage((EpochStart(1, 1, 1),))
TWO, NONE = 5, 7  # the toy converter makes two messages of TWO, none of NONE, one of any other value


def a_line() -> tuple[ProductionLine, Channel]:
    """A line in epoch 1, at its beginning, and its channel."""
    channel = a_channel(CONFIG)
    return channel.line, channel


def decide(channel: Channel, stream: int, values: list[int]) -> list[OutputPacket]:
    """Decide source messages as the active does."""
    first = channel.line.next_source_seqs[stream]
    return [packet for piece in slices(channel, stream, first, values) for packet in channel.line.decide(piece)]


def counted(channel: Channel, *counters: Counter) -> list[int]:
    """The values of these counters."""
    return [channel.counters.counts[counter] for counter in counters]


def run_of(stream: int, first: tuple[int, int, int], counts: tuple[int, int]) -> Run:
    """A run of epoch 1.

    Args:
        first: the first input_seq, message_seq and source_seq.
        counts: the number of source messages and of messages.
    """
    return Run(1, first[0], first[1], stream, first[2], *counts)


# ---- deciding ----


def test_a_decision_consumes_input_for_every_source_message_and_numbers_only_messages() -> None:
    line, channel = a_line()
    (packet,) = decide(channel, 1, [11, TWO, NONE])
    assert packet.runs == (run_of(1, (1, 1, 1), (3, 3)),)
    (packet,) = decide(channel, 2, [NONE])
    assert packet.runs == (run_of(2, (4, 4, 1), (1, 0)),)
    assert (packet.flags, packet.epoch, packet.session) == (OutputFlag.FROM_ACTIVE, 1, SESSION)
    assert (line.next_input_seq, line.next_message_seq, line.next_source_seqs) == (5, 4, {1: 4, 2: 2})
    counters = (Counter.RUNS_DECIDED, Counter.RUNS_FOLLOWED, Counter.PACKETS_OUT, Counter.MESSAGES_OUT)
    assert counted(channel, *counters) == [2, 0, 2, 3]


def test_a_slice_that_fills_several_datagrams_becomes_as_many_consecutive_runs() -> None:
    channel = a_channel(datagram_size_max=256)
    packets = decide(channel, 1, [11] * 6)
    assert len(packets) > 1
    assert sum(packet.message_count for packet in packets) == 6
    for before, after in pairwise(packets):
        assert after.first_input_seq == before.end_input_seq
        assert after.first_message_seq == before.end_message_seq
        assert after.runs[0].first_source_seq == before.runs[0].end_source_seq
    assert [len(packet.runs) for packet in packets] == [1] * len(packets)


def test_an_epoch_that_is_not_newer_begins_a_new_history() -> None:
    line, channel = a_line()
    decide(channel, 1, [11])
    line.open_epoch(3)
    assert line.lineage.entries == ((1, 1, 1), (3, 2, 2))
    line.open_epoch(3)  # the lease store lost its records
    assert line.lineage.entries == ((3, 2, 2),)


def test_a_heartbeat_gives_the_next_numbers_or_those_of_what_was_transmitted() -> None:
    line, channel = a_line()
    decide(channel, 1, [11, TWO])
    beat = line.heartbeat(int(OutputFlag.FROM_ACTIVE))
    assert beat.flags == OutputFlag.FROM_ACTIVE | OutputFlag.HEARTBEAT
    assert (beat.first_input_seq, beat.first_message_seq, beat.message_count, beat.runs) == (3, 4, 0, ())
    beat = line.heartbeat(0, (2, 1))
    assert (beat.first_input_seq, beat.first_message_seq) == (2, 1)


# ---- following ----


def test_a_run_is_followed_with_the_actives_numbers_however_its_messages_are_split() -> None:
    active, backup = a_line()[1], a_line()[1]
    (decided,) = decide(active, 1, [11, TWO, NONE, 13])
    pieces = slices(backup, 1, 1, [11, TWO]) + slices(backup, 1, 3, [NONE, 13])
    packets = backup.line.follow(decided.runs[0], pieces, EPOCH_1)
    assert [(packet.first_input_seq, packet.first_message_seq, packet.message_count) for packet in packets] == [
        (1, 1, 3),
        (3, 4, 1),
    ]
    assert [packet.flags for packet in packets] == [OutputFlag.NONE] * 2
    assert backup.line.position() == active.line.position()
    assert counted(backup, Counter.RUNS_DECIDED, Counter.RUNS_FOLLOWED) == [0, 1]


@pytest.mark.parametrize("message_count", [1, 3])
def test_a_different_number_of_messages_than_decided_is_a_divergence(message_count: int) -> None:
    line, channel = a_line()
    pieces = slices(channel, 1, 1, [11, 13])
    text = f"source stream 1, source_seq 1 to 2: the active made {message_count} messages, this adapter 2"
    with pytest.raises(ConversionDiverged, match=text):
        line.follow(run_of(1, (1, 1, 1), (2, message_count)), pieces, EPOCH_1)


def test_a_run_of_a_newer_epoch_takes_its_history_up_to_that_epoch() -> None:
    line, channel = a_line()
    lineage = EPOCH_1.opened(2, 1, 1).opened(3, 9, 9)
    line.follow(run_of(1, (1, 1, 1), (1, 1))._replace(epoch=2), slices(channel, 1, 1, [11]), lineage)
    assert line.lineage.entries == ((1, 1, 1), (2, 1, 1))


# ---- ahead of any decision ----


def forward(channel: Channel, stream: int, first: int, values: list[int]) -> list[OutputPacket]:
    """Send provisionally."""
    return [packet for piece in slices(channel, stream, first, values) for packet in channel.line.forward(piece)]


def test_packets_sent_ahead_have_their_own_numbers_and_do_not_move_the_position() -> None:
    line, channel = a_line()
    before = line.position()
    first, second = forward(channel, 1, 1, [11, TWO]), forward(channel, 2, 1, [13])
    assert [(packet.first_input_seq, packet.first_message_seq) for packet in first + second] == [(1, 1), (3, 4)]
    assert line.position() == before
    assert counted(channel, Counter.PACKETS_PROVISIONAL, Counter.RUNS_DECIDED) == [2, 0]


def test_packets_sent_ahead_are_committed_to_the_log_in_the_new_epoch() -> None:
    line, channel = a_line()
    forward(channel, 1, 1, [11, TWO])
    forward(channel, 2, 1, [13])
    start = line.position()
    assert line.commit_provisional(4) == line.next_input_seq == 4
    assert (line.next_message_seq, line.next_source_seqs) == (5, {1: 3, 2: 2})
    logged = line.log.since(start, line.lineage).reply().runs
    assert [(run.epoch, run.source_stream_id, run.source_count) for run in logged] == [(4, 1, 2), (4, 2, 1)]
    assert line.lineage.entries == ((1, 1, 1), (4, 1, 1))
    assert line.provisional is None


def test_decisions_before_packets_sent_ahead_stay_in_the_log() -> None:
    line, channel = a_line()
    start = line.position()
    decide(channel, 2, [13])
    forward(channel, 1, 1, [11])
    line.commit_provisional(4)
    logged = line.log.since(start, line.lineage).reply().runs
    assert [(run.epoch, run.source_stream_id) for run in logged] == [(1, 2), (4, 1)]


def test_if_more_was_sent_ahead_than_is_remembered_the_log_begins_with_the_oldest_remembered_run() -> None:
    line, channel = a_line()
    start = line.position()
    forward(channel, 1, 1, [11])
    forward(channel, 1, 2, [13])
    assert line.provisional is not None
    line.provisional.runs = deque(line.provisional.runs, maxlen=1)
    line.commit_provisional(4)
    with pytest.raises(DecisionLogTooShort):
        line.log.since(start, line.lineage)
    after_first = MessageStreamState(4, 2, 2, {1: 2, 2: 1})
    assert [run.first_input_seq for run in line.log.since(after_first, line.lineage).reply().runs] == [2]


def test_if_nothing_was_sent_ahead_a_committed_epoch_begins_at_the_position() -> None:
    line, channel = a_line()
    decide(channel, 1, [11])
    assert line.commit_provisional(4) == 2
    assert line.lineage.entries == ((1, 1, 1), (4, 2, 2))


def test_only_the_rest_of_a_run_that_was_sent_ahead_in_part_is_converted() -> None:
    line, channel = a_line()
    forward(channel, 1, 1, [11, 13])
    forward(channel, 2, 1, [17])
    (rest,) = slices(channel, 1, 3, [TWO])
    run = run_of(1, (1, 1, 1), (3, 4))
    assert line.provisional is not None
    assert line.provisional.unconverted_from(run) == 3
    (packet,) = line.follow(run, [rest], EPOCH_1)
    assert (packet.first_input_seq, packet.first_message_seq, packet.message_count) == (3, 3, 2)
    assert packet.runs == (run_of(1, (3, 3, 3), (1, 2)),)
    assert line.provisional.ends == {1: 4, 2: 2}, "stream 2 is still ahead"
    line.follow(run_of(2, (4, 5, 1), (1, 1)), [], EPOCH_1)
    assert line.provisional is None


def test_a_declared_loss_of_messages_that_were_sent_ahead_is_a_divergence() -> None:
    line, channel = a_line()
    forward(channel, 1, 1, [11])
    with pytest.raises(ConversionDiverged, match="declares lost source messages that were converted and sent here"):
        line.follow_gap(run_of(1, (1, 1, 1), (1, 1))._replace(is_source_gap=True), 0, EPOCH_1)
    line.follow_gap(run_of(2, (1, 1, 1), (3, 1))._replace(is_source_gap=True), 0, EPOCH_1)
    assert line.provisional is not None
    assert line.provisional.ends == {1: 2, 2: 4}


# ---- digests (clause 4.3) ----


def test_a_digest_is_taken_where_a_run_ends_at_or_after_a_multiple_of_the_interval() -> None:
    line, channel = a_line()
    decide(channel, 1, [11, 13])
    assert line.digests_at == {}
    decide(channel, 1, [17])
    assert set(line.digests_at) == {4}
    decide(channel, 1, [19])
    decide(channel, 1, [23] * 6)
    assert set(line.digests_at) == {4, 11}
    assert (line.digest.epoch, line.digest.input_seq, line.digest.digests) == (1, 11, line.digests())


def test_the_newest_digests_are_kept() -> None:
    line, channel = a_line()
    for _ in range(DIGESTS_KEPT + 2):
        decide(channel, 1, [11] * 4)
    assert set(line.digests_at) == {1 + 4 * number for number in range(3, DIGESTS_KEPT + 3)}


def test_while_conversion_is_ahead_no_digest_is_taken_and_older_ones_are_dropped_afterwards() -> None:
    line, channel = a_line()
    decide(channel, 1, [11] * 4)
    forward(channel, 2, 1, [13])
    (rest,) = slices(channel, 1, 5, [17] * 4)
    line.follow(run_of(1, (5, 5, 5), (4, 4)), [rest], EPOCH_1)
    assert set(line.digests_at) == {5}
    line.follow(run_of(2, (9, 9, 1), (1, 1)), [], EPOCH_1)
    assert (line.digests_at, line.digest.input_seq) == ({}, 0)


# ---- the state of another adapter ----


def test_a_snapshot_replaces_the_position_the_state_the_digests_and_the_log() -> None:
    (line, channel), (other, other_channel) = a_line(), a_line()
    decide(other_channel, 1, [11, TWO])
    decide(channel, 2, [13] * 4)
    line.install(other.snapshot())
    assert line.position() == other.position()
    assert line.digests() == other.digests()
    assert (line.digests_at, line.digest.input_seq) == ({}, 0)
    assert line.log.since(line.position(), line.lineage).reply().runs == ()
    assert counted(channel, Counter.SNAPSHOTS_INSTALLED) == [1]


def test_digests_from_before_a_commit_of_what_was_sent_ahead_are_dropped() -> None:
    line, channel = a_line()
    decide(channel, 1, [11] * 4)
    assert set(line.digests_at) == {5}
    forward(channel, 2, 1, [13])
    line.commit_provisional(4)
    assert (line.digests_at, line.digest.input_seq) == ({}, 0)


def test_a_snapshot_discards_what_was_sent_ahead() -> None:
    line, channel = a_line()
    forward(channel, 1, 1, [11])
    line.install(a_line()[0].snapshot())
    assert line.provisional is None


def test_buckets_are_set_unless_they_do_not_fit_or_do_not_repair_the_state() -> None:
    (line, channel), (other, other_channel) = a_line(), a_line()
    for each in (channel, other_channel):
        decide(each, 1, [11] * 4)
    decided = line.digests()
    line.set_buckets(other.buckets((1,)))
    assert line.digests() == decided
    assert counted(channel, Counter.BUCKETS_SET) == [1]
    assert line.digests_at == {}
    with pytest.raises(ConversionDiverged, match="the active's buckets do not fit"):
        line.set_buckets(replace(other.buckets((1,)), data=b"x"))
    with pytest.raises(ConversionDiverged, match="even after setting the buckets"):
        line.set_buckets(replace(other.buckets((1,)), digests=(1,)))
    assert other.buckets((1,)).session == other.snapshot().session == SESSION
    assert other.snapshot().channel_id == CHANNEL


def test_a_declared_loss_has_one_message_and_counts_as_a_decision() -> None:
    line, channel = a_line()
    packet = line.decide_gap(1, 3)
    assert packet.runs == (run_of(1, (1, 1, 1), (3, 1))._replace(is_source_gap=True),)
    assert (packet.flags, packet.message_count) == (OutputFlag.FROM_ACTIVE, 1)
    assert (line.next_input_seq, line.next_message_seq, line.next_source_seqs[1]) == (4, 2, 4)
    assert counted(channel, Counter.RUNS_DECIDED) == [1]


def test_a_piece_may_begin_inside_its_packet() -> None:
    line, channel = a_line()
    (whole,) = slices(channel, 1, 1, [11, 13, 17])
    (packet,) = line.decide(Slice(whole.packet, 0, 1, 1))
    (rest,) = line.decide(Slice(whole.packet, 1, 2, 1))
    assert (packet.runs[0].source_count, rest.runs[0].first_source_seq, rest.runs[0].source_count) == (1, 2, 2)


def test_a_packets_payload_begins_with_its_run_and_it_has_no_time_of_its_own() -> None:
    line, channel = a_line()
    (packet,) = decide(channel, 1, [11, TWO, NONE])
    beat = line.heartbeat(OutputFlag.FROM_ACTIVE)
    gap = line.decide_gap(1, 3)
    for each in (packet, gap):
        assert each.payload.startswith(encode_runs(each.runs))
    assert [(each.source_sent_at_ns, each.sent_at_ns) for each in (packet, gap, beat)] == [(0, 0)] * 3


def test_every_packet_is_counted_heartbeats_and_gap_markers_too() -> None:
    line, channel = a_line()
    counters = (Counter.PACKETS_OUT, Counter.MESSAGES_OUT)
    line.heartbeat(OutputFlag.FROM_ACTIVE)
    assert counted(channel, *counters) == [1, 0]
    line.decide_gap(1, 3)
    assert counted(channel, *counters) == [2, 1]


def test_messages_that_a_backup_numbers_as_the_active_does_count_as_followed() -> None:
    line, channel = a_line()
    (piece,) = slices(channel, 1, 1, [11])
    line.decide(piece, OutputFlag.NONE)
    assert counted(channel, Counter.RUNS_DECIDED, Counter.RUNS_FOLLOWED) == [0, 1]


def test_a_declared_loss_of_a_newer_epoch_takes_its_history() -> None:
    line, _ = a_line()
    history = Lineage((*EPOCH_1.entries, EpochStart(2, 1, 1)))
    line.follow_gap(Run(2, 1, 1, 1, 1, 3, 1, is_source_gap=True), OutputFlag.NONE, history)
    assert (line.epoch, line.lineage) == (2, history)


def test_a_damaged_snapshot_is_refused_and_changes_nothing() -> None:
    line, channel = a_line()
    decide(channel, 1, [11, 12])
    other, other_channel = a_line()
    decide(other_channel, 1, [21])
    snapshot, before = other.snapshot(), (line.digests(), line.position())
    with pytest.raises(SnapshotRefused, match="is damaged"):
        line.install(replace(snapshot, digests=tuple(digest ^ 1 for digest in other.digests())))
    assert (line.digests(), line.position()) == before
