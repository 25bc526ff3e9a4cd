"""Delivered packets are remembered up to the limit, and those with the lowest numbers are forgotten one by one."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.copies.comparison import TRIM_COUNT, CopyComparison, are_equal, digest_of, is_same_packet
from tandemfeed.feedcore.merge.effects import Diverged, MergeEffect
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OUTPUT_FRAME_SIZE,
    OutputFlag,
    OutputPacket,
    encode_output_packet,
    encode_runs,
)
from tandemfeed.feedcore.wire.packet_series import PacketSeries, decode_series
from tandemfeed.feedcore.wire.position import Run

BODY = b"price 101.25"


def packet_of(first_seq: int, count: int, *, body: bytes = BODY, adapter_id: int = 1) -> OutputPacket:
    """A packet of `count` messages, each from a source message; `input_seq` and `message_seq` are equal."""
    runs = (Run(1, first_seq, first_seq, 7, first_seq, count, count),)
    frames = b"".join(OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(body), offset) + body for offset in range(count))
    return OutputPacket(
        0, 1, 1, adapter_id, 20260102, 1, first_seq, first_seq, count, runs, 0, 0, encode_runs(runs) + frames
    )


def comparison(remembered_count: int) -> tuple[CopyComparison, CounterSet]:
    """A comparison that compares everything, and its counters."""
    counters = CounterSet()
    return CopyComparison(1, counters, MergerConfig(compared_count=remembered_count)), counters


def remember(remembered: CopyComparison, packet: OutputPacket) -> None:
    """Remember a packet as the merger does after it has delivered it."""
    remembered.remember(packet, packet.end_input_seq)


def test_each_remembered_packet_displaces_the_one_with_the_lowest_number() -> None:
    remembered, counters = comparison(10)
    for seq in range(1, 3 * TRIM_COUNT):
        remember(remembered, packet_of(seq, 1))
        assert len(remembered._firsts) < TRIM_COUNT + 11
    effects: list[MergeEffect] = []
    newest = 3 * TRIM_COUNT - 1
    for seq in range(newest - 9, newest + 1):
        remembered.compare(packet_of(seq, 1, body=b"another", adapter_id=2), seq + 1, effects)
    assert len(effects) == 10
    assert counters.counts[Counter.MERGE_NOT_COMPARED] == 0
    remembered.compare(packet_of(newest - 10, 1, adapter_id=2), newest - 9, effects)
    assert counters.counts[Counter.MERGE_NOT_COMPARED] == 1


def test_a_difference_is_reported_with_a_digest_of_each_copy() -> None:
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
        st.tuples(st.sampled_from(("remember", "renumber", "compare")), st.integers(1, 60), st.integers(1, 4)),
        max_size=60,
    ),
    st.integers(1, 12),
)
def test_it_compares_with_exactly_what_a_plain_list_would_remember(
    steps: list[tuple[str, int, int]], count: int
) -> None:
    remembered, counters = comparison(count)
    known: dict[int, OutputPacket] = {}
    for deed, seq, length in steps:
        packet = packet_of(seq, length)
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
            copy = packet_of(seq, length, body=b"another one.", adapter_id=2)
            before = counters.counts[Counter.MERGE_NOT_COMPARED]
            remembered.compare(copy, copy.end_input_seq, effects)
            overlapping = [at for at in sorted(known) if at < seq + length and known[at].end_input_seq > seq]
            assert [each.first_input_seq for each in effects if isinstance(each, Diverged)] == [
                max(first, seq) for first in overlapping
            ]
            assert (counters.counts[Counter.MERGE_NOT_COMPARED] > before) == (not overlapping)


def silent_packet(first_input: int, *runs: tuple[int, int, int], lost: int | None = None) -> OutputPacket:
    """A packet without messages. `runs`: source stream, first source_seq, count. `lost`: the place of a source gap."""
    made: list[Run] = []
    input_seq = first_input
    for place, (stream, first_source, count) in enumerate(runs):
        made.append(Run(1, input_seq, 1, stream, first_source, count, 0, is_source_gap=place == lost))
        input_seq += count
    return OutputPacket(0, 1, 1, 1, 20260102, 1, first_input, 1, 0, tuple(made), 0, 0, encode_runs(tuple(made)))


def test_copies_may_cut_their_runs_differently() -> None:
    whole = silent_packet(1, (7, 1, 2), (8, 1, 4))
    cut = silent_packet(1, (7, 1, 2), (8, 1, 1), (8, 2, 3))
    assert are_equal(whole, cut, 1, 7)
    assert digest_of(whole, 1, 7) == digest_of(cut, 1, 7)


@pytest.mark.parametrize(
    "other",
    [
        silent_packet(1, (7, 1, 3), (8, 1, 3)),  # another stream's message
        silent_packet(1, (7, 1, 2), (8, 2, 4)),  # other messages of the stream
        silent_packet(1, (7, 1, 2), (8, 1, 2), (8, 4, 2)),  # a skipped message
        silent_packet(1, (7, 1, 2), (8, 1, 4), lost=1),  # declared lost
    ],
)
def test_source_messages_without_messages_are_compared_by_identity(other: OutputPacket) -> None:
    whole = silent_packet(1, (7, 1, 2), (8, 1, 4))
    assert not are_equal(whole, other, 1, 7)
    assert digest_of(whole, 1, 7) != digest_of(other, 1, 7)


def test_only_the_common_part_of_two_copies_is_compared() -> None:
    longer = silent_packet(1, (9, 1, 1), (7, 1, 2), (8, 1, 4), (9, 2, 1))
    shorter = silent_packet(2, (7, 1, 2), (8, 1, 4))
    assert are_equal(longer, shorter, 2, 8)
    assert not are_equal(longer, silent_packet(2, (7, 1, 2), (8, 1, 3), (7, 3, 1)), 2, 8)
    assert not are_equal(longer, silent_packet(2, (9, 2, 1), (7, 2, 1), (8, 1, 4)), 2, 8)
    middle = silent_packet(3, (7, 2, 1), (8, 1, 2))
    assert are_equal(longer, middle, 3, 6)


def test_malformed_copies_are_unequal_and_their_digest_is_that_of_their_bytes() -> None:
    broken = packet_of(1, 3)._replace(payload=packet_of(1, 3).payload[:-1])
    assert not are_equal(broken, packet_of(1, 3), 1, 4)
    assert digest_of(broken, 1, 4) == zlib.crc32(broken.payload)


def test_copies_with_the_same_bytes_under_other_message_numbers_are_unequal() -> None:
    one = packet_of(5, 2)
    other = one._replace(first_message_seq=6, runs=(one.runs[0]._replace(first_message_seq=6),))
    assert is_same_packet(one, one)
    assert not is_same_packet(one, other)
    assert not are_equal(one, other, 5, 7)


def test_copies_with_the_same_bytes_under_another_input_seq_are_unequal() -> None:
    assert not are_equal(silent_packet(1, (7, 1, 4)), silent_packet(2, (7, 1, 4)), 2, 5)


def test_copies_with_the_same_bytes_are_equal_even_if_they_are_malformed() -> None:
    broken = packet_of(1, 3)._replace(payload=packet_of(1, 3).payload[:-1])
    assert are_equal(broken, broken._replace(adapter_id=2), 1, 4)


@pytest.mark.parametrize("every", [2, 4])
def test_sampled_compares_copies_of_every_nth_packet_and_does_not_count_the_others(every: int) -> None:
    counters = CounterSet()
    remembered = CopyComparison(1, counters, MergerConfig(compare="sampled", sampled_every=every))
    for seq in range(1, 13):
        remember(remembered, packet_of(seq, 1))
    effects: list[MergeEffect] = []
    for seq in range(1, 13):
        remembered.compare(packet_of(seq, 1, body=b"another", adapter_id=2), seq + 1, effects)
    assert [each.first_input_seq for each in effects if isinstance(each, Diverged)] == list(range(every, 13, every))
    assert counters.counts[Counter.MERGE_NOT_COMPARED] == 0


def test_off_remembers_nothing_and_compares_nothing() -> None:
    counters = CounterSet()
    remembered = CopyComparison(1, counters, MergerConfig(compare="off"))
    remember(remembered, packet_of(1, 3))
    effects: list[MergeEffect] = []
    remembered.compare(packet_of(1, 3, body=b"another", adapter_id=2), 4, effects)
    remembered.compare_held(packet_of(1, 3), packet_of(1, 3, body=b"another", adapter_id=2), effects)
    assert not effects
    assert not remembered._packets
    assert counters.counts[Counter.MERGE_NOT_COMPARED] == 0


def test_waiting_copies_are_compared_as_far_as_both_reach() -> None:
    remembered, counters = comparison(10)
    effects: list[MergeEffect] = []
    longer = packet_of(5, 4)
    remembered.compare_held(longer, packet_of(5, 2, adapter_id=2), effects)
    remembered.compare_held(packet_of(5, 2), packet_of(5, 4, adapter_id=2), effects)
    assert not effects
    remembered.compare_held(longer, packet_of(5, 2, body=b"another", adapter_id=2), effects)
    assert [type(effect) for effect in effects] == [Diverged]
    assert counters.counts[Counter.MERGE_DIVERGED] == 1


def test_a_copy_with_the_same_bytes_under_another_message_seq_is_an_alarm() -> None:
    remembered, _ = comparison(10)
    remember(remembered, packet_of(5, 6, adapter_id=6))
    effects: list[MergeEffect] = []
    other = packet_of(5, 6, adapter_id=2)
    runs = (other.runs[0]._replace(first_message_seq=6),)
    remembered.compare(other._replace(first_message_seq=6, runs=runs), 11, effects)
    assert [type(effect) for effect in effects] == [Diverged]


def test_exact_copies_of_remembered_packets_that_contradict_each_other_raise_no_alarm() -> None:
    remembered, _ = comparison(10)
    remember(remembered, packet_of(1, 4))
    remember(remembered, packet_of(3, 4, body=b"another"))
    effects: list[MergeEffect] = []
    remembered.compare(packet_of(1, 4, adapter_id=2), 5, effects)
    remembered.compare(packet_of(3, 4, body=b"another", adapter_id=2), 7, effects)
    assert not effects


@pytest.mark.parametrize("seq", [6, 7])
def test_a_copy_that_only_adjoins_remembered_packets_is_counted_as_not_compared(seq: int) -> None:
    remembered, counters = comparison(10)
    remember(remembered, packet_of(1, 4))
    remember(remembered, packet_of(5, 1))
    remembered.compare(packet_of(seq, 1, adapter_id=2), seq + 1, [])
    assert counters.counts[Counter.MERGE_NOT_COMPARED] == 1


def test_a_packet_that_ends_where_renumbering_begins_is_still_compared() -> None:
    remembered, counters = comparison(10)
    for first, count in ((1, 4), (5, 1), (6, 2)):
        remember(remembered, packet_of(first, count))
    remembered.renumbered_from(6)
    effects: list[MergeEffect] = []
    remembered.compare(packet_of(1, 5, body=b"another", adapter_id=2), 6, effects)
    assert [each.first_input_seq for each in effects if isinstance(each, Diverged)] == [1, 5]
    remembered.compare(packet_of(6, 2, body=b"another", adapter_id=2), 8, effects)
    assert counters.counts[Counter.MERGE_NOT_COMPARED] == 1


# ---- series ----


def series_of(packets: Iterable[OutputPacket]) -> PacketSeries:
    """These packets, replayed."""
    replayed = [encode_output_packet(each._replace(flags=OutputFlag.RETRANSMISSION)) for each in packets]
    ((series,), _) = decode_series(replayed)
    assert isinstance(series, PacketSeries)
    return series


def singles(first: int, end: int) -> PacketSeries:
    """A series of packets of one message each."""
    return series_of(packet_of(seq, 1) for seq in range(first, end))


def compared(remembered: CopyComparison, first: int, end: int) -> list[int]:
    """Which of these source messages another adapter's copies, all different, are compared with."""
    effects: list[MergeEffect] = []
    for seq in range(first, end):
        remembered.compare(packet_of(seq, 1, body=b"another", adapter_id=2), seq + 1, effects)
    return [each.first_input_seq for each in effects if isinstance(each, Diverged)]


def is_unfolded(series: PacketSeries) -> bool:
    return "packets" in vars(series)


def test_only_the_series_that_a_copy_overlaps_makes_packets() -> None:
    remembered, _ = comparison(100)
    parts = [singles(1, 11), singles(11, 21), singles(21, 31)]
    for part in parts:
        remembered.remember_series(part)
    assert [is_unfolded(each) for each in parts] == [False, False, False]
    remembered.compare(packet_of(11, 10, adapter_id=2), 21, [])
    assert [is_unfolded(each) for each in parts] == [False, True, False]
    assert compared(remembered, 1, 31) == list(range(1, 31))


@pytest.mark.parametrize("every", [2, 4])
def test_sampled_compares_copies_of_every_nth_packet_of_a_series(every: int) -> None:
    remembered = CopyComparison(1, CounterSet(), MergerConfig(compare="sampled", sampled_every=every))
    remembered.remember_series(singles(1, 13))
    assert compared(remembered, 1, 13) == list(range(every, 13, every))


def test_off_remembers_no_series() -> None:
    remembered = CopyComparison(1, CounterSet(), MergerConfig(compare="off"))
    remembered.remember_series(singles(1, 13))
    assert compared(remembered, 1, 13) == []


def test_series_beyond_the_limit_are_forgotten_as_they_are() -> None:
    remembered, _ = comparison(20)
    parts = [singles(1, 11), singles(11, 21), singles(21, 31)]
    forgotten = [weakref.ref(each) for each in parts]
    while parts:
        remembered.remember_series(parts.pop(0))
    assert [each() is None for each in forgotten] == [True, False, False]
    assert compared(remembered, 1, 31) == list(range(11, 31))


def test_a_packet_displaces_the_series_that_is_older() -> None:
    remembered, _ = comparison(20)
    parts = [singles(1, 11), singles(11, 21)]
    forgotten = [weakref.ref(each) for each in parts]
    while parts:
        remembered.remember_series(parts.pop(0))
    remember(remembered, packet_of(21, 1))
    assert [each() is None for each in forgotten] == [True, False]
    assert compared(remembered, 1, 22) == list(range(11, 22))


def test_a_series_displaces_the_packets_that_are_older() -> None:
    remembered, _ = comparison(20)
    for seq in range(1, 11):
        remember(remembered, packet_of(seq, 1))
    remembered.remember_series(singles(11, 26))
    assert compared(remembered, 1, 26) == list(range(6, 26))


def test_what_a_new_history_renumbered_is_not_compared_with_an_old_series() -> None:
    remembered, counters = comparison(100)
    remembered.remember_series(singles(1, 11))
    remembered.renumbered_from(6)
    for seq in range(6, 11):
        remember(remembered, packet_of(seq, 1, body=b"renumbered"))
        effects: list[MergeEffect] = []
        remembered.compare(packet_of(seq, 1, body=b"renumbered", adapter_id=2), seq + 1, effects)
        assert not effects
    assert compared(remembered, 1, 11) == list(range(1, 11))
    assert counters.counts[Counter.MERGE_NOT_COMPARED] == 0
