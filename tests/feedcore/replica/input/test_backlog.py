"""Source messages that wait for decisions are taken per stream exactly as decided, or all in order of arrival."""

from __future__ import annotations

from tandemfeed.feedcore.replica.input.backlog import Backlog
from tandemfeed.feedcore.replica.input.source_tracker import Slice
from tandemfeed.feedcore.wire.source_packet import decode_source_packet
from tests.simulation.toy_feed import FEED_ID, encode_source


def piece(stream: int, first: int, count: int, arrival: int) -> Slice:
    """A whole source packet as a slice."""
    datagram = encode_source(stream, first, [(stream, 11)] * count, 0, 0)
    return Slice(decode_source_packet(datagram, FEED_ID), 0, count, arrival)


def a_backlog() -> Backlog:
    """Three messages of stream 1, one of stream 2, and two of stream 1, in order of arrival."""
    backlog = Backlog((1, 2))
    backlog.add(1, [piece(1, 1, 3, 1)])
    backlog.add(2, [piece(2, 1, 1, 2)])
    backlog.add(1, [piece(1, 4, 2, 3)])
    return backlog


def numbers(slices: list[Slice]) -> list[tuple[int, int, int]]:
    """(source stream, first source_seq, count) of each."""
    return [(each.packet.source_stream_id, each.first_source_seq, each.message_count) for each in slices]


def test_exactly_the_decided_number_of_messages_is_taken_across_and_inside_packets() -> None:
    backlog = a_backlog()
    assert backlog.message_count == 6
    assert numbers(backlog.take(1, 2)) == [(1, 1, 2)]
    assert numbers(backlog.take(1, 2)) == [(1, 3, 1), (1, 4, 1)]
    assert backlog.message_count == 2
    assert numbers(backlog.take(1, 1)) == [(1, 5, 1)]
    assert numbers(backlog.take(1, 0)) == []
    assert numbers(backlog.take(2, 1)) == [(2, 1, 1)]
    assert backlog.message_count == 0


def test_everything_is_taken_in_order_of_arrival() -> None:
    backlog = a_backlog()
    assert numbers(backlog.take_all()) == [(1, 1, 3), (2, 1, 1), (1, 4, 2)]
    assert (backlog.message_count, backlog.take_all()) == (0, [])


def test_a_declared_loss_drops_exactly_the_messages_that_it_covers() -> None:
    backlog = a_backlog()
    backlog.drop_before(1, 1)
    assert backlog.message_count == 6
    backlog.drop_before(1, 5)
    assert backlog.message_count == 2
    backlog.drop_before(1, 9)
    assert numbers(backlog.take_all()) == [(2, 1, 1)]
