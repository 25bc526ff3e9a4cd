"""MoldUDP64: the exact bytes of packets, and a receiver that covers every sequence number exactly once."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from itch.parser import MessageParser

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.files.binary_file import read_binary_file
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import (
    MOLD_HEADER,
    MoldPacket,
    decode_mold_packet,
    encode_end_of_session,
    encode_mold_packet,
    encode_mold_request,
    message_offset,
)
from tandemfeed.adapter.conversion.formats.packets.moldudp64_receiver import (
    MILLISECOND_NS,
    Deliver,
    FeedSilent,
    MoldConfig,
    MoldEffect,
    MoldReceiver,
    SendRequest,
    SequenceGap,
    SessionEnded,
    SessionStarted,
)
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE, decode_source_packet
from tests.real_data import shared_file

DAY = b"20261121AA"
CONFIG = MoldConfig(request_count_max=3)
MS = MILLISECOND_NS


def message(number: int) -> bytes:
    return b"m%d" % number


def packet(first: int, last: int, session: bytes = DAY) -> bytes:
    return encode_mold_packet(session, first, [message(number) for number in range(first, last + 1)])


@dataclass
class Heard:
    """The summary of a receiver's effects."""

    numbers: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    requests: list[tuple[int, int]] = field(default_factory=list)
    others: list[MoldEffect] = field(default_factory=list)

    def take(self, effects: list[MoldEffect]) -> Heard:
        for effect in effects:
            if isinstance(effect, Deliver):
                chunk = effect.chunk
                expected = range(chunk.sequence, chunk.sequence + chunk.message_count)
                assert chunk.frames == b"".join(struct.pack(">H", len(message(n))) + message(n) for n in expected)
                self.numbers += expected
            elif isinstance(effect, SequenceGap):
                self.lost += range(effect.first_sequence, effect.first_sequence + effect.count)
            elif isinstance(effect, SendRequest):
                assert effect.datagram == encode_mold_request(DAY, effect.first_sequence, effect.count)
                self.requests.append((effect.first_sequence, effect.count))
            else:
                self.others.append(effect)
        return self


def test_packets_have_these_bytes() -> None:
    data = bytes.fromhex("32303236313132314141" + "0000000000000007" + "0002" + "0001" + "53" + "0002" + "4142")
    assert encode_mold_packet(DAY, 7, [b"S", b"AB"]) == data
    assert decode_mold_packet(data) == MoldPacket(DAY, 7, 2, False, data[20:])
    assert encode_mold_request(DAY, 7, 300).hex() == "32303236313132314141" + "0000000000000007" + "012c"
    assert decode_mold_packet(encode_mold_packet(b"S", 9, [])) == MoldPacket(b"S         ", 9, 0, False, b"")
    assert decode_mold_packet(encode_end_of_session(DAY, 9)) == MoldPacket(DAY, 9, 0, True, b"")
    for damaged in (data[:19], data[:22], encode_mold_packet(DAY, 9, []) + b"x", packet(0, 1)):
        with pytest.raises(FormatError):
            decode_mold_packet(damaged)


def test_packets_of_a_real_feed_are_read_completely() -> None:
    """Three packets of a venue with messages other than ITCH 5.0's; the last one lacks its last five bytes."""
    data = shared_file("moldudp64/mold.sample.dat").read_bytes()
    reader = FrameReader(load_source_format(document("itch50.xml")))
    offset, headers = 0, []
    while offset < len(data):
        _, sequence, count = MOLD_HEADER.unpack_from(data, offset)
        headers.append((sequence, count))
        frames = data[offset + MOLD_HEADER.size :]
        last = message_offset(frames, count - 1)
        end = offset + MOLD_HEADER.size + last + 2 + int.from_bytes(frames[last : last + 2], "big")
        if end > len(data):
            with pytest.raises(FormatError, match="the packet ends before message 13"):
                decode_mold_packet(data[offset:])
        else:
            assert len(list(reader.walk(decode_mold_packet(data[offset:end]).frames))) == count
        offset = end
    assert headers == [(1, 15), (16, 13), (29, 13)]


def test_a_session_without_loss_is_delivered_as_it_arrives() -> None:
    receiver, heard = MoldReceiver(), Heard()
    for now, data in enumerate((packet(1, 3), packet(4, 4), encode_mold_packet(DAY, 5, []), packet(5, 9))):
        heard.take(receiver.on_packet(data, now))
    assert heard.numbers == list(range(1, 10))
    heard.take(receiver.on_packet(encode_end_of_session(DAY, 10), 5))
    assert heard.others == [SessionStarted(DAY, 1), SessionEnded(DAY, 10)]
    assert receiver.on_packet(packet(10, 10), 6) == [], "nothing belongs to a session that is over"


def test_the_second_line_fills_gaps_of_the_first_and_nothing_is_requested() -> None:
    receiver, heard = MoldReceiver(), Heard()
    for now, data in enumerate((packet(1, 2), packet(5, 6), packet(1, 2), packet(3, 4), packet(5, 6), packet(7, 7))):
        heard.take(receiver.on_packet(data, now))
    assert heard.numbers == list(range(1, 8))
    assert (heard.requests, receiver.counts.duplicates, receiver.next_deadline_ns()) == ([], 2, 5 + 3_000 * MS)


def test_a_packet_is_a_duplicate_if_held_packets_together_have_its_messages() -> None:
    receiver, heard = MoldReceiver(CONFIG), Heard()
    for data in (packet(1, 1), packet(3, 4), packet(5, 6), packet(3, 6), packet(4, 5)):
        heard.take(receiver.on_packet(data, 0))
    assert receiver.counts.duplicates == 2
    heard.take(receiver.on_packet(packet(2, 2), 1))
    assert heard.numbers == list(range(1, 7))


def test_messages_missing_on_all_lines_are_requested_and_answers_may_be_packed_differently() -> None:
    receiver, heard = MoldReceiver(CONFIG), Heard()
    for data in (packet(1, 2), packet(6, 7), packet(9, 9)):
        heard.take(receiver.on_packet(data, 0))
    assert receiver.next_deadline_ns() == CONFIG.reorder_wait_ns
    assert receiver.on_deadline(CONFIG.reorder_wait_ns - 1) == []
    heard.take(receiver.on_deadline(CONFIG.reorder_wait_ns))
    assert heard.requests == [(3, 3)]
    heard.take(receiver.on_packet(packet(2, 8), 3 * MS))
    assert heard.numbers == list(range(1, 10))
    assert receiver.counts.lost == 0


def test_a_heartbeat_reveals_that_the_last_message_was_lost() -> None:
    receiver, heard = MoldReceiver(CONFIG), Heard()
    heard.take(receiver.on_packet(packet(1, 2), 0))
    heard.take(receiver.on_packet(encode_mold_packet(DAY, 5, []), 1))
    heard.take(receiver.on_deadline(receiver.next_deadline_ns() or 0))
    assert heard.requests == [(3, 2)]


def test_messages_that_never_arrive_are_declared_missing_after_the_configured_requests() -> None:
    receiver, heard = MoldReceiver(CONFIG), Heard()
    for data in (packet(1, 2), packet(5, 6), encode_end_of_session(DAY, 9)):
        heard.take(receiver.on_packet(data, 0))
    for _ in range(2 * (CONFIG.request_count_max + 1)):
        assert SessionEnded(DAY, 9) not in heard.others
        heard.take(receiver.on_deadline(receiver.next_deadline_ns() or 0))
    assert (heard.numbers, heard.lost) == ([1, 2, 5, 6], [3, 4, 7, 8])
    assert heard.requests == [(3, 2)] * 3 + [(7, 2)] * 3
    assert heard.others == [SessionStarted(DAY, 1), SessionEnded(DAY, 9)]


def test_a_new_session_ends_the_old_one_and_begins_at_its_first_message() -> None:
    receiver, heard = MoldReceiver(CONFIG), Heard()
    heard.take(receiver.on_packet(packet(1, 2), 0))
    heard.take(receiver.on_packet(packet(5, 5), 0))
    heard.take(receiver.on_packet(packet(2, 2, b"TOMORROW  "), 1))
    assert (heard.numbers, heard.lost) == ([1, 2, 5], [3, 4])
    assert heard.others == [SessionStarted(DAY, 1), SessionEnded(DAY, 6), SessionStarted(b"TOMORROW  ", 1)]
    assert receiver.on_packet(packet(6, 6), 2) == []
    assert receiver.counts.foreign == 1
    (request,) = receiver.on_deadline(1 + CONFIG.reorder_wait_ns)
    assert isinstance(request, SendRequest)
    assert request.datagram == encode_mold_request(b"TOMORROW", 1, 1)


def test_a_receiver_continues_from_a_position() -> None:
    receiver, heard = MoldReceiver(CONFIG, DAY, 4), Heard()
    heard.take(receiver.on_packet(packet(1, 6), 0))
    assert (heard.numbers, heard.others) == ([4, 5, 6], [])
    late = MoldReceiver(CONFIG)
    assert Heard().take(late.on_packet(packet(50, 51), 0)).numbers == [50, 51]


def test_silence_is_reported_once_and_any_packet_ends_it() -> None:
    receiver = MoldReceiver(CONFIG)
    receiver.start(0)
    assert receiver.next_deadline_ns() == CONFIG.silence_ns
    assert receiver.on_deadline(CONFIG.silence_ns) == [FeedSilent()]
    assert receiver.next_deadline_ns() is None
    receiver.on_packet(packet(1, 1), CONFIG.silence_ns + 5)
    assert receiver.next_deadline_ns() == 2 * CONFIG.silence_ns + 5


def test_messages_held_after_a_gap_are_bounded_and_dropped_ones_are_requested_again() -> None:
    receiver, heard = MoldReceiver(MoldConfig(held_messages_max=10)), Heard()
    heard.take(receiver.on_packet(packet(1, 1), 0))
    for first in range(3, 40, 4):
        heard.take(receiver.on_packet(packet(first, first + 3), 0))
    assert receiver.counts.dropped == 8
    for now in range(1, 200):
        requests = list(heard.requests)
        heard.take(receiver.on_deadline(now * MS))
        for first, count in heard.requests[len(requests) :]:
            heard.take(receiver.on_packet(packet(first, first + count - 1), now * MS))
    assert heard.numbers == list(range(1, 43))


def test_malformed_packets_are_counted_and_change_nothing() -> None:
    receiver = MoldReceiver()
    receiver.on_packet(packet(1, 2), 0)
    for damaged in (b"", packet(3, 3)[:21], packet(2, 3)[:-4]):
        assert Heard().take(receiver.on_packet(damaged, 1)).numbers == []
    assert receiver.counts.malformed == 3
    assert Heard().take(receiver.on_packet(packet(3, 3), 1)).numbers == [3]


@settings(max_examples=150)
@given(st.data())
def test_every_number_is_delivered_or_declared_once_despite_loss_duplicates_and_delays(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 60))
    missing = data.draw(st.frozensets(st.integers(1, total)))  # the request server lacks these as well
    cuts = sorted(data.draw(st.sets(st.integers(2, total), max_size=20)) | {1, total + 1}) if total > 1 else [1, 2]
    sent = [packet(first, end - 1) for first, end in pairwise(cuts)]
    lines = [each for each in sent for _ in range(data.draw(st.integers(0, 2)))]
    arrivals = [*data.draw(st.permutations(lines)), encode_end_of_session(DAY, total + 1)]
    receiver, heard = MoldReceiver(MoldConfig(request_count_max=2), DAY, 1), Heard()
    now = 0
    for each in arrivals:
        now += data.draw(st.integers(0, 3)) * MS
        heard.take(receiver.on_packet(each, now))
    for _ in range(10_000):
        if any(isinstance(each, SessionEnded) for each in heard.others):
            break
        now = max(now, receiver.next_deadline_ns() or now)
        before = len(heard.requests)
        heard.take(receiver.on_deadline(now))
        for first, count in heard.requests[before:]:
            answer = [number for number in range(first, first + count) if number not in missing]
            if answer:
                run = [n for place, n in enumerate(answer) if n == answer[0] + place]
                heard.take(receiver.on_packet(packet(run[0], run[-1]), now))
    assert sorted(heard.numbers + heard.lost) == list(range(1, total + 1))
    assert heard.numbers == sorted(heard.numbers)
    assert set(heard.lost) <= missing, "what the server has is never given up"
    assert heard.others == [SessionEnded(DAY, total + 1)]


def test_a_real_opening_sent_as_packets_becomes_source_packets() -> None:
    source_format = load_source_format(document("itch50.xml"))
    with shared_file("itch50/12302019_SNIPPET.NASDAQ_ITCH50").open("rb") as file:
        (whole,) = read_binary_file(file, source_format)
    places = list(FrameReader(source_format).walk(whole.frames))
    receiver, delivered = MoldReceiver(), b""
    for first in range(0, 1_000, 40):
        bodies = [whole.frames[offset + 2 : offset + size] for offset, size, _ in places[first : first + 40]]
        for effect in receiver.on_packet(encode_mold_packet(DAY, first + 1, bodies), first):
            if isinstance(effect, Deliver):
                made = effect.chunk.source_packet(feed_id=1, source_stream_id=2, session=20191230)
                header = decode_source_packet(made, 1)
                assert (header.first_source_seq, header.message_count) == (first + 1, 40)
                delivered += made[SOURCE_HEADER_SIZE:]
    assert delivered == whole.frames


def test_packets_captured_from_the_exchange_read_as_another_decoder_reads_them() -> None:
    reader = FrameReader(load_source_format(document("itch50.xml")))
    packets = [
        decode_mold_packet(datagram.payload)
        for datagram in CaptureReader(shared_file("itch/Multiple.Packets.pcap").open("rb"))
    ]
    assert [(each.session, each.message_count) for each in packets] == [(b"000010059B", 1), (b"000010059B", 38)]
    for each in packets:
        for (offset, size, _), (_, values) in zip(reader.walk(each.frames), reader.read(each.frames), strict=True):
            theirs = MessageParser().get_message_type(each.frames[offset + 2 : offset + size])
            assert values["order_ref"] == theirs.order_reference_number
            assert (values["stock_locate"], values["timestamp"]) == (theirs.stock_locate, theirs.timestamp)
