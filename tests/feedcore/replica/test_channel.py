"""What one channel of an adapter keeps over changes of role: received decisions, and the end that was announced."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.channel_state import RunsReply
from tandemfeed.feedcore.replica.effects import RequestSource
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.position import Run
from tests.feedcore.merge.merge_feed import FIRST, heartbeat, lineage_of, packet
from tests.feedcore.replica.engines import MS, a_channel, slices


def known_ends(channel: Channel) -> dict[int, int]:
    """By source stream, one past the newest `source_seq` that the channel knows of."""
    return {stream: tracker.known_end for stream, tracker in channel.trackers.items()}


def test_decisions_show_which_source_messages_exist() -> None:
    channel = a_channel()
    channel.take_output_packet(packet(1, [(1, 1), (1, 2), (2, 1)]), 0)
    assert known_ends(channel) == {1: 3, 2: 2}
    channel.take_runs(RunsReply(lineage_of(FIRST), (Run(1, 4, 4, 2, 2, 5, 5),)), 0)
    assert known_ends(channel) == {1: 3, 2: 7}


def test_source_messages_of_which_only_decisions_are_here_are_requested_and_counted() -> None:
    channel = a_channel()
    channel.take_output_packet(packet(1, [(1, 1), (1, 2), (2, 1)]), 0)
    channel.request_source(MS)
    assert channel.effects == []
    channel.request_source(channel.config.tracker.request_after_ns)
    session = channel.line.session
    assert channel.effects == [RequestSource(1, ((1, 3),), session), RequestSource(2, ((1, 2),), session)]
    assert channel.counters.counts[Counter.SOURCE_GAP_REQUESTS] == 2


def test_a_channel_is_blocked_while_a_decision_is_missing_or_waits_for_its_source_messages() -> None:
    channel = a_channel()
    assert not channel.is_blocked
    channel.take_output_packet(packet(2, [(1, 2)]), 0)
    assert channel.is_blocked
    waiting = a_channel()
    waiting.take_output_packet(packet(1, [(1, 1)]), 0)
    assert waiting.is_blocked


@pytest.mark.parametrize(
    ("end", "is_at_end"),
    [
        (heartbeat(1, flags=OutputFlag.END_OF_STREAM), True),
        (heartbeat(1), False),
        (heartbeat(2, flags=OutputFlag.END_OF_STREAM), False),
        (heartbeat(1, ((1, 1), (2, 1)), flags=OutputFlag.END_OF_STREAM), True),
    ],
)
def test_a_channel_is_at_its_end_where_another_adapter_announced_it(end: OutputPacket, is_at_end: bool) -> None:
    channel = a_channel()
    channel.take_output_packet(end, 0)
    assert channel.is_at_end is is_at_end


def test_an_announced_end_does_not_count_in_a_history_without_its_epoch() -> None:
    channel = a_channel()
    channel.take_output_packet(heartbeat(1, ((1, 1), (2, 1)), flags=OutputFlag.END_OF_STREAM), 0)
    channel.intake.lineage = lineage_of(((1, 1), (3, 1)))
    assert not channel.is_at_end


def test_the_end_is_not_announced_while_decided_packets_wait() -> None:
    channel = a_channel()
    channel.take_output_packet(heartbeat(1, flags=OutputFlag.END_OF_STREAM), 0)
    assert channel.heartbeat(0, None, 0).flags & OutputFlag.END_OF_STREAM
    assert not channel.heartbeat(0, (1, 1), 0).flags & OutputFlag.END_OF_STREAM


def test_only_the_announced_end_of_an_epoch_ends_it() -> None:
    channel = a_channel()
    channel.hand_over.await_end(2, 1, 0)
    channel.take_output_packet(heartbeat(1), 0)
    assert channel.hand_over.due_epoch(1, 1, 0, is_blocked=False) is None
    channel.take_output_packet(heartbeat(1, flags=OutputFlag.EPOCH_ENDED), 0)
    assert channel.hand_over.due_epoch(1, 1, 0, is_blocked=False) == 2


def test_a_heartbeat_without_a_lineage_changes_no_history() -> None:
    channel = a_channel()
    channel.take_output_packet(heartbeat(9)._replace(epoch=2, payload=b""), 0)
    assert channel.intake.epoch == 1
    assert not channel.intake.has_gap


@pytest.mark.parametrize("streams", [(1,), (1, 2)])
def test_only_in_a_channel_of_one_source_stream_messages_are_numbered_without_decisions(
    streams: tuple[int, ...],
) -> None:
    channel = a_channel(streams=streams)
    assert channel.undecided_count() == 0, "no decision of this epoch yet"
    channel.line.decide(*slices(channel, 1, 1, [11]))
    channel.keep_own_history()
    assert (channel.undecided_count() > 0) is (len(streams) == 1)
    channel.intake.ready.append(Run(1, 2, 2, 1, 2, 1, 1))
    assert channel.undecided_count() == 0, "a decision waits"
