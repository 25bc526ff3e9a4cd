"""Messages of variable size in everything after the kernel: packets, merge and client, files, other decoders."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from sbedecoder import SBESchema
from sbedecoder.message import SBEMessage

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.client_lib.items import Batch
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.messages.sbe_reading import SbeReader
from tandemfeed.client_lib.messages.sbe_writing import SbeWriter
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.merge.effects import Deliver
from tandemfeed.feedcore.merge.merger import StreamMerger
from tandemfeed.feedcore.replica.config import ChannelConfig, EngineConfig, ReplicaConfig
from tandemfeed.feedcore.replica.input.source_tracker import Slice
from tandemfeed.feedcore.replica.output.production import ProductionLine
from tandemfeed.feedcore.sbe import load_schema
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputPacket, decode_output_packet, encode_output_packet
from tandemfeed.feedcore.wire.source_packet import decode_source_packet
from tests.conversion.deal_material import MODEL, converted, deal, load, order, packet, read
from tests.conversion.kernel.test_fuzz import Brink, damaged
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.feedcore.merge.merge_feed import heartbeat

SESSION = 20_261_121


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ConverterTable:
    return load(tmp_path_factory.mktemp("deals"))


def stream(random: Random, count: int) -> list[bytes]:
    """Source packets of deals and orders, some of which are refused."""
    packets, first = [], 1
    for _ in range(count):
        frames = []
        for _ in range(random.randint(1, 9)):
            if random.random() < 0.5:
                many = random.choice([0, 3, 90])
                legs = [(random.randint(0, 9), 1, random.choice([b"B", b"S"])) for _ in range(many)]
                frames.append(deal(legs, (b"us", b"none"), b"x" * random.choice([0, 7, 30, 31])))
            else:
                price = random.randint(1, 20)
                frames.append(order(random.randint(1, 2), random.randint(1, 99), random.choice([b"B", b"S"]), price, 5))
        packets.append(packet(*frames, first_source_seq=first))
        first += len(frames)
    return packets


LINEAGE = Lineage((EpochStart(1, 1, 1),))


def line_of(table: ConverterTable, adapter: int) -> ProductionLine:
    channel = ChannelConfig(1, (1,))
    config = EngineConfig(1, adapter, SESSION, (channel,), replica=ReplicaConfig(digest_interval_messages=64))
    line = ProductionLine(config, channel, CompiledConverter(table), CounterSet())
    line.open_epoch(1)
    return line


def test_messages_of_variable_size_pass_through_the_whole_system(table: ConverterTable) -> None:
    random = Random(5)
    sources = stream(random, 60)
    active, backup = line_of(table, 1), line_of(table, 2)
    merger, delivered, sent = StreamMerger(1, CounterSet(), None, 1), list[Deliver](), 0
    merger.on_packet(heartbeat(1), 0)
    for number, datagram in enumerate(sources):
        source = decode_source_packet(datagram, 1)
        decided = active.decide(Slice(source, 0, source.message_count, number))
        followed = []
        for run in (each.runs[0] for each in decided):
            piece = Slice(source, run.first_source_seq - source.first_source_seq, run.source_count, number)
            followed += backup.follow(run, [piece], LINEAGE)
        assert [each.payload for each in followed] == [each.payload for each in decided], "both make the same bytes"
        sent += sum(each.message_count for each in decided)
        for ours, theirs in zip(decided, followed, strict=True):
            copies = [ours, theirs] if random.random() < 0.5 else [theirs, ours]
            for copy in copies[: random.choice([1, 2])]:  # every second packet comes from only one adapter
                datagram_out = encode_output_packet(copy)
                assert len(datagram_out) <= 1_472 - 16, "with its seal it is one datagram"
                delivered += deliveries(merger, decode_output_packet(datagram_out))
    assert active.digests() == backup.digests()
    decoder = Decoder(MODEL.encode(), "m.xml")
    batches = [Batch(each.packet, 0, 0, decoder) for each in delivered]
    found = [message for batch in batches for message in batch.messages()]
    assert [message.origin.message_seq for message in found] == list(range(1, sent + 1))
    oracle = InterpretedConverter(table)
    expected = [fields for datagram in sources for fields in read(converted(oracle, datagram))]
    reader = SbeReader(load_schema(MODEL.encode()))
    assert [reader.read(bytes(message)).fields for message in found] == expected
    assert sum(oracle.counts().values()) > 0, "some were refused"


def deliveries(merger: StreamMerger, packet: OutputPacket) -> list[Deliver]:
    return [effect for effect in merger.on_packet(packet, 0) if isinstance(effect, Deliver)]


def test_our_writer_writes_the_same_bytes(table: ConverterTable) -> None:
    schema = load_schema(MODEL.encode())
    reader, writer = SbeReader(schema), SbeWriter(schema)
    frames, at = b"".join(converted(InterpretedConverter(table), each) for each in stream(Random(6), 20)), 0
    while at < len(frames):
        size = int.from_bytes(frames[at : at + 2], "little")
        message = reader.read(frames, at + 4)
        assert writer.write(message.name, message.fields) == frames[at + 4 : at + size]
        at += size
    assert at > 2_000


def test_another_decoder_reads_the_levels_of_a_book(table: ConverterTable, tmp_path: Path) -> None:
    schema = SBESchema()
    deals, depth = MODEL.index('<message name="Deal"'), MODEL.index('<message name="Depth"')
    (tmp_path / "m.xml").write_text(MODEL[:deals] + MODEL[depth:])  # it does not support variable data
    schema.parse(str(tmp_path / "m.xml"))
    data = packet(*(order(1, number, b"B", 10 + number, 5) for number in range(1, 6)), order(1, 9, b"S", 30, 2))
    frames, at, seen = converted(CompiledConverter(table), data), 0, []
    while at < len(frames):
        size = int.from_bytes(frames[at : at + 2], "little")
        seen.append(SBEMessage.parse_message(schema, frames[at + 4 : at + size]))
        at += size
    groups = {group.original_name: group for group in seen[-1].groups}
    bids = [(level.level.value, level.price.value, level.size.value) for level in groups["bids"].repeating_groups]
    assert bids == [(1, 15, 5), (2, 14, 5), (3, 13, 5)]
    assert [(level.price.value, level.orders.value) for level in groups["asks"].repeating_groups] == [(30, 1)]
    assert [entry.bid.value for entry in groups["fixed"].repeating_groups] == [15, 15]


@pytest.fixture
def recording(tmp_path: Path) -> list[str]:
    """The command's arguments for converting a file of deals."""
    load(tmp_path)
    legs = [(100, 7, b"B"), (0, 9, b"B")]
    frames = [deal(legs, (b"us", b"none"), b"hello"), order(1, 1, b"B", 10, 5), deal([], (b"a", b"b"), b"")]
    (tmp_path / "day").write_bytes(b"".join(frames))
    documents = ["--source-format", "f.xml", "--table", "t.xml", "--message-model", "m.xml"]
    documents = [str(tmp_path / each) if each.endswith("xml") else each for each in documents]
    return [*documents, "--reader", "binary-file", str(tmp_path / "day"), "--to", str(tmp_path)]


def test_groups_become_lists_of_structures_in_parquet(recording: list[str], tmp_path: Path) -> None:
    assert main(["file", *recording, "--as", "parquet"]) == 0
    first, second = pyarrow.parquet.read_table(tmp_path / "Deal.parquet").to_pylist()
    assert first["legs"] == [{"price": 100, "size": 7}, {"price": None, "size": 9}]
    (step,) = first["steps"]
    assert (step["step"], step["party"], step["unused"]) == (7, b"us", [])
    assert [inner["note"] for inner in step["inner"]] == [b"one us", b"many us"]
    assert (first["headline"], first["symbol"], first["nothing"]) == ("hello", "ACME", "")
    assert second["legs"] == []
    assert [step["party"] for step in second["steps"]] == [b"a", b"b"]
    (depth,) = pyarrow.parquet.read_table(tmp_path / "Depth.parquet").to_pylist()
    assert depth["bids"] == [{"level": 1, "price": 10, "size": 5}]


def test_groups_become_json_in_csv(recording: list[str], tmp_path: Path) -> None:
    assert main(["file", *recording, "--as", "csv"]) == 0
    first, _ = pyarrow.csv.read_csv(tmp_path / "Deal.csv").to_pylist()
    assert json.loads(first["legs"]) == [{"price": 100, "size": 7}, {"price": None, "size": 9}]
    assert json.loads(first["steps"])[0]["party"] == b"us".hex()
    assert first["headline"] == "hello"


def test_messages_of_variable_size_keep_their_order_in_an_sbe_file(recording: list[str], tmp_path: Path) -> None:
    assert main(["file", *recording, "--as", "sbe"]) == 0
    data, reader, at, names = (tmp_path / "messages.sbe").read_bytes(), SbeReader(load_schema(MODEL.encode())), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        message = reader.read(data, at + 6)
        assert message.size == size - 6
        names.append(message.name)
        at += size
    assert names == ["Deal", "Depth", "Deal"]


def test_explain_shows_groups_and_texts(recording: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *recording[:6]]) == 0
    output = capsys.readouterr().out
    assert "Deal.legs ← each entry of legs\n        only if side = B" in output
    assert "Deal.legs.price (int64) ← price" in output
    assert "Deal.steps.inner ← 3 entries" in output
    assert "Deal.steps.inner.note (variable) ← concatenate(" in output
    assert "Deal.steps.unused ← no entries" in output
    assert "Deal.nothing (variable) ← nothing" in output
    assert "Depth.bids ← the 3 best bid levels of book 'book'" in output


def test_no_damaged_packet_with_groups_and_texts_is_read_beyond_its_end(table: ConverterTable) -> None:
    random, converter, brink = Random(7), CompiledConverter(table), Brink()
    whole = stream(random, 50)
    out = np.zeros(3_000, np.uint8)
    for _ in range(3_000):
        view = brink.place(damaged(random, random.choice(whole)))
        count, room = random.choice([1, 9, 65_535]), random.choice([200, 1_392])
        result = converter.convert(view, random.choice([0, 0, 3]), count, out, 0, room)  # type: ignore[arg-type]
        assert 0 <= result.end <= room
        assert not out[room:].any()
        out[:room] = 0
    assert converter.counts()["wrong_length"] > 100
    converter.restore(CompiledConverter(table).snapshot())
    assert converted(converter, whole[0]) == converted(InterpretedConverter(table), whole[0])
