"""A recording has the columns that a source format names, and its values reach clients of a feed with that format."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.loading.table_loading import load_table
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import Split, parse_split
from tandemfeed.spark_feed.numbering.rows.screening import Rules
from tandemfeed.spark_feed.numbering.tasks.quarantine import quarantined_count
from tandemfeed.spark_feed.numbering.tasks.reading import FileReader
from tandemfeed.spark_feed.recordings.cli import main as ticks
from tandemfeed.spark_feed.recordings.ingest.file_columns import IngestOptions
from tandemfeed.spark_feed.recordings.ingest.ingesting import ingest
from tandemfeed.spark_feed.recordings.recording import RecordingError, part_path
from tests.spark_feed.source_material import FEED, packets_of

SOURCE_FORMAT = """<sourceFormat name="bonds">
  <message name="deal" type="7">
    <field name="event_at_ns" type="uint64"/>
    <field name="isin" type="char" length="12"/>
    <field name="venue" type="char" length="4"/>
    <field name="clean_price" type="int32" exponent="-4"/>
    <field name="coupon" type="double"/>
    <field name="weight" type="float"/>
    <field name="nominal" type="uint64" exponent="3" null="18446744073709551615"/>
    <field name="desk" type="int16" byteOrder="bigEndian" null="-1"/>
    <field name="pad" type="uint8"/>
    <field name="settles_at_ns" type="uint64" null="0"/>
  </message>
  <message name="status" type="8">
    <field name="event_at_ns" type="uint64"/>
    <field name="isin" type="char" length="12"/>
    <field name="state" type="char"/>
  </message>
</sourceFormat>"""
MODEL = """<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="bonds" id="9" version="0"
    semanticVersion="1.0" byteOrder="littleEndian">
  <types>
    <composite name="messageHeader">
      <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/>
    </composite>
    <type name="Isin" primitiveType="char" length="12"/>
    <type name="Venue" primitiveType="char" length="4"/>
    <type name="Character" primitiveType="char"/>
    <type name="Desk" primitiveType="int16" presence="optional" nullValue="-1"/>
    <composite name="Price">
      <type name="mantissa" primitiveType="int64"/>
      <type name="exponent" primitiveType="int8" presence="constant">-4</type>
    </composite>
  </types>
  <sbe:message name="Deal" id="1">
    <field name="isin" id="1" type="Isin"/><field name="venue" id="2" type="Venue"/>
    <field name="dealtAt" id="3" type="uint64" semanticType="UTCTimestamp"/><field name="price" id="4" type="Price"/>
    <field name="coupon" id="5" type="double"/><field name="desk" id="6" type="Desk"/>
  </sbe:message>
  <sbe:message name="Status" id="2">
    <field name="isin" id="1" type="Isin"/><field name="state" id="2" type="Character"/>
  </sbe:message>
</sbe:messageSchema>"""
TABLE = """<converterTable name="bonds" sourceFormat="bonds">
  <convert message="deal" to="Deal">
    <field name="isin" function="copy" of="isin"/><field name="venue" function="copy" of="venue"/>
    <field name="dealtAt" function="copy" of="event_at_ns"/><field name="price" function="copy" of="clean_price"/>
    <field name="coupon" function="copy" of="coupon"/><field name="desk" function="copy" of="desk"/>
  </convert>
  <convert message="status" to="Status">
    <field name="isin" function="copy" of="isin"/><field name="state" function="copy" of="state"/>
  </convert>
</converterTable>"""
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOON_NS = int(NOON.timestamp()) * 10**9
ROWS: dict[str, list[Any]] = {
    "kind": ["deal", "status", "deal", "deal"],
    "at": [NOON] * 4,
    "isin": ["DE0001102580", "US912810TW80", "US912810TW80", "FR0014001NN8"],
    "mic": ["XEUR", None, "BMTF", "XPAR"],
    "clean_price": [Decimal("101.2525"), None, Decimal("-0.0001"), Decimal("99")],
    "coupon": [2.625, None, 0.1, -0.5],
    "weight": [0.5, None, 1.0, 2.0],
    "nominal": [2_000_000, None, None, 5_000],
    "desk": [7, None, None, -300],
    "settles_at_ns": [NOON, None, None, NOON],
    "state": [None, "H", None, None],
}
OPTIONS = IngestOptions(columns={"event_at_ns": "at", "venue": "mic"})


@pytest.fixture
def document(tmp_path: Path) -> Path:
    (tmp_path / "bonds.xml").write_text(SOURCE_FORMAT)
    return tmp_path / "bonds.xml"


def parquet(folder: Path, **changed: list[Any]) -> Path:
    path = folder / "deals.parquet"
    pq.write_table(pa.table(ROWS | changed), path)
    return path


def text_of(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return "" if value is None else str(value)


def csv(folder: Path) -> Path:
    path = folder / "deals.csv"
    texts = {name: [text_of(value) for value in each] for name, each in ROWS.items()}
    path.write_text("\n".join([",".join(texts), *map(",".join, zip(*texts.values(), strict=True))]) + "\n")
    return path


def journal(recording: Path, document: Path, folder: Path, split: Split) -> None:
    """Number a recording as the job does."""
    source_format = load_source_format(document)
    reader = FileReader(source_format, split, 2, Rules(), 10_000, folder / "quarantine")
    plan = numbering_plan(recording, document, FEED, split, 16)
    with SourceJournalWriter(folder, plan) as writer:
        for batch_id, path in enumerate(sorted(recording.glob("part-*"))):
            writer.append_batch(batch_id, list(reader.blocks(path.as_uri())))
        writer.end()


@pytest.mark.parametrize("make", [parquet, csv])
def test_values_of_a_format_of_ones_own_reach_the_clients_fields(tmp_path: Path, document: Path, make: Any) -> None:
    ingest([make(tmp_path)], tmp_path / "recording", OPTIONS, source_format=document)
    (tmp_path / "venues.csv").write_text("XEUR,2\n*,1\n")
    split = parse_split(f"table:{tmp_path / 'venues.csv'}", FEED.source_stream_ids, "venue")
    journal(tmp_path / "recording", document, tmp_path / "journal", split)
    (tmp_path / "model.xml").write_text(MODEL)
    model = load_message_model(tmp_path / "model.xml")
    converter = CompiledConverter(load_table(TABLE.encode(), load_source_format(document), model, 1_472))
    found, out = dict[tuple[int, str], Any](), np.zeros(65_536, np.uint8)
    for packet in packets_of(tmp_path / "journal"):
        made = converter.convert(packet.datagram, 0, packet.message_count, out, 0, len(out))
        for message, rows in model.arrays(memoryview(out[: made.end].tobytes())):
            found.setdefault((packet.source_stream_id, message.name), []).extend(rows)
    (deal,) = found[2, "Deal"]
    assert (deal["isin"], deal["venue"], deal["dealtAt"]) == (b"DE0001102580", b"XEUR", NOON_NS)
    assert (deal["price"], deal["coupon"], deal["desk"]) == (1_012_525, 2.625, 7)
    assert [(row["price"], row["coupon"], row["desk"]) for row in found[1, "Deal"]] == [
        (-1, 0.1, -1), (990_000, -0.5, -300),
    ]  # fmt: skip
    assert [(row["isin"], row["state"]) for row in found[1, "Status"]] == [(b"US912810TW80", b"H")]


def test_a_recording_has_the_values_that_fields_hold(tmp_path: Path, document: Path) -> None:
    ingest([parquet(tmp_path)], tmp_path / "recording", OPTIONS, source_format=document)
    rows = pq.read_table(part_path(tmp_path / "recording", 0)).to_pylist()
    assert [row["nominal"] for row in rows] == [2_000, None, None, 5]
    assert [row["settles_at_ns"] for row in rows] == [NOON_NS, None, None, NOON_NS]
    assert [row["venue"] for row in rows] == ["XEUR", None, "BMTF", "XPAR"]
    assert "pad" not in rows[0]


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("clean_price", [Decimal("1.00005"), None, 1, 1], r"row 1, column 'clean_price': '1.00005' has more than 4"),
        ("clean_price", [1, None, 300_000, 1], "row 3, column 'clean_price': 300000 is out of range"),
        ("clean_price", [1, None, 1, None], "row 4, column 'clean_price': there is no value, and the source"),
        ("nominal", [1_500, None, None, 1], "row 1, column 'nominal': 1500 is not a multiple of 1e3"),
        ("desk", [1.5, None, None, 1], "row 1, column 'desk': 1.5 has more than no decimal places"),
        ("desk", [1, None, None, -1], "row 4, column 'desk': -1 means no value in the source format"),
        ("isin", ["DE000110258012", "A", "B", "C"], "row 1, column 'isin': 'DE000110258012' has 14 bytes"),
        ("kind", ["deal", "deals", "deal", "deal"], "row 2, column 'kind': 'deals' is not a message of"),
    ],
)  # fmt: skip
def test_a_value_that_a_field_cannot_hold_is_refused_with_row_and_column(
    tmp_path: Path, document: Path, column: str, values: list[Any], reason: str
) -> None:
    file = parquet(tmp_path, **{column: values})
    with pytest.raises(RecordingError, match=reason):
        ingest([file], tmp_path / "recording", OPTIONS, source_format=document)


def test_a_missing_column_is_named_with_the_option_that_gives_it(
    tmp_path: Path, document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["ingest", str(csv(tmp_path)), "--out", str(tmp_path / "r"), "--source-format", str(document)]
    assert ticks(arguments) == 2
    assert "name it with --column event_at_ns=NAME" in capsys.readouterr().err
    assert ticks([*arguments, "--column", "event_at_ns=at"]) == 2
    assert "name the column with --column venue=NAME" in capsys.readouterr().err
    assert ticks([*arguments, "--column", "price=at"]) == 2
    assert "the source format has no field 'price'; its fields are kind, event_at_ns, isin" in capsys.readouterr().err
    assert ticks([*arguments, "--column", "event_at_ns=at", "--column", "venue=mic"]) == 0


def test_a_recorded_value_that_a_field_cannot_hold_goes_to_the_quarantine_table(tmp_path: Path, document: Path) -> None:
    ingest([parquet(tmp_path)], tmp_path / "recording", OPTIONS, source_format=document)
    path = part_path(tmp_path / "recording", 0)
    table = pq.read_table(path)
    wrong = {"desk": [1 << 20, None, None, 1], "venue": ["XEUR", None, None, "TOOLONG"]}
    for name, values in wrong.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))
    pq.write_table(table, path)
    journal(tmp_path / "recording", document, tmp_path / "journal", parse_split("hash", (1, 2), "isin"))
    assert quarantined_count(tmp_path / "journal" / "quarantine", 4) == 3
    rows = pq.read_table(tmp_path / "journal" / "quarantine").to_pylist()
    assert [(row["row"], row["reason"]) for row in rows] == [
        (0, "desk is 1048576; it must be -32768 to 32767"),
        (2, "venue is null; the source format has no null for it"),
        (3, "the venue 'TOOLONG' has 7 bytes; it must have 0 to 4"),
    ]


@pytest.mark.parametrize(
    ("was", "now", "reason"),
    [
        ('name="state" type="char"', 'name="coupon" type="char"', "field 'coupon' is double in one message and"),
        ('<field name="state" type="char"/>', '<data name="state" length="uint8"/>', "message 'status' has a fram"),
    ],
)  # fmt: skip
def test_a_format_whose_messages_rows_cannot_make_is_refused(
    tmp_path: Path, document: Path, was: str, now: str, reason: str
) -> None:
    document.write_text(SOURCE_FORMAT.replace(was, now))
    with pytest.raises(RecordingError, match=reason):
        ingest([parquet(tmp_path)], tmp_path / "recording", OPTIONS, source_format=document)
