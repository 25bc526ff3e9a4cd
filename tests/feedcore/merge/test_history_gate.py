"""How far a packet counts in the newest history, and which packets wait until that is known (clause 7.2)."""

from __future__ import annotations

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.config import HEARTBEAT_NS, MergerConfig
from tandemfeed.feedcore.merge.history.history_gate import CLOSED, HistoryGate
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tests.feedcore.merge.merge_feed import line, lineage_of, packet

WAIT_NS = 4 * HEARTBEAT_NS
FIRST = lineage_of([(1, 1)])
SECOND = lineage_of([(1, 1), (2, 6)])


def gate(lineage: Lineage | None = FIRST, held_count_max: int = 10) -> tuple[HistoryGate, CounterSet]:
    counters = CounterSet()
    found = HistoryGate(counters, MergerConfig(lineage_wait_ns=WAIT_NS, held_count_max=held_count_max))
    if lineage is not None:
        found.follow(lineage)
    return found, counters


def of(epoch: int, first: int = 3, last: int = 5) -> OutputPacket:
    return packet(first, line(first, last), epoch=epoch)


def test_before_any_history_is_known_everything_waits_without_a_time_limit() -> None:
    waiting, _ = gate(None)
    assert waiting.admit(of(1), 0) is None
    assert waiting.passing_epoch == CLOSED
    assert waiting.next_deadline_ns() is None
    assert waiting.take_waiting() == []
    assert waiting.follow(FIRST) is None
    assert waiting.passing_epoch == 1
    assert waiting.take_waiting() == [of(1)]
    assert waiting.take_waiting() == []


def test_a_packet_counts_up_to_where_its_epoch_ends() -> None:
    open_gate, counters = gate(SECOND)
    assert open_gate.admit(of(1, 3, 5), 0) == of(1, 3, 5)
    cut = open_gate.admit(of(1, 4, 8), 0)
    assert cut is not None
    assert (cut.first_input_seq, cut.end_input_seq) == (4, 6)
    assert counters.counts[Counter.STALE_EPOCH_PACKETS] == 0
    assert open_gate.admit(of(1, 6, 8), 0) is None
    assert counters.counts[Counter.STALE_EPOCH_PACKETS] == 1
    assert open_gate.take_waiting() == []


def test_a_malformed_packet_that_has_to_be_cut_is_refused() -> None:
    open_gate, counters = gate(SECOND)
    broken = of(1, 4, 8)
    assert open_gate.admit(broken._replace(payload=broken.payload[:-1]), 0) is None
    assert sum(counters.refusals.values()) == 1
    assert counters.counts[Counter.STALE_EPOCH_PACKETS] == 0


def test_older_packets_wait_with_those_of_a_newer_epoch_but_only_for_a_limited_time() -> None:
    closing, _ = gate()
    assert closing.admit(of(2, 6, 7), 100) is None
    assert closing.passing_epoch == CLOSED
    assert closing.admit(of(1), 200) is None
    assert closing.next_deadline_ns() == 100 + WAIT_NS
    assert closing.on_timer(99 + WAIT_NS) == []
    assert closing.on_timer(100 + WAIT_NS) == [of(1)]
    assert closing.passing_epoch == 1
    assert closing.next_deadline_ns() is None
    assert closing.on_timer(10**12) == []
    assert closing.admit(of(2, 8, 9), 10**12) is None
    assert closing.next_deadline_ns() is None  # packets wait only once for the same epoch
    assert closing.admit(of(1), 10**12) == of(1)
    assert closing.follow(SECOND) == SECOND.entries[1]
    assert closing.take_waiting() == [of(2, 6, 7), of(2, 8, 9)]


def test_a_still_newer_epoch_restarts_the_wait() -> None:
    closing, _ = gate()
    closing.admit(of(2), 0)
    closing.admit(of(3), 500)
    assert closing.next_deadline_ns() == 500 + WAIT_NS
    closing.follow(SECOND)
    assert closing.next_deadline_ns() == 500 + WAIT_NS
    assert closing.passing_epoch == CLOSED
    assert closing.take_waiting() == []
    closing.follow(lineage_of([(1, 1), (2, 6), (3, 9)]))
    assert closing.next_deadline_ns() is None
    assert closing.passing_epoch == 3
    assert closing.take_waiting() == [of(2), of(3)]


def test_an_epoch_newer_than_the_awaited_one_ends_the_wait() -> None:
    closing, _ = gate()
    closing.admit(of(2), 0)
    closing.follow(lineage_of([(1, 1), (3, 6)]))
    assert closing.next_deadline_ns() is None
    assert closing.passing_epoch == 3


def test_no_more_packets_wait_than_the_limit() -> None:
    waiting, _ = gate(None, held_count_max=2)
    for seq in (1, 2, 3):
        waiting.admit(of(1, seq, seq), 0)
    waiting.follow(FIRST)
    assert waiting.take_waiting() == [of(1, 1, 1), of(1, 2, 2)]


def test_follow_returns_where_the_new_history_departs_from_the_previous_one() -> None:
    following, _ = gate(lineage_of([(1, 1), (2, 6)]))
    assert following.follow(lineage_of([(1, 1), (3, 4)])) == (3, 4, 4)
    assert following.lineage.epoch == 3
