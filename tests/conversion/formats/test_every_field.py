"""Identity round trips: every field of every message of a format, through each kind of output file and back, equals
what an independent decoder reads.

The decoders are Databento's (DBN), itchfeed (ITCH) and Python's csv (LOBSTER) for real recordings. For messages of
every type of every format with random contents it is the plain reader, which other tests compare with the venues'
decoders (itchfeed, iex-parser, databento-dbn, sbedecoder, and those written by the specifications of Cboe and Deribit).
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.formats.files.binary_file import read_binary_file
from tandemfeed.adapter.conversion.formats.files.dbn import read_dbn
from tandemfeed.adapter.conversion.formats.files.lobster import read_lobster
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.conversion.loading.every_field import every_field
from tandemfeed.adapter.conversion.loading.table_loading import load_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.adapter.convert_command.output.outputs import KINDS, open_output
from tandemfeed.feedcore.documents.message_model import MessageModel, load_message_model
from tandemfeed.feedcore.documents.primitive_types import Place
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import (
    SourceBlock,
    SourceData,
    SourceField,
    SourceFormat,
    SourceGroup,
    SourceMessageType,
)
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tests.conversion.formats import test_format_dbn, test_format_itch, test_format_lobster
from tests.conversion.formats.tick_material import converted
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.real_data import shared_file

EXAMPLES = Path(__file__).resolve().parents[3] / "deploy" / "examples"
DOCUMENTS = {
    **{name: document(f"{name}.xml") for name in ("itch50", "iex", "dbn", "lobster", "tick-table")},
    **{name: EXAMPLES / name / "source-format.xml" for name in ("cboe-pitch", "nyse-xdp", "deribit", "ticks")},
}
SAMPLES = 4  # random messages of each type
SIZE_MAX = 65_535
Values = dict[str, Any]
Rows = list[tuple[str, Values]]  # (message, its fields: numbers, texts as bytes, lists of entries; None: null or empty)

SBE_FORMAT = """<sourceFormat name="every-field" sbe="message-model.xml">
<framing headerSize="14" length="uint32" type="uint16" typeOffset="8" blockLength="uint16" blockLengthOffset="6"/>
</sourceFormat>"""


class Made(NamedTuple):
    """The documents made of a source format."""

    source_format: SourceFormat
    model: MessageModel
    table: ConverterTable
    schema: bytes


@cache
def made(name: str) -> Made:
    source_format = load_source_format(DOCUMENTS[name])
    both = every_field(source_format)
    model = load_message_model(both.message_model)
    table = load_table(both.converter_table, source_format, model, SIZE_MAX)
    return Made(source_format, model, table, both.message_model)


# --- messages of every type


def random_value(random: Random, field: SourceField) -> bytes:
    order = "big" if field.is_big_endian else "little"
    if field.is_text:
        text = bytes(random.choices(b"ABCxyz019 .-", k=random.randint(0, field.length)))
        return text.rstrip().ljust(field.length, random.choice([b" ", b"\0"]))
    if field.kind.is_float:
        number = np.array(random.choice([0.1, -1e300, 3.5, math.nan]), field.numpy_code(">" if order == "big" else "<"))
        return number.tobytes()
    chosen = random.choice([field.null or 0, field.kind.minimum, field.kind.maximum, None])
    value = random.randint(field.kind.minimum, field.kind.maximum) if chosen is None else chosen
    if field.is_time and value != field.null:
        value = random.randint(0, 1 << 62)
    return value.to_bytes(field.size, order, signed=field.kind.minimum < 0)  # type: ignore[arg-type]


def random_block(random: Random, block: SourceBlock) -> bytes:
    room = bytearray(block.size)
    for field in block.fields.values():
        if field.constant is None:
            room[field.offset : field.offset + field.size] = random_value(random, field)
    return bytes(room)


def put(room: bytearray, place: Place, value: int, is_big_endian: bool) -> None:
    room[place.offset : place.end] = value.to_bytes(place.size, "big" if is_big_endian else "little")


def random_part(random: Random, part: SourceGroup | SourceData) -> bytes:
    if isinstance(part, SourceData):
        text = bytes(random.choices(b"some text \xe9", k=random.randint(0, min(9, part.maximum))))
        header = bytearray(part.header_size)
        put(header, Place(part.length_kind, 0), len(text), part.is_big_endian)
        return bytes(header) + text
    count = part.count if isinstance(part.count, int) else random.randint(0, 3)
    entries = b"".join(random_whole(random, part) for _ in range(count))
    header = bytearray(part.header_size)
    if isinstance(part.count, Place):
        put(header, part.count, count, part.is_big_endian)
        if part.entry_size is not None:
            put(header, part.entry_size, part.size, part.is_big_endian)
    return bytes(header) + entries


def random_whole(random: Random, block: SourceBlock) -> bytes:
    return random_block(random, block) + b"".join(random_part(random, part) for part in block.parts)


def random_frame(random: Random, message: SourceMessageType) -> bytes:
    framing = message.framing
    block = random_block(random, message)
    parts = b"".join(random_part(random, part) for part in message.parts)
    start = framing.header_size
    frame = bytearray(start) + block + parts
    put(frame, framing.length, (len(frame) - framing.length_adds) // framing.length_unit, framing.is_big_endian)
    put(frame, framing.type, message.type_id, framing.is_big_endian)
    if framing.block_length is not None:
        put(frame, framing.block_length, message.size, framing.is_big_endian)
    if framing.version is not None:
        put(frame, framing.version, 9, framing.is_big_endian)
    return bytes(frame)


def every_type(name: str) -> tuple[list[FrameChunk], Rows]:
    """Random messages of each type, and what the plain reader reads."""
    random, source_format = Random(name), made(name).source_format
    kinds = [message for message in source_format.messages.values() for _ in range(SAMPLES)]
    frames = b"".join(random_frame(random, message) for message in kinds)
    return [FrameChunk(frames, len(kinds), 1)], list(FrameReader(source_format).read(frames))


# --- real recordings, read by decoders that are not ours


def itch_recording() -> tuple[list[FrameChunk], Rows]:
    data = shared_file("itch50/12302019_SNIPPET.NASDAQ_ITCH50").read_bytes()
    reader = FrameReader(made("itch50").source_format)
    names = [name for name, _ in reader.read(data)]
    theirs = [test_format_itch.theirs(data[at : at + size]) for at, size, _ in reader.walk(data)]
    return list(read_binary_file(BytesIO(data), reader.format)), list(zip(names, theirs, strict=True))


def lobster_recording() -> tuple[list[FrameChunk], Rows]:
    path = shared_file(f"lobster/{test_format_lobster.NAME}")
    with path.open() as lines:
        rows = [test_format_lobster.expected(row) for row in csv.reader(lines)]
    return list(read_lobster(path, made("lobster").source_format, "")), rows


def dbn_recording(file: str) -> tuple[list[FrameChunk], Rows]:
    data = shared_file(file).read_bytes()
    _, *records = test_format_dbn.theirs(data)
    reader, chunks = FrameReader(made("dbn").source_format), list(read_dbn(data).chunks())
    names = [name for chunk in chunks for name, _ in reader.read(chunk.frames)]
    return chunks, [(name, dbn_values(name, record)) for name, record in zip(names, records, strict=True)]


def dbn_values(name: str, record: Any) -> Values:
    found: Values = {}
    for field in made("dbn").source_format.messages[name].fields.values():
        value = test_format_dbn.their_value(record, field.name)
        if field.is_text and isinstance(value, int):
            value = bytes([value])
        found[field.name] = None if value == field.null else value
    return found


RECORDINGS: dict[str, tuple[str, Callable[[], tuple[list[FrameChunk], Rows]]]] = {
    "itch50-recording": ("itch50", itch_recording),
    "lobster-recording": ("lobster", lobster_recording),
    **{
        f"dbn-{kind}": ("dbn", partial(dbn_recording, f"dbn/test_data.{kind}.dbn.zst"))
        for kind in (
            *("mbo.v3", "mbp-1.v3", "mbp-10.v3", "trades.v3", "tbbo.v3", "bbo-1s.v3", "cmbp-1.v3", "cbbo-1s.v3"),
            *("ohlcv-1m.v3", "definition.v1", "definition.v2", "definition.v3", "imbalance.v3", "statistics.v1"),
            *("statistics.v3", "status.v3"),
        )
    },
}
MATERIAL = {**{name: (name, partial(every_type, name)) for name in DOCUMENTS}, **RECORDINGS}


# --- what is in the output files


def plain(value: Any, field: SourceField | None) -> Any:
    """A value of a table as the decoders give it. Args: field: None for variable data."""
    if isinstance(value, str):
        if field is None or field.is_text:
            return value.encode("latin-1") or None
        if value == "":
            return None
        if field.kind.is_float:
            value = float(value)
        elif field.is_time and not value.lstrip("-").isdigit():
            value = int(np.datetime64(value.rstrip("Z"), "ns").astype(np.int64))
        else:
            value = Decimal(value)
    if isinstance(value, Decimal):
        assert field is not None
        whole = value.scaleb(-field.exponent)
        assert whole == int(whole)
        return int(whole)
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def plain_block(row: Values, block: SourceBlock) -> Values:
    found = {name: plain(row[name], field) for name, field in block.fields.items()}
    for name, group in block.groups.items():
        entries = json.loads(row[name]) if isinstance(row[name], str) else row[name]
        found[name] = [plain_block(entry, group) for entry in entries]
    return found | {name: plain(row[name], None) for name in block.data}


def expected_block(values: Values, block: SourceBlock) -> Values:
    """What a decoder read, with empty texts and NaN as null."""

    def one(name: str) -> Any:
        value = values[name]
        if isinstance(value, bytes):
            return (value.rstrip(b" \0") if name in block.fields else value) or None
        return None if isinstance(value, float) and math.isnan(value) else value

    found = {name: one(name) for name in (*block.fields, *block.data)}
    return found | {
        name: [expected_block(entry, group) for entry in values[name]] for name, group in block.groups.items()
    }


def table_rows(path: Path) -> list[Values]:
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as lines:
            return list(csv.DictReader(lines))
    table = pyarrow.parquet.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
    columns = {
        name: column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return list(pa.table(columns).to_pylist())


def little_endian_lengths(data: bytes) -> bytes:
    """The messages of an SBE file; the length in their Simple Open Framing Header is big-endian, all else is not."""
    out, at = bytearray(data), 0
    while at < len(out):
        size = int.from_bytes(out[at : at + 4], "big")
        out[at : at + 4] = size.to_bytes(4, "little")
        at += size
    return bytes(out)


def read_back(folder: Path, kind: str, made_of: Made) -> dict[str, list[Values]]:
    found: dict[str, list[Values]] = defaultdict(list)
    if kind == "sbe":
        (folder / "message-model.xml").write_bytes(made_of.schema)
        (folder / "format.xml").write_text(SBE_FORMAT)
        reader = FrameReader(load_source_format(folder / "format.xml"))
        for name, values in reader.read(little_endian_lengths((folder / "messages.sbe").read_bytes())):
            found[name].append(expected_block(values, made_of.source_format.messages[name]))
        return found
    for name, message in made_of.source_format.messages.items():
        path = folder / f"{name}.{kind}"
        if path.exists():
            found[name] = [plain_block(row, message) for row in table_rows(path)]
    return found


@cache
def frames_of(case: str) -> tuple[bytes, dict[str, list[Values]]]:
    """The output of a case, and what it must contain; converted once for all kinds of files."""
    name, material = MATERIAL[case]
    chunks, rows = material()
    converter = InterpretedConverter(made(name).table)
    frames = b"".join(converted(converter, chunks))
    refused = {reason: count for reason, count in converter.counts().items() if count and reason != "not_converted"}
    assert not refused, "only messages without fields have no output"
    wanted: dict[str, list[Values]] = defaultdict(list)
    for message, values in rows:
        if not values:  # a message without fields has no table
            continue
        wanted[message].append(expected_block(values, made(name).source_format.messages[message]))
    return frames, wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", MATERIAL)
def test_every_field_passes_through_an_output_file_unchanged(case: str, kind: str, tmp_path: Path) -> None:
    made_of = made(MATERIAL[case][0])
    frames, wanted = frames_of(case)
    output = open_output(tmp_path, made_of.model, kind)
    output.write(np.frombuffer(frames, np.uint8))
    output.close()
    assert read_back(tmp_path, kind, made_of) == wanted


@pytest.mark.long
@pytest.mark.timeout(1_800)  # compiling all messages of a format takes a minute, and several on a slow machine
@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_kernel_copies_every_field_as_the_interpreter_does(name: str) -> None:
    chunks, _ = every_type(name)
    assert b"".join(converted(CompiledConverter(made(name).table), chunks)) == frames_of(name)[0]


# --- the command, and what a document may say


def test_the_command_needs_a_source_format_only(tmp_path: Path) -> None:
    ticks = tmp_path / "ticks.csv"
    ticks.write_text("symbol,time,price,size,side\nACME,1700000000000000001,101.25,300,buy\n")
    options = ["--source-format", str(DOCUMENTS["tick-table"]), "--every-field"]
    assert main(["file", *options, str(ticks), "--to", str(tmp_path / "out")]) == 0
    (row,) = pyarrow.parquet.read_table(tmp_path / "out" / "trade.parquet").to_pylist()
    assert row["symbol"] == "ACME"
    assert (row["price"], row["size"], row["trade_id"]) == (Decimal("101.25"), 300, None)
    assert load_message_model(tmp_path / "out" / "message-model.xml").schema.messages.keys() == {"trade", "quote"}


def test_the_command_makes_the_other_documents_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--shipped", "itch50", "--every-field", "--table", str(document("itch50-to-tick.xml"))])
    assert "it cannot be combined with yours" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ('<symbols message="two" by="number" text="name"/>', "there is no <message> 'two'"),
        ('<symbols message="one" by="id" text="name"/>', "message 'one' has no field 'id'"),
        ('<symbols message="one" by="number" text="number"/>', "text is 'number', which is a number"),
        ('<message name="t" type="2"><field name="at" type="uint64" time="ms"/></message>', "time is 'ms'; it must be"),
        ('<message name="t" type="2"><field name="at" type="uint32" time="ns"/></message>', "of an integer of 64 bits"),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(tmp_path: Path, element: str, reason: str) -> None:
    message = '<message name="one" type="1"><field name="number" type="uint32"/>'
    path = tmp_path / "format.xml"
    name = '<field name="name" type="char" length="8"/></message>'
    path.write_text(f'<sourceFormat name="venue">{message}{name}{element}</sourceFormat>')
    with pytest.raises(DocumentError, match=reason):
        load_source_format(path)


def test_messages_that_have_only_the_number_of_an_instrument_get_its_symbol(tmp_path: Path) -> None:
    path = tmp_path / "format.xml"
    path.write_text("""<sourceFormat name="venue"><symbols message="listing" by="number" text="name"/>
      <message name="listing" type="1"><field name="number" type="uint32"/><field name="name" type="char" length="8"/>
      </message><message name="tick" type="2"><field name="number" type="uint32"/></message></sourceFormat>""")
    both = every_field(source_format := load_source_format(path))
    model = load_message_model(both.message_model)
    assert list(model.schema.messages["listing"].columns) == ["number", "name"]
    assert list(model.schema.messages["tick"].columns) == ["symbol", "number"]
    table = load_table(both.converter_table, source_format, model, SIZE_MAX)
    frames = b"\x10\0\1\0\5\0\0\0ACME    " + b"\x08\0\2\0\5\0\0\0" + b"\x08\0\2\0\6\0\0\0"
    output = open_output(tmp_path, model, "parquet")
    made_frames = b"".join(converted(InterpretedConverter(table), [FrameChunk(frames, 3, 1)]))
    output.write(np.frombuffer(made_frames, np.uint8))
    output.close()
    assert [row["symbol"] for row in table_rows(tmp_path / "tick.parquet")] == ["ACME", None]
