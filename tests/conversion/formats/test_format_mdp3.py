"""CME MDP 3.0: its schema, read unchanged, decodes real packets as an independent decoder does."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sbedecoder import MDPMessageFactory, MDPSchema
from sbedecoder.message import CompositeMessageField, EnumMessageField, SetMessageField

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader
from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.conversion.formats.packets.mdp3 import (
    MDP_HEADER,
    MdpDeliver,
    MdpEffect,
    MdpGap,
    MdpNumbering,
    MdpReset,
    decode_mdp_packet,
)
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input
from tandemfeed.adapter.convert_command.input.reading import READER_OF_FORMAT, READERS
from tandemfeed.client_lib.messages.sbe_reading import SbeReader
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.sbe import Schema, load_schema
from tandemfeed.feedcore.sbe.messages import Block
from tandemfeed.feedcore.sbe.types import EnumType, SetType
from tests.conversion.formats.tick_material import interpreted
from tests.real_data import shared_file

CAPTURES = [
    ("v1.6-v6.1.pcap", 2_000),
    ("v1.8-MdIncrementalRefreshSessionStatistics.pcap", 356),
    ("v1.8-MdIncrementalRefreshVolume.pcap", 112),
    ("v1.8-MdIncrementalRefreshTradeSummary.pcap", 1),
    ("v1.9-MdIncrementalRefreshBook.pcap", 1),
    ("v1.9-MdIncrementalRefreshOrderBook.pcap", 1),
    ("v1.9-MdIncrementalRefreshTradeSummary.pcap", 1),
]


@cache
def ours() -> Schema:
    return load_schema(shared_file("templates_FixBinary.xml"))


@cache
def theirs() -> MDPMessageFactory:
    schema = MDPSchema()
    schema.parse(str(shared_file("templates_FixBinary.xml")))
    return MDPMessageFactory(schema)


def assert_fields_equal(block: Block, values: dict[str, Any], fields: list[Any], version: int) -> None:
    """Compare every field of a block as both decoders read it."""
    by_name = {field.original_name: field for field in fields}
    for name, definition in block.fields.items():
        other = by_name[name]
        value = values[name]
        if definition.since_version > version and value is None:
            continue  # the other decoder returns a value for a field that is absent
        if isinstance(other, CompositeMessageField):
            parts = {part.original_name: part.value for part in other.parts}
            first = next(iter(parts.values()))
            assert value == (None if first is None else parts), name
        elif isinstance(other, EnumMessageField):
            assert isinstance(definition.type, EnumType)
            assert value == other.enumerant, name
        elif isinstance(other, SetMessageField):
            assert isinstance(definition.type, SetType)
            names = {bit: choice for choice, bit in definition.type.choices.items()}
            bits = [bit for bit in range(64) if other.raw_value >> bit & 1]
            assert value == {names.get(bit, bit) for bit in bits}, name
        else:
            expected = other.value.decode() if isinstance(other.value, bytes) else other.value
            expected = expected.rstrip("\0") if isinstance(expected, str) else expected
            assert value == (expected or None if value is None else expected), name


def assert_message_equal(reader: SbeReader, frame: bytes) -> None:
    message = reader.read(frame, 2)
    assert message.size == len(frame) - 2, "every byte of the message is accounted for"
    block = reader.schema.messages[message.name]
    other, size = theirs().build(frame, 0)
    assert (size, other.template_id.value) == (len(frame), message.header["templateId"])
    version = message.header["version"]
    assert_fields_equal(block, message.fields, other.fields, version)
    their_groups = {group.original_name: group for group in other.groups}
    for name, group in block.groups.items():
        entries = their_groups[name]
        assert len(message.fields[name]) == entries.num_groups
        for entry, their_entry in zip(message.fields[name], entries.repeating_groups, strict=True):
            assert_fields_equal(group, entry, their_entry.fields, version)


@pytest.mark.parametrize(("name", "packet_count"), CAPTURES)
def test_real_packets_read_as_another_decoder_reads_them(name: str, packet_count: int) -> None:
    path = shared_file(f"cme/{name}")
    reader, count = SbeReader(ours()), 0
    for number, datagram in enumerate(CaptureReader(path.open("rb"))):
        if number == packet_count:
            break
        packet, offset = decode_mdp_packet(datagram.payload), 0
        while offset < len(packet.frames):
            size = int.from_bytes(packet.frames[offset : offset + 2], "little")
            assert_message_equal(reader, packet.frames[offset : offset + size])
            offset += size
            count += 1
    assert number + 1 >= packet_count
    assert count >= packet_count


def test_instrument_definitions_of_an_older_schema_are_read_to_the_end() -> None:
    """Their blocks are shorter than in the current schema; the other decoder misreads such messages."""
    (datagram,) = CaptureReader(shared_file("cme/v1.5-MdInstrumentDefinitionSpread.pcap").open("rb"))
    packet, offset, names = decode_mdp_packet(datagram.payload), 0, []
    while offset < len(packet.frames):
        size = int.from_bytes(packet.frames[offset : offset + 2], "little")
        message = SbeReader(ours()).read(packet.frames[offset : offset + size], 2)
        assert message.size == size - 2
        names.append((message.name, message.fields["Symbol"] != "", message.fields["MaturityMonthYear"] is not None))
        offset += size
    assert len(names) == packet.message_count == 5
    assert all(has_symbol for _, has_symbol, _ in names)


def test_two_real_lines_with_missing_packets_give_one_stream_without_a_gap() -> None:
    datagrams = list(CaptureReader(shared_file("cme/v1.6-v6.1.pcap").open("rb")))[:2_000]
    lines = sorted({each.where for each in datagrams})
    assert len(lines) == 2
    numbering, delivered, sequences = MdpNumbering(), 0, []
    for each in datagrams:
        sequence = decode_mdp_packet(each.payload).sequence
        if sequence % 7 == 3 and each.where == lines[sequence % 2]:
            continue  # lost on one line
        for effect in numbering.on_packet(each.payload, each.captured_at_ns):
            assert isinstance(effect, MdpDeliver)
            assert effect.chunk.sequence == delivered + 1
            delivered += effect.chunk.message_count
            sequences.append(effect.packet_sequence)
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
    assert len(sequences) > 990


def packet(sequence: int, count: int = 1) -> bytes:
    return MDP_HEADER.pack(sequence, 5) + struct.pack("<HHHHH", 10, 0, 12, 1, 9) * count


def delivered(effects: list[MdpEffect]) -> list[tuple[int, int] | MdpEffect]:
    return [(each.packet_sequence, each.chunk.sequence) if isinstance(each, MdpDeliver) else each for each in effects]


def test_packets_missing_on_both_lines_are_reported_as_a_gap_and_delivery_continues() -> None:
    numbering = MdpNumbering(wait_ns=100, held_max=3)
    assert delivered(numbering.on_packet(packet(10, 2), 0)) == [(10, 1)]
    assert numbering.on_packet(packet(13), 5) == numbering.on_packet(packet(12), 9) == []
    assert numbering.on_packet(packet(12), 10) == []
    assert (numbering.duplicates, numbering.next_deadline_ns()) == (1, 105)
    assert numbering.on_deadline(104) == []
    assert delivered(numbering.on_deadline(105)) == [MdpGap(11, 1), (12, 3), (13, 4)]
    for sequence in (20, 21, 22):
        assert numbering.on_packet(packet(sequence), 200) == []
    assert delivered(numbering.on_packet(packet(23), 200))[0] == MdpGap(14, 6), "more are not held"
    assert delivered(numbering.on_packet(packet(1), 300)) == [MdpReset(), (1, 9)]


@settings(max_examples=100)
@given(st.lists(st.integers(0, 2), min_size=2, max_size=40), st.randoms(use_true_random=False))
def test_every_packet_is_delivered_once_in_order_or_reported_in_a_gap(copies: list[int], chance: Any) -> None:
    arrivals = [number for number, count in enumerate(copies, 5) for _ in range(count)]
    arrivals.sort(key=lambda number: number + chance.uniform(0, 4))
    numbering, seen = MdpNumbering(wait_ns=1, next_packet=5), []
    for now, number in enumerate([*arrivals, 5 + len(copies)]):
        effects = numbering.on_packet(packet(number), now)
        if now == len(arrivals):
            effects += numbering.on_deadline(now + 1)
            while numbering.next_deadline_ns() is not None:
                effects += numbering.on_deadline(numbering.next_deadline_ns() or 0)
        for effect in effects:
            if isinstance(effect, MdpGap):
                seen += range(effect.first_packet, effect.first_packet + effect.packet_count)
            elif isinstance(effect, MdpDeliver):
                seen.append(effect.packet_sequence)
    assert seen == list(range(5, 6 + len(copies)))


def test_packets_that_contradict_their_headers_are_refused() -> None:
    assert decode_mdp_packet(packet(7, 3)).message_count == 3
    for damaged in (packet(7)[:11], packet(7)[:-1], packet(7) + b"\0", packet(7)[:12] + b"\x09" + packet(7)[13:]):
        with pytest.raises(FormatError):
            decode_mdp_packet(damaged)
    numbering = MdpNumbering()
    assert numbering.on_packet(b"", 0) == []
    assert numbering.malformed == 1


@cache
def table() -> ConverterTable:
    """The shipped documents; CME's schema is next to a copy of the format's document."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "mdp3.xml").write_bytes(document("mdp3.xml").read_bytes())
        (folder / "templates_FixBinary.xml").write_bytes(shared_file("templates_FixBinary.xml").read_bytes())
        largest = 8_192  # all entries of a message go into one output datagram
        return load_checked_table(folder / "mdp3.xml", document("mdp3-to-tick.xml"), document("tick.xml"), largest)


NANO = 10**9
SIDES = {"0": "B", "1": "S", "E": "B", "F": "S"}
BOOKS = {32: 100, 46: 1}  # template: factor for prices with seven decimals, or with nine
TRADES, ORDERS, STATISTICS = {42: 100, 48: 1}, {43: 100, 47: 1}, {35: 100, 51: 1}

# Fields that the message's version does not have; the other decoder reads them from the padding, as 0.
ORDERS_IN_BOOKS_SINCE = 7
NEWER = {(42, "tradeId"): 7, (35, "quantity"): 8}


def text(value: Any) -> str:
    return (value.decode() if isinstance(value, bytes) else str(value)).strip("\0")


def price(entry: Any, factor: int) -> int | None:
    mantissa = entry.md_entry_px.mantissa.value
    return None if mantissa is None else mantissa * factor


def expected(frame: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """The expected tick-model messages for a message, as the other decoder reads it."""
    message, _ = theirs().build(frame, 0)
    kind, at_ns = message.template_id.value, message.transact_time.value if hasattr(message, "transact_time") else None
    if kind == 30:
        states = {2: "H", 4: "C", 17: "T", 18: "C", 21: "O", 24: "O", 25: "O", 26: "C"}
        status = message.security_trading_status.raw_value
        values = {"symbol": text(message.security_group.value), "topic": "status", "number": status}
        values |= {"event": str(message.security_trading_event.raw_value), "reason": str(message.halt_reason.raw_value)}
        values |= {"instrumentId": message.security_id.value, "eventAt": at_ns, "state": states.get(status, "U")}
        yield "Status", {name: value for name, value in values.items() if value not in (None, "")}
        return
    newer = {name for (template, name), since in NEWER.items() if template == kind and since > message.version.value}
    for entry in message.no_md_entries.repeating_groups if hasattr(message, "no_md_entries") else ():
        name, values = expected_entry(kind, entry)
        values |= dict.fromkeys(newer)
        values |= {"instrumentId": entry.security_id.value, "eventAt": at_ns}
        yield name, {field: value for field, value in values.items() if value not in (None, "")}
    if kind in BOOKS and message.version.value >= ORDERS_IN_BOOKS_SINCE:
        yield from expected_orders(message, BOOKS[kind])


def expected_orders(message: Any, factor: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The orders of a message of levels; each refers to one of them."""
    levels = [
        {
            "price": price(level, factor),
            "side": SIDES[text(level.md_entry_type.raw_value)],
            "instrumentId": level.security_id.value,
        }
        for level in message.no_md_entries.repeating_groups  # one object, which moves from entry to entry
    ]
    for entry in message.no_order_id_entries.repeating_groups:
        values = {"orderId": entry.order_id.value, "size": entry.md_display_qty.value * NANO, "book": "O"}
        values |= levels[entry.reference_id.value - 1] | {"eventAt": message.transact_time.value}
        yield "OrderEvent", values | {"action": "AMD"[entry.order_update_action.raw_value]}


def expected_entry(kind: int, entry: Any) -> tuple[str, dict[str, Any]]:
    if kind in TRADES:
        taker = {1: "B", 2: "S", 255: None}.get(entry.aggressor_side.raw_value, "N")
        trade = "B" if entry.md_update_action.raw_value == 2 else "R"
        values = {"price": price(entry, TRADES[kind]), "size": entry.md_entry_size.value * NANO, "side": taker}
        return "Trade", values | {
            "tradeId": entry.md_trade_entry_id.value,
            "kind": trade,
            "sequence": entry.rpt_seq.value,
        }
    if kind == 37:
        return "Statistic", {"topic": "e", "quantity": entry.md_entry_size.value}
    entry_type = text(entry.md_entry_type.raw_value)
    if kind in STATISTICS:
        flag = entry.open_close_settl_flag.raw_value
        values = {"topic": entry_type, "price": price(entry, STATISTICS[kind]), "number": None if flag == 255 else flag}
        return "Statistic", values | {"quantity": entry.md_entry_size.value}
    action, side = entry.md_update_action.raw_value, SIDES.get(entry_type, "N")
    if kind in ORDERS:
        values = {"orderId": entry.order_id.value, "size": entry.md_display_qty.value * NANO, "side": side}
        return "OrderEvent", values | {"price": price(entry, ORDERS[kind]), "action": "AMD"[action], "book": "O"}
    size = entry.md_entry_size.value
    values = {"price": price(entry, BOOKS[kind]), "size": None if size is None else size * NANO, "side": side}
    values |= {"level": entry.md_price_level.value, "book": {"0": "L", "1": "L"}.get(entry_type, "I")}
    return "OrderEvent", values | {"action": "ILDCFM"[action], "sequence": entry.rpt_seq.value}


@pytest.mark.parametrize(("name", "packet_count"), CAPTURES)
def test_real_packets_convert_to_what_another_decoder_reads(name: str, packet_count: int) -> None:
    chunks, wanted = [], []
    for datagram in islice(CaptureReader(shared_file(f"cme/{name}").open("rb")), packet_count):
        packet, offset = decode_mdp_packet(datagram.payload), 0
        chunks.append(FrameChunk(packet.frames, packet.message_count, len(chunks) + 1, packet.sent_at_ns))
        while offset < len(packet.frames):
            size = int.from_bytes(packet.frames[offset : offset + 2], "little")
            wanted += expected(packet.frames[offset : offset + size])
            offset += size
    assert len(wanted) >= packet_count
    for number, (ours, other) in enumerate(zip(interpreted(table(), chunks), wanted, strict=True)):
        assert ours == other, f"output {number}"


def test_the_table_converts_every_message_except_session_messages() -> None:
    named = {conversion.source.name for conversion in table().conversions}
    session = {"AdminHeartbeat12", "AdminLogin15", "AdminLogout16"}
    assert set(table().source_format.messages) - named == session


def test_without_cmes_schema_the_error_names_the_missing_file() -> None:
    with pytest.raises(DocumentError, match=r"mdp3\.xml:4: sbe='templates_FixBinary\.xml': .*No such file"):
        load_source_format(document("mdp3.xml"))


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """SBE values in the format's terms: decimals are their mantissas; other composites have one field per member."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            parts = (
                {"": value["mantissa"]} if "mantissa" in value else {f"_{part}": each for part, each in value.items()}
            )
            found |= {name + part: each for part, each in parts.items()}
        elif isinstance(value, list):
            found[name] = [flat(entry) for entry in value]
        elif isinstance(value, int):
            found[name] = value
        elif isinstance(value, str):
            found[name] = value.encode()
    return found


def test_the_formats_reader_reads_the_same_numbers_as_the_sbe_reader() -> None:
    sbe, plain = SbeReader(ours()), FrameReader(table().source_format)
    for datagram in islice(CaptureReader(shared_file("cme/v1.6-v6.1.pcap").open("rb")), 300):
        frames, offset = decode_mdp_packet(datagram.payload).frames, 0
        for name, values in plain.read(frames):
            message = sbe.read(frames, offset + 2)
            offset += message.size + 2
            assert message.name == name
            for field, value in flat(message.fields).items():
                if isinstance(value, list):
                    rows = [(each, row) for each, row in zip(value, values[field], strict=True)]
                    assert all(each[k] == row[k] for each, row in rows for k in each if isinstance(each[k], int))
                elif isinstance(value, int):
                    assert values[field] == value, (name, field)


def test_the_convert_command_reads_both_lines_of_a_capture_as_one_stream() -> None:
    path = shared_file("cme/v1.8-MdIncrementalRefreshVolume.pcap")
    chunks = list(READERS[READER_OF_FORMAT["mdp3"]](Input((path,), table().source_format), Findings()))
    payloads = {datagram.payload for datagram in CaptureReader(path.open("rb"))}
    messages = sum(decode_mdp_packet(payload).message_count for payload in payloads)
    assert sum(chunk.message_count for chunk in chunks) == messages, "each packet once"
    assert [chunk.sequence for chunk in chunks] == sorted({chunk.sequence for chunk in chunks})
