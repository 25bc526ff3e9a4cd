"""Packets that continue each other are decoded together, exactly as one by one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME_SIZE,
    OUTPUT_LAYOUT,
    RUN_SIZE,
    OutputFlag,
    OutputPacket,
    decode_output_packet,
    encode_output_packet,
    encode_runs,
)
from tandemfeed.feedcore.wire.packet_series import HEAD_SIZE, PacketSeries, decode_series, packets_of
from tandemfeed.feedcore.wire.position import SEQ_MAX
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tests.feedcore.packets import output_packet, output_packets

Lengths = list[tuple[int, int]]  # source stream and message count of each packet


def plain(*shape: tuple[int, int, int, int], first_input: int = 301, first_message: int = 101) -> list[OutputPacket]:
    """Replayed packets that continue each other, each (source stream, first source_seq, source messages, messages)."""
    found = []
    for stream, source_seq, source_count, message_count in shape:
        bodies = [b"body of %d" % each for each in range(message_count)]
        made = output_packet(first=first_message, first_input=first_input, runs=((stream, source_seq, bodies),))
        run = made.runs[0]._replace(source_count=source_count)
        frames = made.payload[made.messages_offset :]
        found.append(made._replace(flags=OutputFlag.RETRANSMISSION, runs=(run,), payload=encode_runs((run,)) + frames))
        first_input, first_message = first_input + source_count, first_message + message_count
    return found


def history(lengths: Lengths, *, flags: int = OutputFlag.RETRANSMISSION) -> list[OutputPacket]:
    """Packets that continue each other, each of as many messages as source messages."""
    shape, next_sources = [], dict[int, int]()
    for stream, count in lengths:
        source_seq = next_sources.get(stream, 1)
        shape.append((stream, source_seq, count, count))
        next_sources[stream] = source_seq + count
    return [each._replace(flags=flags) for each in plain(*shape)]


lengths = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=30)


def decoded_singly(datagrams: list[bytes]) -> tuple[list[OutputPacket], list[Refusal]]:
    packets, refused = [], []
    for datagram in datagrams:
        try:
            packets.append(decode_output_packet(datagram))
        except PacketRefused as because:
            refused.append(because.reason)
    return packets, refused


def flat(parts: list[OutputPacket | PacketSeries]) -> list[OutputPacket]:
    return [packet for part in parts for packet in packets_of(part)]


@given(lengths, st.sampled_from([OutputFlag.RETRANSMISSION, OutputFlag.RETRANSMISSION | OutputFlag.FROM_ACTIVE]))
def test_a_history_without_a_gap_is_one_series(lengths: Lengths, flags: int) -> None:
    packets = history(lengths, flags=flags)
    parts, refused = decode_series([encode_output_packet(each) for each in packets])
    assert not refused
    assert flat(parts) == packets
    assert len(parts) == 1
    (part,) = parts
    if isinstance(part, PacketSeries):
        runs = [each.runs[0] for each in packets]
        assert part.first_source_seqs == {run.source_stream_id: run.first_source_seq for run in reversed(runs)}
        assert part.end_source_seqs == {run.source_stream_id: run.end_source_seq for run in runs}
        assert part.message_count == sum(each.message_count for each in packets)
    else:
        assert len(packets) == 1


OTHER_VALUES = {
    "flags": OutputFlag.RETRANSMISSION | OutputFlag.PROVISIONAL,
    "feed_id": 8,
    "channel_id": 2,
    "adapter_id": 3,
    "session": 20261122,
    "epoch": 4,
}


@given(lengths.filter(lambda each: len(each) > 2), st.data())
def test_a_packet_that_differs_in_anything_that_its_series_shares_is_not_part_of_it(
    lengths: Lengths, data: st.DataObject
) -> None:
    packets = history(lengths)
    at, name = data.draw(st.integers(0, len(packets) - 1)), data.draw(st.sampled_from(list(OTHER_VALUES)))
    packets[at] = packets[at]._replace(**{name: OTHER_VALUES[name]})
    parts, _ = decode_series([encode_output_packet(each) for each in packets])
    alone = parts[
        [packets_of(part)[0] for part in parts].index(decode_output_packet(encode_output_packet(packets[at])))
    ]
    assert len(packets_of(alone)) == 1


@given(lengths, st.data())
def test_a_series_ends_where_a_packet_is_missing(lengths: Lengths, data: st.DataObject) -> None:
    packets = history(lengths)
    kept = [each for each in packets if data.draw(st.booleans())]
    parts, refused = decode_series([encode_output_packet(each) for each in kept])
    assert flat(parts) == kept
    assert not refused
    for part in parts:
        for one, other in pairwise(packets_of(part)):
            assert one.end_input_seq == other.first_input_seq
            assert one.end_message_seq == other.first_message_seq


@given(lengths)
def test_a_series_ends_where_a_source_stream_does_not_continue(lengths: Lengths) -> None:
    """Although the numbers of the channel do, as where an epoch gave them to other messages."""
    packets = history(lengths)
    torn = [_with_source_seq(each, 1_000) if not at % 4 else each for at, each in enumerate(packets)]
    parts, _ = decode_series([encode_output_packet(each) for each in torn])
    assert flat(parts) == torn
    for part in parts:
        ends: dict[int, int] = {}
        for packet in packets_of(part):
            (run,) = packet.runs
            assert run.first_source_seq == ends.get(run.source_stream_id, run.first_source_seq)
            ends[run.source_stream_id] = run.end_source_seq


def _with_source_seq(packet: OutputPacket, source_seq: int) -> OutputPacket:
    runs = (packet.runs[0]._replace(first_source_seq=source_seq),)
    return packet._replace(runs=runs, payload=encode_runs(runs) + packet.payload[RUN_SIZE:])


@given(st.lists(output_packets, max_size=4), lengths, st.data())
def test_damaged_and_other_packets_are_accepted_and_refused_as_one_by_one(
    others: list[OutputPacket], lengths: Lengths, data: st.DataObject
) -> None:
    datagrams = [bytearray(encode_output_packet(each)) for each in (*history(lengths), *others)]
    for datagram in datagrams:
        for _ in range(data.draw(st.integers(0, 2))):
            place = data.draw(st.integers(0, min(len(datagram) - 1, OUTPUT_LAYOUT.size + 20)))
            datagram[place] ^= data.draw(st.integers(1, 255))
        del datagram[data.draw(st.integers(0, len(datagram))) if data.draw(st.booleans()) else len(datagram) :]
    order = data.draw(st.permutations(datagrams)) if data.draw(st.booleans()) else datagrams
    received = [bytes(each) for each in order]
    parts, refused = decode_series(received)
    assert (flat(parts), refused) == decoded_singly(received)


def test_nothing_is_decoded_of_nothing() -> None:
    assert decode_series([]) == ([], [])


FOUR = ((1, 501, 4, 2), (2, 31, 1, 0), (1, 505, 7, 3), (1, 512, 2, 1))  # some source messages made no message


def encoded(packets: list[OutputPacket]) -> list[bytes]:
    return [encode_output_packet(each) for each in packets]


def series_of(packets: list[OutputPacket]) -> PacketSeries:
    ((series,), refused) = decode_series(encoded(packets))
    assert isinstance(series, PacketSeries)
    assert not refused
    return series


def test_a_series_tells_what_its_packets_cover() -> None:
    series = series_of(plain(*FOUR))
    assert len(series) == 4
    assert (series.feed_id, series.channel_id, series.adapter_id, series.session, series.epoch) == (
        7,
        1,
        2,
        20261121,
        3,
    )
    assert (series.first_input_seq, series.end_input_seq) == (301, 315)
    assert (series.first_message_seq, series.end_message_seq, series.message_count) == (101, 107, 6)
    assert series.first_input_seqs == [301, 305, 306, 313]
    assert series.first_message_seqs == [101, 103, 103, 106]
    assert series.message_counts == [2, 0, 3, 1]
    assert series.first_source_seqs == {1: 501, 2: 31}
    assert series.end_source_seqs == {1: 514, 2: 32}


def test_the_packets_of_a_series_are_those_that_were_encoded() -> None:
    packets = plain(*FOUR)
    series = series_of(packets)
    assert series.packets == tuple(packets)
    assert [series.packet(place) for place in range(4)] == packets
    assert [bytes(series.frames(place)) for place in range(4)] == [
        each.payload[each.messages_offset :] for each in packets
    ]


def test_a_packet_that_continues_no_other_is_not_a_series() -> None:
    packets = plain(*FOUR)
    alone = plain((1, 900, 1, 1), first_input=900)[0]
    parts, _ = decode_series(encoded([*packets[:2], alone, *packets[2:]]))
    assert [len(packets_of(part)) for part in parts] == [2, 1, 2]
    assert parts[1] == alone
    assert decode_series(encoded([alone])) == ([alone], [])


def test_message_frames_without_a_body_are_enough() -> None:
    packets = [output_packet(first=at, first_input=at, runs=((1, at, [b""]),)) for at in (1, 2)]
    assert len(series_of([each._replace(flags=OutputFlag.RETRANSMISSION) for each in packets])) == 2


def test_a_series_may_reach_the_greatest_number() -> None:
    series_of(plain((1, SEQ_MAX - 2, 2, 2), (1, SEQ_MAX, 1, 1), first_input=SEQ_MAX - 2, first_message=SEQ_MAX - 2))


@pytest.mark.parametrize("name", ["first_input_seq", "first_message_seq"])
@pytest.mark.parametrize("number", [0, SEQ_MAX + 1])
def test_a_packet_with_an_impossible_number_is_refused(name: str, number: int) -> None:
    begin = {"first_input": 301, "first_message": 101, name.removesuffix("_seq"): number}
    assert_decoded_as_singly(plain(*FOUR, **begin), refused_count=4 if number else 1)


@pytest.mark.parametrize("number", [0, SEQ_MAX + 1])
def test_a_run_with_an_impossible_source_seq_is_refused(number: int) -> None:
    packets = plain((1, number, 4, 2), (1, number + 4, 1, 1))
    assert_decoded_as_singly(packets, refused_count=2 if number else 1)


def assert_decoded_as_singly(packets: list[OutputPacket], *, refused_count: int) -> None:
    """No series contains what is refused, and the rest is as encoded."""
    datagrams = encoded(packets)
    parts, refused = decode_series(datagrams)
    assert (flat(parts), refused) == decoded_singly(datagrams)
    assert len(refused) == refused_count


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("magic", 0x12345678, Refusal.FOREIGN),
        ("version", 1, Refusal.VERSION),
        ("flags", OutputFlag.RETRANSMISSION | OutputFlag.HEARTBEAT, Refusal.MALFORMED),
        ("message_count", 4, Refusal.MALFORMED),
        ("message_count", 2_000, Refusal.TRUNCATED),
        ("run_count", 0, Refusal.MALFORMED),
        ("run_count", 2_000, Refusal.TRUNCATED),
    ],
)
def test_a_packet_that_is_refused_divides_a_series(field: str, value: int, reason: Refusal) -> None:
    datagrams = [bytearray(each) for each in encoded(plain(*FOUR, (2, 32, 5, 5)))]
    OUTPUT_LAYOUT.part(field).pack_into(datagrams[2], OUTPUT_LAYOUT.offsets[field], value)
    parts, refused = decode_series([bytes(each) for each in datagrams])
    assert [len(packets_of(part)) for part in parts] == [2, 2]
    assert refused == [reason]


def test_a_run_without_source_messages_is_refused() -> None:
    assert_decoded_as_singly(plain((1, 501, 4, 2), (1, 505, 0, 0), (1, 505, 7, 3)), refused_count=1)


def test_a_packet_without_all_of_its_messages_is_refused() -> None:
    datagrams = encoded(plain(*FOUR))
    datagrams[2] = datagrams[2][: HEAD_SIZE + 3 * OUTPUT_FRAME_SIZE - 1]
    parts, refused = decode_series(datagrams)
    assert [len(packets_of(part)) for part in parts] == [2, 1]
    assert refused == [Refusal.TRUNCATED]


@pytest.mark.parametrize(
    "flags", [OutputFlag.NONE, OutputFlag.FROM_ACTIVE, OutputFlag.RETRANSMISSION | OutputFlag.PROVISIONAL]
)
def test_a_live_or_provisional_packet_is_not_part_of_a_series(flags: int) -> None:
    packets = plain(*FOUR)
    packets[2] = packets[2]._replace(flags=flags)
    assert decode_series(encoded(packets))[0][1:] == packets[2:]


def test_what_an_active_and_what_a_backup_sent_continue_each_other() -> None:
    packets = plain(*FOUR)
    packets[1] = packets[1]._replace(flags=OutputFlag.RETRANSMISSION | OutputFlag.FROM_ACTIVE)
    assert series_of(packets).packets == tuple(packets)


def test_a_packet_of_two_runs_is_not_part_of_a_series() -> None:
    """Even if the second run made no message."""
    packets = plain(*FOUR)
    (run,) = packets[2].runs
    silent = run._replace(
        first_input_seq=run.end_input_seq - 1,
        first_message_seq=run.end_message_seq,
        first_source_seq=run.end_source_seq - 1,
        source_count=1,
        message_count=0,
    )
    runs = (run._replace(source_count=run.source_count - 1), silent)
    frames = packets[2].payload[packets[2].messages_offset :]
    packets[2] = packets[2]._replace(runs=runs, payload=encode_runs(runs) + frames)
    assert decode_series(encoded(packets))[0][1:] == packets[2:]


def test_a_declared_source_gap_is_not_part_of_a_series() -> None:
    packets = plain(*FOUR)
    gap = (packets[3].runs[0]._replace(is_source_gap=True),)
    packets[3] = packets[3]._replace(runs=gap, payload=encode_runs(gap) + packets[3].payload[RUN_SIZE:])
    parts, refused = decode_series(encoded(packets))
    assert [len(packets_of(part)) for part in parts] == [3, 1]
    assert parts[1] == packets[3]
    assert not refused


@pytest.mark.parametrize(
    ("first_input", "first_message", "source_seq"),
    [(305, 103, 506), (305, 103, 504), (306, 103, 505), (304, 103, 505), (305, 104, 505), (305, 102, 505)],
)
def test_a_packet_that_does_not_continue_in_one_number_begins_another_part(
    first_input: int, first_message: int, source_seq: int
) -> None:
    before = plain((1, 501, 4, 2))
    after = plain((1, source_seq, 1, 1), first_input=first_input, first_message=first_message)
    assert decode_series(encoded([*before, *after])) == ([*before, *after], [])
    assert len(series_of([*before, *plain((1, 505, 1, 1), first_input=305, first_message=103)])) == 2


@pytest.mark.parametrize("name", list(OTHER_VALUES))
def test_a_series_ends_where_what_it_shares_changes(name: str) -> None:
    packets = plain(*FOUR)
    packets[2:] = [each._replace(**{name: OTHER_VALUES[name]}) for each in packets[2:]]
    first, *others = decode_series(encoded(packets))[0]
    assert packets_of(first) == tuple(packets[:2])
    assert sum(len(packets_of(part)) for part in others) == 2
