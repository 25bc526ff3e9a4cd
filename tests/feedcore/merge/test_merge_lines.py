"""Two lines A and B of one feed, as exchanges send them: equal packets some microseconds apart, with losses on both.

Modelled on captures of CME MDP 3.0, where a packet arrived from 15 µs before to 6 µs after its copy on the other line.
"""

from __future__ import annotations

import random

import pytest

from tandemfeed.feedcore.merge.effects import Deliver, Filled, Gap
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tests.feedcore.merge.merge_feed import MS, Listener, heartbeat, line, packet

US = 1_000
PACKET_COUNT = 1_000
SKEW_NS = (-15 * US, 6 * US)


def arrivals(chance: random.Random, withheld: dict[int, set[int]]) -> list[tuple[int, OutputPacket]]:
    """(arrival, packet) of both lines, in order of arrival; gaps between packets from 1 µs to 200 µs."""
    found = []
    at_ns, first = 1_000 * US, 1
    for index in range(PACKET_COUNT):
        count = chance.randint(1, 5)
        sources = line(first, first + count - 1)
        for adapter, offset_ns in ((1, 0), (2, chance.randint(*SKEW_NS))):
            if index not in withheld[adapter]:
                found.append((at_ns + offset_ns, packet(first, sources, adapter=adapter)))
        first += count
        at_ns += chance.choice((1, 2, 5, 20, 200)) * US
    return sorted(found, key=lambda each: each[0])


def run(listener: Listener, found: list[tuple[int, OutputPacket]]) -> None:
    for at_ns, each in found:
        listener.wait(at_ns - listener.now_ns)
        listener.hear(each)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
def test_what_one_line_lacks_arrives_on_the_other_without_a_request(seed: int, share: float) -> None:
    chance = random.Random(seed)
    withheld: dict[int, set[int]] = {1: set(), 2: set()}
    for index in range(1, PACKET_COUNT):
        if chance.random() < share:
            withheld[chance.choice((1, 2))].add(index)
    listener = Listener()
    run(listener, arrivals(chance, withheld))
    end = listener.merger.next_message_seq
    assert end is not None
    assert listener.delivered == line(1, end - 1)
    assert len(listener.events(Deliver)) == PACKET_COUNT
    assert not listener.requests
    assert not listener.events(Gap, Filled)


@pytest.mark.parametrize("seed", range(6))
def test_what_both_lines_lack_is_exactly_one_gap(seed: int) -> None:
    chance = random.Random(seed)
    lost = chance.randrange(10, PACKET_COUNT - 10)
    found = arrivals(chance, {1: {lost}, 2: {lost}})
    listener = Listener()
    run(listener, found)
    last = max(each.end_message_seq for _, each in found)
    for _ in range(60):
        listener.hear(heartbeat(last), heartbeat(last, adapter=2))
        listener.wait(100 * MS)
    [gap] = listener.events(Gap)
    assert isinstance(gap, Gap)
    missing = set(line(gap.first_message_seq, gap.end_message_seq - 1))
    assert listener.delivered == [source for source in line(1, last - 1) if source not in missing]
    assert {request.input_ranges[0] for request in listener.requests} == {(gap.first_message_seq, gap.end_message_seq)}
