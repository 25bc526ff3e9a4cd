"""A client of single symbols receives just their messages; numbers, gaps and positions stay those of the channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.client_lib.items import Batch, Item
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.stream.filters.symbol_filter import SymbolFilter
from tandemfeed.feedcore.documents.symbol_words import word_of
from tandemfeed.feedcore.merge.effects import Gap
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.feedcore.wire.sbe_header import SBE_MESSAGE_HEADER
from tandemfeed.v1 import admin_pb2
from tests.client_lib.toy_cluster import ToyCluster, collect, heartbeat, packet, subscribe_and_hear_all

MODEL = b"""<?xml version="1.0" encoding="UTF-8"?>
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="toy" id="7" version="0" byteOrder="littleEndian">
  <types>
    <composite name="messageHeader">
      <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/>
    </composite>
    <composite name="groupSizeEncoding">
      <type name="blockLength" primitiveType="uint16"/><type name="numInGroup" primitiveType="uint16"/>
    </composite>
    <type name="Symbol" primitiveType="char" length="8"/>
  </types>
  <sbe:message name="Trade" id="1">
    <field name="at" id="1" type="uint64"/><field name="symbol" id="2" type="Symbol"/>
  </sbe:message>
  <sbe:message name="Quote" id="2"><field name="symbol" id="1" type="Symbol"/></sbe:message>
  <sbe:message name="Book" id="3">
    <field name="symbol" id="1" type="Symbol"/>
    <group name="levels" id="2"><field name="price" id="3" type="uint64"/></group>
  </sbe:message>
  <sbe:message name="Numbered" id="4"><field name="symbol" id="1" type="int32"/></sbe:message>
  <sbe:message name="Status" id="5"><field name="code" id="1" type="uint64"/></sbe:message>
</sbe:messageSchema>
"""
DECODER = Decoder(MODEL)
TRADE, QUOTE, BOOK, NUMBERED, STATUS, FOREIGN = 1, 2, 3, 4, 5, 6
FIRST = 1_000  # message_seq of a packet's first message
SYMBOLS = [b"XEL", b"BRK.B", b"XELA", b"", b"ABCDEFGH", b"-5"]


def body_of(kind: int, symbol: bytes, padding: bytes) -> bytes:
    """An SBE message with its header."""
    text = symbol.ljust(8, padding)
    block = {
        TRADE: bytes(8) + text,
        QUOTE: text,
        BOOK: text,
        NUMBERED: (-5 if symbol == b"-5" else len(symbol)).to_bytes(4, "little", signed=True),
        STATUS: b"XEL".ljust(8),
        FOREIGN: text,
    }[kind]
    schema = 9 if kind == FOREIGN else 7
    group = b"\x08\0\x01\0" + bytes(8) if kind == BOOK else b""
    return SBE_MESSAGE_HEADER.pack(len(block), kind, schema, 0) + block + group


def packet_of(messages: Sequence[tuple[int, bytes, bytes]]) -> OutputPacket:
    """A packet of two runs with these messages."""
    bodies = [body_of(*message) for message in messages]
    half = len(bodies) // 2
    counts = [count for count in (half, len(bodies) - half) if count]
    runs, seq = [], FIRST
    for stream, count in enumerate(counts, 1):
        runs.append(Run(1, seq, seq, stream, 50, count, count))
        seq += count
    offsets = [at for count in counts for at in range(count)]
    frames = b"".join(
        OUTPUT_FRAME.pack(len(body) + OUTPUT_FRAME.size, offset) + body
        for offset, body in zip(offsets, bodies, strict=True)
    )
    payload = encode_runs(tuple(runs)) + frames
    return OutputPacket(0, 1, 1, 1, 20261121, 1, FIRST, FIRST, len(bodies), tuple(runs), 0, 0, payload)


def batch_of(chosen: SymbolFilter, whole: OutputPacket) -> Batch:
    """What the subscription delivers."""
    part, places = chosen.select(whole)
    return Batch(part, 0, 0, DECODER, places)


def is_granted(message: tuple[int, bytes, bytes], granted: set[bytes]) -> bool:
    """The rule, message by message."""
    kind, symbol, _ = message
    if kind == FOREIGN:
        return True
    if kind == NUMBERED:
        return str(-5 if symbol == b"-5" else len(symbol)).encode() in granted
    return kind != STATUS and symbol in granted


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(SYMBOLS), st.sampled_from([b" ", b"\0"])), min_size=1, max_size=24
    ),
    st.sets(st.sampled_from([each for each in SYMBOLS if each])),
)
def test_just_the_messages_of_the_granted_symbols_are_delivered_with_their_numbers(
    messages: list[tuple[int, bytes, bytes]], granted: set[bytes]
) -> None:
    chosen = SymbolFilter(DECODER.model, "symbol", [word_of(each) for each in granted])
    whole = packet_of(messages)
    batch = batch_of(chosen, whole)
    expected = [place for place, message in enumerate(messages) if is_granted(message, granted)]
    assert batch.message_seqs.tolist() == [FIRST + place for place in expected]
    assert batch.message_count == len(expected)
    everything = {each.origin.message_seq: each for each in Batch(whole, 0, 0, DECODER).messages()}
    decoded = list(batch.messages())
    assert decoded == [everything[each.origin.message_seq] for each in decoded]
    assert {each.origin.message_seq for each in decoded} == everything.keys() & {FIRST + place for place in expected}
    rows = sum(len(rows) for _, rows in batch.arrays())
    assert rows == sum(messages[place][0] not in (BOOK, FOREIGN) for place in expected)
    assert (batch.end_message_seq, batch.sources()) == (FIRST + len(messages), Batch(whole, 0, 0, DECODER).sources())
    assert chosen.filtered_count == len(messages) - len(expected)
    for count in range(1, len(expected)):
        assert list(batch.first_messages(count).message_seqs) == list(batch.message_seqs)[:count]


def test_every_symbol_is_not_the_whole_channel() -> None:
    """Messages without the symbol field are of the channel, not of one of its symbols."""
    whole = packet_of([(TRADE, b"XEL", b" "), (STATUS, b"", b" "), (QUOTE, b"ABCDEFGH", b" ")])
    assert batch_of(SymbolFilter(DECODER.model, "symbol", ["*"]), whole).message_seqs.tolist() == [FIRST, FIRST + 2]


@pytest.mark.parametrize("garbage", [b"\x01", b"\0\0\0\0", b"\xff\xff\0\0" + bytes(20), b"\x0c\0\0\0" + bytes(30)])
def test_a_packet_that_is_framed_incorrectly_yields_nothing(garbage: bytes) -> None:
    whole = packet_of([(TRADE, b"XEL", b" "), (TRADE, b"XEL", b" ")])
    damaged = whole._replace(payload=whole.payload[:-24] + garbage, message_count=9)
    part, places = SymbolFilter(DECODER.model, "symbol", ["XEL"]).select(damaged)
    assert not len(places)
    assert len(part.payload) == part.messages_offset


def test_the_count_continues_in_the_filter_that_replaces_another() -> None:
    first = SymbolFilter(DECODER.model, "symbol", ["XEL"])
    first.select(packet_of([(TRADE, b"ABC", b" ")]))
    assert SymbolFilter(DECODER.model, "symbol", ["ABC"], first).filtered_count == 1


# ---- a subscription ----


def _granting(cluster: ToyCluster, *numbers: int) -> admin_pb2.Grant:
    """The whole grant, limited to the texts of these messages."""
    grant = ToyCluster.whole_grant(cluster)
    grant.feed.channels[0].symbol_field = "text"
    grant.feed.channels[0].symbols.extend(f"note-{1_000_000 + number:09d}" for number in numbers)
    return grant


def _reaches(end_message_seq: int) -> Callable[[list[Item]], bool]:
    return lambda items: any(isinstance(item, Batch) and item.end_message_seq == end_message_seq for item in items)


def test_a_subscription_to_symbols_fills_gaps_and_counts_what_it_filters(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "whole_grant", lambda: _granting(cluster, 2, 7, 13, 29))
    a, _ = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        a.send(packet(1, 1, 5))
        a.lose(packet(6, 6, 5))  # replayed by the adapter
        a.send(packet(11, 11, 10))
        a.send(packet(21, 21, 10))

        a.send(heartbeat(31))
        items = collect(subscription, _reaches(31))
        batches = [item for item in items if isinstance(item, Batch)]
        assert [seq for batch in batches for seq in batch.message_seqs.tolist()] == [2, 7, 13, 29]
        assert [each.number for batch in batches for each in batch.messages()] == [
            1_000_000 + number for number in (2, 7, 13, 29)
        ]
        assert not any(isinstance(item, Gap) for item in items)
        (channel,) = subscription.statistics().channels.values()
        assert (channel.next_message_seq, channel.filtered) == (31, 26)
        cluster.admin.push(_granting(cluster, 33))  # the grant changes while the stream runs
        while subscription.grant.symbols_by_channel[1].words != {"note-001000033"}:
            subscription.poll(0.05)
        a.send(packet(31, 31, 3))
        (batch,) = [each for each in collect(subscription, _reaches(34)) if isinstance(each, Batch)]
        assert batch.message_seqs.tolist() == [33]
        (channel,) = subscription.statistics().channels.values()
        assert channel.filtered == 28
