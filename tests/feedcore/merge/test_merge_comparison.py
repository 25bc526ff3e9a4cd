"""docs/protocol.md clause 7.1: the merge compares second copies with what it delivered."""

from __future__ import annotations

import random

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.config import CompareMode, MergerConfig
from tandemfeed.feedcore.merge.effects import Deliver, Diverged, Gap, Live
from tandemfeed.feedcore.wire.packet_parts import identified_messages, part_of, placed_frames
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tests.feedcore.merge.merge_feed import MS, Listener, body_of, heartbeat, line, packet


def alarms(listener: Listener) -> list[Diverged]:
    return [effect for effect in listener.effects if isinstance(effect, Diverged)]


def test_a_second_copy_with_different_bytes_is_an_alarm_with_both_digests() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 4)), packet(1, line(1, 4), adapter=2, tail=b"!"))
    [diverged] = alarms(listener)
    assert (diverged.first_message_seq, diverged.adapter_ids) == (1, (1, 2))
    assert diverged.digests[0] != diverged.digests[1]
    assert listener.count(Counter.MERGE_DIVERGED) == 1
    assert listener.delivered == line(1, 4)


def test_a_different_identity_with_the_same_bytes_is_an_alarm_too() -> None:
    listener = Listener()
    listener.hear(packet(1, [(1, 1), (1, 2)]))
    other = packet(1, [(2, 1), (2, 2)], adapter=2)
    listener.hear(other._replace(payload=other.payload[:16] + packet(1, [(1, 1), (1, 2)]).payload[16:]))
    assert len(alarms(listener)) == 1


def test_copies_whose_boundaries_differ_are_compared_message_by_message() -> None:
    listener = Listener()
    mixed = [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (2, 3)]
    listener.hear(packet(1, mixed[:4]), packet(5, mixed[4:]))
    listener.hear(packet(1, mixed[:1], adapter=2), packet(2, mixed[1:5], adapter=2), packet(6, mixed[5:], adapter=2))
    assert not alarms(listener)
    assert listener.count(Counter.MERGE_NOT_COMPARED) == 0
    listener.hear(packet(3, mixed[2:6], adapter=3, tail=b"?"))
    assert [(each.first_message_seq, each.adapter_ids) for each in alarms(listener)] == [(3, (1, 3)), (5, (1, 3))]


def test_early_copies_are_compared_while_they_are_held() -> None:
    listener = Listener()
    listener.hear(packet(4, line(4, 6)), packet(4, line(4, 6), adapter=2, tail=b"!"), packet(1, line(1, 3)))
    assert len(alarms(listener)) == 1
    assert listener.delivered == line(1, 6)


@pytest.mark.parametrize("last", [8, 10])
def test_a_held_packet_that_a_longer_one_overtakes_is_only_compared(last: int) -> None:
    listener = Listener()
    listener.hear(packet(6, line(6, last)))
    longer = packet(1, line(1, 10), adapter=2)
    assert listener.hear(longer) == [Live(1, 2), Deliver(longer)]
    assert listener.merger.next_input_seq == 11
    listener.wait(100 * MS)
    assert not listener.requests
    assert not listener.count(Counter.MERGE_NOT_COMPARED)


def test_a_held_packet_that_differs_from_a_longer_one_that_overtakes_it_is_an_alarm() -> None:
    listener = Listener()
    forged = packet(6, line(6, 8), tail=b"!")
    listener.hear(forged, packet(1, line(1, 10), adapter=2))
    assert [(each.first_message_seq, each.adapter_ids) for each in alarms(listener)] == [(6, (2, 1))]


def test_the_part_of_a_packet_that_was_already_delivered_is_compared() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)))
    forged = packet(1, line(1, 1), adapter=2, tail=b"!").payload[16:]
    honest = packet(1, line(1, 5), adapter=2)
    body = len(body_of(1, 1)) + 4
    listener.hear(honest._replace(payload=honest.payload[:16] + forged + honest.payload[16 + body :]))
    assert len(alarms(listener)) == 1
    assert listener.delivered == line(1, 5)


def test_nothing_of_a_superseded_history_is_compared() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, ((1, 1),)), packet(1, line(1, 3)), packet(4, [(1, 4), (1, 5)]))
    listener.hear(heartbeat(4, ((1, 1), (2, 4)), adapter=2))
    listener.hear(packet(4, [(2, 1), (1, 4)], adapter=2, epoch=2))
    listener.hear(packet(1, line(1, 3), adapter=2, tail=b"!"))
    assert [each.first_message_seq for each in alarms(listener)] == [1]


def test_messages_delivered_under_superseded_numbers_are_not_compared_with_those_that_have_them_now() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, ((1, 1),)), packet(1, line(1, 9)))
    listener.hear(heartbeat(4, ((1, 1), (2, 4)), adapter=2))
    listener.hear(packet(4, [(2, 1), (1, 4)], adapter=2, epoch=2), packet(6, line(5, 6), adapter=2, epoch=2))
    listener.hear(packet(5, line(4, 5), adapter=3, epoch=2))
    assert not alarms(listener)


def test_copies_of_what_was_a_gap_in_another_history_are_compared() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, ((1, 1),)), packet(1, line(1, 3)), packet(6, line(6, 7)))
    listener.wait(5_100 * MS)
    assert listener.events(Gap)
    listener.hear(heartbeat(4, ((1, 1), (2, 4)), adapter=2))
    listener.hear(packet(4, [(2, 1), (1, 4)], adapter=2, epoch=2))
    listener.hear(packet(4, [(2, 1), (1, 4)], adapter=3, epoch=2, tail=b"!"))
    assert [each.first_input_seq for each in alarms(listener)] == [4]


@pytest.mark.parametrize(("mode", "count"), [("full", 64), ("sampled", 8), ("off", 0)])
def test_sampled_compares_every_nth_packet_and_off_compares_none(mode: CompareMode, count: int) -> None:
    listener = Listener(MergerConfig(compare=mode, sampled_every=8))
    for first in range(1, 129, 2):
        sources = line(first, first + 1)
        listener.hear(packet(first, sources), packet(first, sources, adapter=2, tail=b"!"))
    assert len(alarms(listener)) == listener.count(Counter.MERGE_DIVERGED) == count


def test_a_copy_that_arrives_too_late_to_be_compared_is_counted() -> None:
    listener = Listener(MergerConfig(compared_count=4))
    listener.hear(*(packet(seq, line(seq, seq)) for seq in range(1, 20)))
    listener.hear(packet(1, line(1, 1), adapter=2))
    assert listener.count(Counter.MERGE_NOT_COMPARED) == 1


@pytest.mark.parametrize("seed", range(5))
def test_full_finds_every_forged_message_whatever_the_boundaries(seed: int) -> None:
    chance = random.Random(seed)
    listener = Listener()
    sources = [(chance.randint(1, 3), 0) for _ in range(300)]
    counts = {1: 0, 2: 0, 3: 0}
    for at, (stream, _) in enumerate(sources):
        counts[stream] += 1
        sources[at] = (stream, counts[stream])
    forged = set(chance.sample(range(300), 20))
    first = 0
    while first < 300:
        count = chance.randint(1, 9)
        listener.hear(packet(1 + first, sources[first : first + count]))
        first += count
    found = set()
    for at in range(300):
        effects = listener.hear(packet(1 + at, [sources[at]], adapter=2, tail=b"!" if at in forged else b""))
        if any(isinstance(effect, Diverged) for effect in effects):
            found.add(at)
    assert found == forged


def test_a_part_of_a_packet_is_a_packet_with_the_same_messages() -> None:
    chance = random.Random(1)
    for _ in range(200):
        streams = [chance.randint(1, 2) for _ in range(chance.randint(1, 12))]
        sources = [(stream, 1 + streams[:at].count(stream)) for at, stream in enumerate(streams)]
        whole = packet(50, sources)
        first = chance.randint(50, 49 + len(sources))
        end = chance.randint(first + 1, 50 + len(sources))
        part = part_of(whole, first, end)
        assert list(identified_messages(part, first, end)) == list(identified_messages(whole, first, end))
        assert (part.first_message_seq, part.message_count) == (first, end - first)
        assert sum(run.message_count for run in part.runs) == end - first
        assert (part.first_input_seq, part.end_input_seq) == (first, end)


def test_a_source_message_outside_its_run_is_refused() -> None:
    whole = packet(1, line(1, 3))
    outside = whole.payload[:16] + b"\x07\x00\x63\x00abc" + whole.payload[16 + 8 :]
    with pytest.raises(PacketRefused):
        placed_frames(whole._replace(payload=outside))
