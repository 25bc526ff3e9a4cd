"""Packets that continue each other are decoded together, exactly as one by one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_LAYOUT,
    OutputFlag,
    OutputPacket,
    decode_output_packet,
    encode_output_packet,
)
from tandemfeed.feedcore.wire.packet_series import PacketSeries, decode_series, packets_of
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tests.feedcore.packets import output_packet, output_packets

BODIES = [b"one", b"two", b"three"]
Lengths = list[tuple[int, int]]  # source stream and message count of each packet


def history(lengths: Lengths, *, flags: int = OutputFlag.RETRANSMISSION, epoch: int = 3) -> list[OutputPacket]:
    """Packets of one run each that continue each other."""
    found, seq, next_sources = [], 1, dict[int, int]()
    for stream, count in lengths:
        source_seq = next_sources.get(stream, 1)
        made = output_packet(epoch=epoch, first=seq, first_input=seq + 7, runs=((stream, source_seq, BODIES[:count]),))
        found.append(made._replace(flags=flags))
        seq, next_sources[stream] = seq + count, source_seq + count
    return found


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
    torn = [
        decode_output_packet(_with_source_seq(each, 1_000)) if not at % 4 else each for at, each in enumerate(packets)
    ]
    parts, _ = decode_series([encode_output_packet(each) for each in torn])
    assert flat(parts) == torn
    for part in parts:
        ends: dict[int, int] = {}
        for packet in packets_of(part):
            (run,) = packet.runs
            assert run.first_source_seq == ends.get(run.source_stream_id, run.first_source_seq)
            ends[run.source_stream_id] = run.end_source_seq


def _with_source_seq(packet: OutputPacket, source_seq: int) -> bytes:
    (run,) = packet.runs
    bodies = BODIES[: run.source_count]
    shape = ((run.source_stream_id, source_seq, bodies),)
    made = output_packet(
        epoch=packet.epoch, first=packet.first_message_seq, first_input=packet.first_input_seq, runs=shape
    )
    return encode_output_packet(made._replace(flags=packet.flags))


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
