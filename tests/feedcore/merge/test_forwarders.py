"""The places of forwarders, and which provisional packets may begin a source stream (docs/protocol.md clause 7.5)."""

from __future__ import annotations

from tandemfeed.feedcore.merge.history.place import Place
from tandemfeed.feedcore.merge.provisional.forwarders import DecidedEnd, Forwarders
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tests.feedcore.merge.merge_feed import heartbeat, line, lineage_of, packet

OURS = lineage_of([(1, 1), (2, 6)])
OTHER = lineage_of([(1, 1), (3, 4)])


def forwarded(first: int, adapter: int = 1) -> OutputPacket:
    return packet(first, line(1, 2), adapter=adapter, flags=OutputFlag.PROVISIONAL)


def hear(forwarders: Forwarders, next_seq: int, adapter: int = 1, lineage: Lineage = OURS) -> None:
    """Feed in a forwarder's heartbeat."""
    forwarders.on_heartbeat(heartbeat(next_seq, adapter=adapter, flags=OutputFlag.PROVISIONAL), lineage)


def test_a_standing_counts_up_to_where_its_history_departs_from_the_followed_one() -> None:
    decided_end = DecidedEnd(OURS, Place(9, 8))
    assert decided_end.within(OURS) == Place(9, 8)
    assert decided_end.within(OTHER) == Place(4, 4)
    assert DecidedEnd(OURS, Place(3, 3)).within(OTHER) == Place(3, 3)
    assert decided_end.within(lineage_of([(1, 1), (2, 6), (4, 20)])) == Place(9, 8)


def test_a_standing_counts_as_a_whole_before_any_history_is_followed() -> None:
    assert DecidedEnd(OURS, Place(9, 8)).within(Lineage()) == Place(9, 8)


def test_a_live_subscription_begins_with_a_forwarder_at_its_own_place() -> None:
    forwarders = Forwarders(None)
    assert not forwarders.may_begin(forwarded(9), OURS, 9)
    hear(forwarders, 9)
    assert forwarders.may_begin(forwarded(9), OURS, 9)
    assert forwarders.may_begin(forwarded(12), OURS, 9)
    assert not forwarders.may_begin(forwarded(9), OURS, 10)
    assert not forwarders.may_begin(forwarded(8), OURS, 9)
    assert not forwarders.may_begin(forwarded(9, adapter=2), OURS, 9)


def test_a_subscription_from_a_later_message_begins_with_no_forwarder() -> None:
    forwarders = Forwarders(4)
    hear(forwarders, 9)
    assert not forwarders.is_from_start
    assert not forwarders.may_begin(forwarded(9), OURS, 9)
    assert not forwarders.may_begin(forwarded(9), OURS, None)


def test_a_subscription_from_the_first_message_may_begin_with_any_forwarder() -> None:
    forwarders = Forwarders(1)
    assert forwarders.is_from_start
    assert forwarders.may_begin(forwarded(9), OURS, None)
    hear(forwarders, 20)
    assert forwarders.may_begin(forwarded(9), OURS, 5)


def test_numbers_begin_at_the_lowest_place_of_the_forwarders_that_began_streams() -> None:
    forwarders = Forwarders(None)
    numbered = packet(20, line(20, 21))
    assert forwarders.numbers_begin(numbered, OURS) == Place(20, 20)
    hear(forwarders, 9)
    hear(forwarders, 12, adapter=2)
    assert not forwarders.may_begin(forwarded(11, adapter=2), OURS, None)
    assert forwarders.may_begin(forwarded(12, adapter=2), OURS, None)
    assert forwarders.numbers_begin(numbered, OURS) == Place(12, 12)
    assert forwarders.may_begin(forwarded(9), OURS, None)
    assert forwarders.numbers_begin(numbered, OURS) == Place(9, 9)
    assert forwarders.numbers_begin(numbered, OTHER) == Place(4, 4)
    assert forwarders.numbers_begin(packet(3, line(3, 4)), OURS) == Place(3, 3)
