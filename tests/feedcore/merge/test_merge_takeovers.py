"""docs/protocol.md clause 7.4: what of an older epoch still counts once a newer one is known."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.effects import Ended, RequestReplay
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tests.feedcore.merge.merge_feed import FIRST, MS, Listener, heartbeat, line, packet

SECOND_FROM_4 = ((1, 1), (2, 4))


def in_the_second_epoch() -> Listener:
    """A merge that has delivered all of epoch 1, which ended at 4, and knows of epoch 2."""
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), heartbeat(4, SECOND_FROM_4, adapter=2))
    return listener


def test_a_stream_that_has_ended_knows_its_end_even_if_a_newer_epoch_does_not_repeat_it() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), heartbeat(4, FIRST, flags=OutputFlag.END_OF_STREAM))
    listener.hear(heartbeat(4, SECOND_FROM_4, adapter=2))
    assert listener.merger.knows_end


@pytest.mark.parametrize(("next_seq", "stale_count"), [(3, 0), (4, 0), (5, 1)])
def test_a_heartbeat_of_an_older_epoch_counts_up_to_its_end(next_seq: int, stale_count: int) -> None:
    listener = in_the_second_epoch()
    listener.hear(heartbeat(next_seq, FIRST))
    assert listener.count(Counter.STALE_EPOCH_PACKETS) == stale_count
    assert not listener.merger.has_missing_messages


def test_an_end_that_an_older_epoch_reports_does_not_count() -> None:
    listener = in_the_second_epoch()
    listener.hear(heartbeat(4, FIRST, flags=OutputFlag.END_OF_STREAM))
    assert not listener.events(Ended)
    listener.hear(heartbeat(4, SECOND_FROM_4, adapter=2, flags=OutputFlag.END_OF_STREAM))
    assert listener.events(Ended) == [Ended(1, 4, 4)]


def test_while_a_newer_epoch_is_known_without_its_lineage_the_numbers_of_older_heartbeats_do_not_count() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), packet(4, line(4, 4), adapter=2, epoch=2), heartbeat(9, FIRST))
    assert not listener.merger.has_missing_messages
    listener.hear(heartbeat(5, SECOND_FROM_4, adapter=2))
    assert listener.delivered == line(1, 4)


@pytest.mark.parametrize("first", [6, 8])
def test_an_early_packet_that_a_newer_epoch_supersedes_is_forgotten(first: int) -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), packet(first, line(first, first + 1)))
    listener.hear(heartbeat(12, ((1, 1), (2, 6)), adapter=2))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((4, 12),))]
