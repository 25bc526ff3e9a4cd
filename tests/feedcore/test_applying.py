"""Decisions meet source messages: a run is applied when it is next and all its messages are here (clauses 5.2, 5.5)."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.replica.applying import anticipate, apply_decisions, forward
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.effects import AppendToJournal, Transmit
from tandemfeed.feedcore.replica.provisional import Throttle
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.position import Run
from tests.feedcore.engines import MS, a_channel, slices


def arrive(channel: Channel, stream: int, first: int, count: int) -> None:
    """So many source messages of which each makes one message."""
    channel.backlog.add(stream, slices(channel, stream, first, [11] * count))


def a_run(stream: int, first: int, first_source: int, count: int, *, is_gap: bool = False) -> Run:
    """Of epoch 1, whose every source message makes one message, so that message_seq and input_seq are equal."""
    return Run(1, first, first, stream, first_source, count, 1 if is_gap else count, is_source_gap=is_gap)


def published(channel: Channel) -> list[OutputPacket]:
    """What was journaled and then transmitted since the last call."""
    effects, channel.effects = channel.effects, []
    packets = [effect.packet for effect in effects if isinstance(effect, Transmit)]
    assert [effect.packet for effect in effects if isinstance(effect, AppendToJournal)] == packets
    return packets


def numbers(packets: list[OutputPacket]) -> list[tuple[int, int]]:
    """First input_seq and count of messages."""
    return [(packet.first_input_seq, packet.message_count) for packet in packets]


def applied(channel: Channel, *, only_quiet: bool = False) -> list[tuple[int, int]]:
    """What applying transmits."""
    apply_decisions(channel, MS, only_quiet=only_quiet)
    return numbers(published(channel))


def test_a_run_is_applied_once_all_its_messages_are_here() -> None:
    channel = a_channel()
    channel.intake.on_runs([a_run(1, 1, 1, 3)], 0)
    arrive(channel, 1, 1, 2)
    assert applied(channel) == []
    arrive(channel, 1, 3, 2)
    assert applied(channel) == [(1, 2), (3, 1)]
    assert (channel.line.next_input_seq, channel.backlog.message_count) == (4, 1)


def test_a_run_waits_for_the_one_before_it() -> None:
    channel = a_channel()
    channel.intake.on_runs([a_run(1, 1, 1, 1), a_run(2, 2, 1, 1)], 0)
    arrive(channel, 2, 1, 1)
    assert applied(channel) == []
    arrive(channel, 1, 1, 1)
    assert applied(channel) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("only_quiet", [True, False])
def test_what_a_former_life_transmitted_is_applied_quietly(only_quiet: bool) -> None:
    channel = a_channel()
    channel.transmitted_ends[1] = 3
    channel.intake.on_runs([a_run(1, 1, 1, 2), a_run(1, 3, 3, 1)], 0)
    arrive(channel, 1, 1, 3)
    assert applied(channel, only_quiet=only_quiet) == ([] if only_quiet else [(3, 1)])
    assert channel.line.next_input_seq == (3 if only_quiet else 4)


def test_a_declared_loss_skips_what_is_here_of_it_and_nothing_after_it() -> None:
    channel = a_channel()
    channel.intake.on_runs([a_run(1, 1, 1, 3, is_gap=True)], 0)
    arrive(channel, 1, 1, 1)
    arrive(channel, 1, 4, 1)  # early
    apply_decisions(channel, MS)
    (gap,) = published(channel)
    assert (gap.runs[0].is_source_gap, gap.flags) == (True, OutputFlag.NONE)
    assert channel.backlog.message_count == 1
    channel.intake.on_runs([Run(1, 4, 2, 1, 4, 1, 1)], MS)
    assert applied(channel) == [(4, 1)]


# ---- channels of one source stream ----


def anticipating(ends_at: int | None = None) -> Channel:
    """A channel of one stream in which a decision was applied; its epoch ends there, if anywhere."""
    channel = a_channel(streams=(1,))
    if ends_at is not None:
        channel.intake.on_lineage(Lineage().opened(1, 1, 1).opened(2, ends_at, ends_at), channel.line.position())
    channel.intake.on_runs([a_run(1, 1, 1, 1)], 0)
    arrive(channel, 1, 1, 1)
    assert applied(channel) == [(1, 1)]
    return channel


def test_what_needs_no_decision_is_transmitted_at_once_not_as_the_active() -> None:
    channel = anticipating()
    arrive(channel, 1, 2, 2)
    anticipate(channel)
    (packet,) = published(channel)
    assert (packet.first_input_seq, packet.message_count, packet.flags) == (2, 2, OutputFlag.NONE)
    assert channel.intake.position() == channel.line.position()
    channel.intake.on_runs([a_run(1, 2, 2, 2)], MS)  # the decision, later
    assert applied(channel) == []


def test_nothing_is_numbered_past_the_end_of_the_epoch() -> None:
    channel = anticipating(ends_at=3)
    arrive(channel, 1, 2, 3)
    anticipate(channel)
    assert numbers(published(channel)) == [(2, 1)]
    assert channel.backlog.message_count == 2


def test_what_a_former_life_transmitted_is_not_transmitted_again_without_a_decision_either() -> None:
    channel = anticipating()
    channel.transmitted_ends[1] = 3
    for first in (2, 3):
        arrive(channel, 1, first, 1)
        anticipate(channel)
    assert numbers(published(channel)) == [(3, 1)]


# ---- ahead ----


def test_while_an_active_is_heard_a_pause_keeps_the_rest_in_order_and_otherwise_there_is_none() -> None:
    for is_throttled in (True, False):
        channel = a_channel()
        for first in (1, 3, 5):
            arrive(channel, 1, first, 2)
        throttle = Throttle(2, 7 * MS)
        forward(channel, throttle, MS, is_throttled=is_throttled)
        assert numbers(published(channel)) == ([(1, 2)] if is_throttled else [(1, 2), (3, 2), (5, 2)])
        forward(channel, throttle, 2 * MS, is_throttled=is_throttled)
        assert published(channel) == []
        forward(channel, throttle, 8 * MS, is_throttled=is_throttled)
        assert numbers(published(channel)) == ([(3, 2)] if is_throttled else [])


def test_a_pause_holds_nothing_up_once_the_active_is_silent_again() -> None:
    channel, throttle = a_channel(), Throttle(2, 7 * MS)
    for first in (1, 3):
        arrive(channel, 1, first, 2)
    forward(channel, throttle, MS, is_throttled=True)
    forward(channel, throttle, 2 * MS, is_throttled=False)
    assert numbers(published(channel)) == [(1, 2), (3, 2)]


def ahead() -> Channel:
    """Two messages of stream 1 and one of stream 2 were sent provisionally."""
    channel = a_channel(ReplicaConfig())
    arrive(channel, 1, 1, 2)
    arrive(channel, 2, 1, 1)
    forward(channel, Throttle(1_000, MS), 0, is_throttled=False)
    published(channel)
    return channel


def test_decisions_wait_until_they_and_their_messages_lead_past_all_that_was_sent() -> None:
    channel = ahead()
    channel.intake.on_runs([a_run(1, 1, 1, 2)], 0)
    assert applied(channel) == []
    assert channel.line.next_input_seq == 1, "stream 2 is not decided"
    channel.intake.on_runs([a_run(1, 3, 3, 1), a_run(2, 4, 1, 1)], 0)
    assert applied(channel) == []
    assert channel.line.next_input_seq == 1, "the third message of stream 1 is not here"
    arrive(channel, 1, 3, 1)
    assert applied(channel) == [(3, 1)]
    assert (channel.line.next_input_seq, channel.line.provisional) == (5, None)


def test_a_decision_about_a_part_of_what_was_sent_does_not_lead_past_it() -> None:
    channel = ahead()
    channel.intake.on_runs([a_run(1, 1, 1, 1), a_run(2, 2, 1, 1), a_run(1, 3, 2, 2)], 0)
    assert applied(channel) == []
    assert channel.line.next_input_seq == 1, "the third message of stream 1 is not here"


def test_a_declared_loss_among_the_decisions_needs_no_source_messages() -> None:
    channel = ahead()
    channel.intake.on_runs(
        [a_run(1, 1, 1, 2), Run(1, 3, 3, 1, 3, 5, 1, is_source_gap=True), Run(1, 8, 4, 2, 1, 1, 1)], 0
    )
    apply_decisions(channel, MS)
    assert [packet.runs[0].is_source_gap for packet in published(channel)] == [True]
    assert (channel.line.next_input_seq, channel.line.provisional) == (9, None)


def test_decisions_past_what_was_sent_need_not_be_here_in_full() -> None:
    channel = ahead()
    channel.intake.on_runs([a_run(1, 1, 1, 2), a_run(2, 3, 1, 1), a_run(1, 4, 3, 1)], 0)
    assert applied(channel) == []
    assert (channel.line.next_input_seq, channel.line.provisional) == (4, None)
