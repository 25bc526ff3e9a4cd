"""What was delivered is remembered evenly: as many packets as it should be, the oldest numbers forgotten one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedcore.counters import Counter, CounterSet
from feedcore.merge.comparison import TRIM_COUNT, CopyComparison
from feedcore.merge.config import MergerConfig
from feedcore.merge.effects import Diverged, MergeEffect
from feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE, OutputPacket, encode_runs
from feedcore.wire.position import Run

BODY = b"price 101.25"


def packet_of(first_seq: int, count: int, *, body: bytes = BODY, adapter_id: int = 1) -> OutputPacket:
    """A packet of `count` messages, each from a source message; `input_seq` and `message_seq` are equal."""
    runs = (Run(1, first_seq, first_seq, 7, first_seq, count, count),)
    frames = b"".join(OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(body), offset) + body for offset in range(count))
    return OutputPacket(
        0, 1, 1, adapter_id, 20260102, 1, first_seq, first_seq, count, runs, 0, 0, encode_runs(runs) + frames
    )


def comparison(remembered_count: int) -> tuple[CopyComparison, CounterSet]:
    """One that compares everything."""
    counters = CounterSet()
    return CopyComparison(1, counters, MergerConfig(compared_count=remembered_count)), counters


def remember(remembered: CopyComparison, packet: OutputPacket) -> None:
    """As the merger does once it has delivered a packet."""
    remembered.remember(packet, packet.end_input_seq)


def test_the_oldest_is_forgotten_for_each_that_is_remembered() -> None:
    remembered, counters = comparison(10)
    for seq in range(1, 3 * TRIM_COUNT):
        remember(remembered, packet_of(seq, 1))
    effects: list[MergeEffect] = []
    newest = 3 * TRIM_COUNT - 1
    for seq in range(newest - 9, newest + 1):
        remembered.compare(packet_of(seq, 1, body=b"another", adapter_id=2), seq + 1, effects)
    assert len(effects) == 10
    assert counters.counts[Counter.MERGE_NOT_COMPARED] == 0
    remembered.compare(packet_of(newest - 10, 1, adapter_id=2), newest - 9, effects)
    assert counters.counts[Counter.MERGE_NOT_COMPARED] == 1


def test_what_differs_is_told_with_a_digest_of_each_copy() -> None:
    remembered, counters = comparison(10)
    remember(remembered, packet_of(5, 4))
    effects: list[MergeEffect] = []
    remembered.compare(packet_of(7, 4, body=b"forged 99.99", adapter_id=2), 11, effects)
    (alarm,) = effects
    assert isinstance(alarm, Diverged)
    assert (alarm.first_input_seq, alarm.first_message_seq, alarm.adapter_ids) == (7, 7, (1, 2))
    assert alarm.digests[0] != alarm.digests[1]
    assert counters.counts[Counter.MERGE_DIVERGED] == 1


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("remember"), st.integers(1, 60)),
            st.tuples(st.just("renumber"), st.integers(1, 60)),
            st.tuples(st.just("compare"), st.integers(1, 60)),
        ),
        max_size=60,
    ),
    st.integers(1, 12),
)
def test_it_compares_with_just_what_a_plain_list_would_remember(steps: list[tuple[str, int]], count: int) -> None:
    remembered, counters = comparison(count)
    known: dict[int, OutputPacket] = {}
    for deed, seq in steps:
        packet = packet_of(seq, 3)
        if deed == "remember":
            remember(remembered, packet)
            known[seq] = packet
            if len(known) > count:
                del known[min(known)]
        elif deed == "renumber":
            remembered.renumbered_from(seq)
            known = {first: each for first, each in known.items() if each.end_input_seq <= seq}
        else:
            effects: list[MergeEffect] = []
            copy = packet_of(seq, 3, body=b"another one.", adapter_id=2)
            before = counters.counts[Counter.MERGE_NOT_COMPARED]
            remembered.compare(copy, copy.end_input_seq, effects)
            overlapping = [first for first in sorted(known) if first < seq + 3 and first + 3 > seq]
            assert [each.first_input_seq for each in effects if isinstance(each, Diverged)] == [
                max(first, seq) for first in overlapping
            ]
            assert (counters.counts[Counter.MERGE_NOT_COMPARED] > before) == (not overlapping)
