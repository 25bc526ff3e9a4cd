"""Applying decisions: a run is applied when it is next and all its source messages have arrived (clauses 5.2, 5.5)."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.effects import Publish
from tandemfeed.feedcore.replica.input.applying import anticipate, apply_decisions, forward
from tandemfeed.feedcore.replica.output.provisional import Throttle
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.position import Run
from tests.feedcore.replica.engines import MS, a_channel, slices, transmitted


def arrive(channel: Channel, stream: int, first: int, count: int) -> None:
    """Let source messages arrive, each of which makes one message."""
    channel.backlog.add(stream, slices(channel, stream, first, [11] * count))


def a_run(stream: int, first: int, first_source: int, count: int, *, is_gap: bool = False) -> Run:
    """A run of epoch 1. Every source message makes one message, so message_seq and input_seq are equal."""
    return Run(1, first, first, stream, first_source, count, 1 if is_gap else count, is_source_gap=is_gap)


def published(channel: Channel) -> list[OutputPacket]:
    """What was journaled and then transmitted since the last call."""
    effects, channel.effects = channel.effects, []
    assert all(isinstance(effect, Publish) for effect in effects)
    return transmitted(effects)


def numbers(packets: list[OutputPacket]) -> list[tuple[int, int]]:
    """The first input_seq and the message count of each packet."""
    return [(packet.first_input_seq, packet.message_count) for packet in packets]


def applied(channel: Channel, *, only_quiet: bool = False) -> list[tuple[int, int]]:
    """Apply decisions; returns what that transmits."""
    apply_decisions(channel, MS, only_quiet=only_quiet)
    return numbers(published(channel))


def test_a_run_is_applied_once_all_its_source_messages_have_arrived() -> None:
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
def test_runs_transmitted_before_a_restart_are_applied_without_transmitting(only_quiet: bool) -> None:
    channel = a_channel()
    channel.transmitted_ends[1] = 3
    channel.intake.on_runs([a_run(1, 1, 1, 2), a_run(1, 3, 3, 1)], 0)
    arrive(channel, 1, 1, 3)
    assert applied(channel, only_quiet=only_quiet) == ([] if only_quiet else [(3, 1)])
    assert channel.line.next_input_seq == (3 if only_quiet else 4)


def test_a_declared_loss_drops_its_own_source_messages_and_none_after_it() -> None:
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
    """A channel of one stream in which a decision was applied; `ends_at`: where its epoch ends, if it does."""
    channel = a_channel(streams=(1,))
    if ends_at is not None:
        channel.intake.on_lineage(Lineage().opened(1, 1, 1).opened(2, ends_at, ends_at), channel.line.position())
    channel.intake.on_runs([a_run(1, 1, 1, 1)], 0)
    arrive(channel, 1, 1, 1)
    assert applied(channel) == [(1, 1)]
    return channel


def test_messages_that_need_no_decision_are_transmitted_immediately_and_not_as_the_active() -> None:
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


def test_runs_transmitted_before_a_restart_are_not_repeated_without_a_decision_either() -> None:
    channel = anticipating()
    channel.transmitted_ends[1] = 3
    for first in (2, 3):
        arrive(channel, 1, first, 1)
        anticipate(channel)
    assert numbers(published(channel)) == [(3, 1)]


# ---- ahead ----


def test_forwarding_pauses_only_while_an_active_is_heard_and_stays_in_order() -> None:
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


def test_a_pause_ends_when_the_active_falls_silent_again() -> None:
    channel, throttle = a_channel(), Throttle(2, 7 * MS)
    for first in (1, 3):
        arrive(channel, 1, first, 2)
    forward(channel, throttle, MS, is_throttled=True)
    forward(channel, throttle, 2 * MS, is_throttled=False)
    assert numbers(published(channel)) == [(1, 2), (3, 2)]


def ahead() -> Channel:
    """A channel that sent two messages of stream 1 and one of stream 2 provisionally."""
    channel = a_channel(ReplicaConfig())
    arrive(channel, 1, 1, 2)
    arrive(channel, 2, 1, 1)
    forward(channel, Throttle(1_000, MS), 0, is_throttled=False)
    published(channel)
    return channel


def test_decisions_wait_until_they_and_their_messages_reach_past_everything_sent_ahead() -> None:
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


def test_decisions_about_part_of_what_was_sent_do_not_reach_past_it() -> None:
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


def test_decisions_beyond_what_was_sent_may_still_lack_source_messages() -> None:
    channel = ahead()
    channel.intake.on_runs([a_run(1, 1, 1, 2), a_run(2, 3, 1, 1), a_run(1, 4, 3, 1)], 0)
    assert applied(channel) == []
    assert (channel.line.next_input_seq, channel.line.provisional) == (4, None)
