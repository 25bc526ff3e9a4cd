"""`format("tandemfeed.ticks")` without Spark: its rows are those of the plain readers, and nothing bad ends a query."""

from __future__ import annotations

import os
import stat
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadMaxFiles
from scapy.all import IP, UDP, Ether, Raw, wrpcap

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.conversion.formats.packets.iex_tp import decode_iex_segment
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import encode_mold_packet
from tandemfeed.adapter.convert_command.captures.stream_merge import StreamMerge
from tandemfeed.adapter.convert_command.cli import main as convert
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input
from tandemfeed.adapter.convert_command.input.reading import READERS, default_reader
from tandemfeed.adapter.convert_command.output import row_groups
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.offline.ticks.rows import VENUE_SEQ, VENUE_STREAM
from tandemfeed.offline.ticks.source_rows import ROWS_MAX, integers
from tandemfeed.offline.ticks.tick_source import TickSource
from tandemfeed.offline.ticks.tick_table import tick_table
from tandemfeed.spark_feed.spark.errors import TableError
from tests.losing_disk import losing_disk
from tests.real_data import shared_file

CHUNK_MESSAGES = 20_000  # at most, of a reader's chunk
VERSIONED = """<sourceFormat name="venue">
  <framing headerSize="10" length="uint16" type="uint16" typeOffset="4" blockLength="uint16" blockLengthOffset="2"
           version="uint16" versionOffset="8"/>
  <message name="trade" type="1">
    <field name="price" type="int32" exponent="-2"/>
    <field name="size" type="uint16"/>
  </message>
</sourceFormat>"""


def add_order(number: int) -> bytes:
    """ITCH message A."""
    return struct.pack(">cHH6sQcI8sI", b"A", 7, 0, number.to_bytes(6, "big"), number, b"B", 100, b"ACME    ", 1_000_000)


def itch_file(path: Path, *bodies: bytes) -> Path:
    path.write_bytes(b"".join(len(body).to_bytes(2, "big") + body for body in bodies))
    return path


def mold(first: int, *messages: bytes) -> bytes:
    return encode_mold_packet(b"S", first, messages)


def capture(path: Path, *payloads: bytes) -> Path:
    packets = []
    for number, payload in enumerate(payloads):
        packet = Ether() / IP(dst="233.54.12.111") / UDP(sport=1, dport=26_400) / Raw(payload)
        packet.time = 1_577_700_000 + number / 1_000
        packets.append(packet)
    wrpcap(str(path), packets)
    return path


def batches(path: Path, **options: object) -> list[Any]:
    source = TickSource({"path": str(path)} | {name: str(value) for name, value in options.items()})
    reader = source.reader(source.schema())
    return [batch for part in reader.partitions() for batch in reader.read(part)]


def rows(path: Path, **options: object) -> list[dict[str, Any]]:
    return [row for batch in batches(path, **options) for row in batch.to_pylist()]


def order_refs(path: Path, **options: object) -> list[int]:
    found = rows(path, format="itch50", message="addOrder", columns="order_ref", **options)
    return [int(row["order_ref"]) for row in found]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("itch50/12302019_SNIPPET.NASDAQ_ITCH50", "itch50"),
        ("futures/esh4-glbx-mdp3-20231224.mbo.dbn.zst", "dbn"),
        ("iex/TOPS16.pcapng.gz", "iex"),
    ],
)
def test_each_message_type_has_the_values_that_the_plain_reader_finds(file: str, name: str) -> None:
    path, source_format = shared_file(file), load_source_format(document(f"{name}.xml"))
    expected: dict[str, list[dict[str, Any]]] = {}
    for chunk in READERS[default_reader(source_format) or ""](Input((path,), source_format), Findings()):
        for message, values in FrameReader(source_format).read(chunk.frames):
            expected.setdefault(message, []).append(values)
    for message, frames in expected.items():
        found = rows(path, format=name, message=message, times="nanoseconds")
        assert len(found) == len(frames), message
        for column in set(found[0]) - {VENUE_STREAM, VENUE_SEQ}:
            field = source_format.messages[message].fields[column]
            wanted = [each[column] for each in frames]
            if field.is_text:
                wanted = [text.decode("latin-1") for text in wanted]
            elif field.exponent:
                wanted = [None if number is None else Decimal(number).scaleb(field.exponent) for number in wanted]
            assert [row[column] for row in found] == wanted, (message, column)


def test_a_converter_tables_rows_are_those_of_convert_file(tmp_path: Path) -> None:
    path = shared_file("iex/TOPS16.pcapng.gz")
    assert convert(["file", str(path), "--shipped", "iex", "--to", str(tmp_path)]) == 0
    for message in ("Trade", "Quote"):
        expected = pq.read_table(tmp_path / f"{message}.parquet").to_pylist()
        found = rows(path, format="iex", table="shipped", message=message, times="nanoseconds")
        assert [(row["symbol"], row["sequence"]) for row in found] == [
            (row["symbol"], row["sequence"]) for row in expected
        ]
        assert [row["eventAt"] for row in found] == [row["eventAt"].value for row in expected]


def numbers_in_python(path: Path) -> dict[str, list[tuple[str, int]]]:
    """By message type of IEX: the stream and number of each message, from the segments' headers."""
    found: dict[str, list[tuple[str, int]]] = {}
    reader = FrameReader(load_source_format(document("iex.xml")))
    with DecompressedFile(path) as file:
        for datagram in CaptureReader(file):
            segment = decode_iex_segment(datagram.payload)
            stream = f"{segment.protocol:#06x}/{segment.channel_id}/{segment.session_id}"
            for number, (message, _) in enumerate(reader.read(segment.frames), segment.sequence):
                found.setdefault(message, []).append((stream, number))
    return found


def venue_numbers(path: Path, **options: object) -> list[tuple[str, int]]:
    found = rows(path, columns=f"{VENUE_SEQ},{VENUE_STREAM}", **options)
    return [(row[VENUE_STREAM], row[VENUE_SEQ]) for row in found]


def test_rows_of_a_real_capture_have_the_stream_and_number_of_the_packets_that_brought_them() -> None:
    path = shared_file("iex/TOPS16.pcapng.gz")
    expected = numbers_in_python(path)
    assert len(expected) > 2
    for message, numbers in expected.items():
        assert venue_numbers(path, format="iex", message=message) == numbers


@pytest.mark.parametrize("rows_max", [7, row_groups.ROWS_MAX])
def test_rows_of_a_converter_table_have_the_number_of_their_source_message(
    monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    path = shared_file("iex/TOPS16.pcapng.gz")
    monkeypatch.setattr(row_groups, "ROWS_MAX", rows_max)
    for message, sources in (("Trade", ("tradeReport", "tradeBreak")), ("Quote", ("quoteUpdate",))):
        sent = [row for source in sources for row in rows(path, format="iex", message=source)]
        converted = rows(path, format="iex", table="shipped", message=message)
        wanted = (VENUE_STREAM, VENUE_SEQ, "symbol")
        assert [tuple(row[name] for name in wanted) for row in converted] == sorted(
            tuple(row[name] for name in wanted) for row in sent
        )


def test_each_row_has_the_stream_and_number_that_the_findings_name(tmp_path: Path) -> None:
    cut = struct.pack(">cH", b"A", 7)
    packets = [
        (b"S", 1, add_order(1), cut, add_order(3)),
        (b"T", 1, add_order(101)),
        (b"S", 6, add_order(6)),  # held, until it is clear that 4 and 5 are missing
        (b"S", 1, add_order(1), cut, add_order(3)),  # the other line
        (b"T", 2, add_order(102), add_order(103)),
        (b"U", 0, add_order(7), add_order(8)),  # without a number
    ]
    payloads = [encode_mold_packet(session, first, messages) for session, first, *messages in packets]
    path = capture(tmp_path / "day.pcap", *payloads)
    found = rows(path, format="itch50", message="addOrder", reader="moldudp64", quarantine=tmp_path / "bad")
    assert list(found[0])[:2] == [VENUE_STREAM, VENUE_SEQ]
    assert sorted((row[VENUE_STREAM], row[VENUE_SEQ], int(row["order_ref"])) for row in found) == [
        ("S", 1, 1), ("S", 3, 3), ("S", 6, 6), ("T", 1, 101), ("T", 2, 102), ("T", 3, 103),
        ("U (unnumbered)", 1, 7), ("U (unnumbered)", 2, 8),
    ]  # fmt: skip
    bad = pq.read_table(tmp_path / "bad").column("place").to_pylist()
    assert bad == ["message 2 of S", "stream S: 4 to 5"]


def test_only_queries_that_read_the_venues_columns_pay_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture(tmp_path / "day.pcap", mold(1, add_order(1), add_order(2)))
    options = {"format": "itch50", "message": "addOrder", "reader": "moldudp64"}
    assert rows(path, columns="venue_seq", **options) == [{"venue_seq": 1}, {"venue_seq": 2}]

    def numbers(*_: object) -> None:
        raise AssertionError("no column needs them")

    monkeypatch.setattr(StreamMerge, "numbers", numbers)
    assert order_refs(path, reader="moldudp64") == [1, 2]
    with pytest.raises(AssertionError, match="no column needs them"):
        rows(path, columns="venue_stream", **options)


def test_files_have_no_columns_of_the_venue_and_a_field_of_that_name_stays_its_own(tmp_path: Path) -> None:
    (tmp_path / "venue.xml").write_text(VERSIONED.replace('name="size"', 'name="venue_seq"'))
    (tmp_path / "day.bin").write_bytes(struct.pack("<HHHHHiH", 16, 6, 1, 0, 1, -150, 7))
    found = rows(tmp_path / "day.bin", format=tmp_path / "venue.xml", reader="binary-file")
    assert found == [{"price": Decimal("-1.50"), "venue_seq_": 7}]


def test_what_makes_no_row_is_in_the_quarantine_table_and_ends_no_query(tmp_path: Path) -> None:
    cut = struct.pack(">cH", b"A", 7)  # a message that is too short for its type
    path = capture(tmp_path / "day.pcap", mold(1, add_order(1)), b"foreign", mold(2, cut), mold(7, add_order(7)))
    options = {"reader": "moldudp64", "quarantine": tmp_path / "quarantine"}
    assert order_refs(path, **options) == [1, 7]
    found = pq.read_table(tmp_path / "quarantine").to_pylist()
    place = "day.pcap, packet 2, sent to 233.54.12.111:26400"
    assert [(row["recording"], row["place"], row["count"], row["record"]) for row in found] == [
        (str(path), place, 1, ""),
        (str(path), "message 2 of S", 1, "0003" + cut.hex()),
        (str(path), "stream S: 3 to 6", 4, ""),
    ]
    assert [row["reason"] for row in found[1:]] == ["wrong_length", "missing"]
    with pytest.raises(TableError, match=r"day\.pcap: some of it makes no row: .*'missing': 4"):
        order_refs(path, damaged="fail", **options)


def test_the_quarantine_table_is_on_the_disk_when_its_task_ends_and_is_private(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    capture(work / "day.pcap", mold(1, add_order(1)), b"foreign")
    with losing_disk(work, tmp_path / "kept") as disk:
        order_refs(work / "day.pcap", reader="moldudp64", quarantine=work / "quarantine")
        disk.image(tmp_path / "image")
    assert [row["place"] for row in pq.read_table(tmp_path / "image" / "quarantine").to_pylist()] != []
    (file,) = (work / "quarantine").iterdir()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (work / "quarantine", file)] == [0o700, 0o600]


def test_files_of_a_folder_continue_one_another_and_files_alone_do_not(tmp_path: Path) -> None:
    for line, name in enumerate(("09.pcap", "10.pcap", "later/11.pcap")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        capture(tmp_path / name, mold(1 + line, add_order(1 + line), add_order(2 + line)))
    (tmp_path / "_partial.pcap").write_bytes(b"")
    assert order_refs(tmp_path, reader="moldudp64") == [1, 2, 3, 3, 4]
    assert order_refs(tmp_path, reader="moldudp64", recording="file") == [1, 2, 2, 3, 3, 4]
    assert order_refs(tmp_path, reader="moldudp64", pathGlobFilter="1*.pcap") == [2, 3, 3, 4]


def test_batches_have_a_limit_and_are_made_while_the_file_is_read(tmp_path: Path) -> None:
    count = 4 * ROWS_MAX
    path = itch_file(tmp_path / "day.itch", *map(add_order, range(count)))
    source = TickSource({"path": str(path), "format": "itch50", "message": "addOrder", "columns": "order_ref"})
    reader = source.reader(source.schema())
    (part,) = reader.partitions()
    found = iter(reader.read(part))
    first = next(found)
    os.truncate(path, path.stat().st_size // 2)  # so that only a reader that reads ahead of its batches has it all
    sizes = [first.num_rows, *(batch.num_rows for batch in found)]
    assert count // 2 - CHUNK_MESSAGES < sum(sizes) < count
    assert max(sizes) < ROWS_MAX + CHUNK_MESSAGES


def test_fields_that_an_older_version_does_not_have_are_null(tmp_path: Path) -> None:
    (tmp_path / "venue.xml").write_text(VERSIONED)
    new = struct.pack("<HHHHHiH", 16, 6, 1, 0, 1, -150, 7)
    old = struct.pack("<HHHHHi", 14, 4, 1, 0, 0, 250)
    (tmp_path / "day.bin").write_bytes(new + old + new)
    found = rows(tmp_path / "day.bin", format=tmp_path / "venue.xml", reader="binary-file")
    assert [(row["price"], row["size"]) for row in found] == [
        (Decimal("-1.50"), 7), (Decimal("2.50"), None), (Decimal("-1.50"), 7),
    ]  # fmt: skip


def test_integers_of_odd_widths_keep_their_sign() -> None:
    values = [0, 1, -1, -(1 << 23), (1 << 23) - 1]
    for order in ("big", "little"):
        raw = np.frombuffer(b"".join(each.to_bytes(3, order, signed=True) for each in values), np.uint8)  # type: ignore[arg-type]
        found = integers(raw.reshape(-1, 3), is_big_endian=order == "big", is_signed=True)
        assert found.tolist() == values


def test_a_stream_takes_each_file_once_and_the_oldest_first(tmp_path: Path) -> None:
    for number, name in enumerate(("c", "a", "b")):
        itch_file(tmp_path / name, add_order(number))
        os.utime(tmp_path / name, ns=(number, number))
    options = {"path": str(tmp_path), "format": "itch50", "message": "addOrder", "columns": "order_ref"}
    source = TickSource(options)
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxFiles(2))
    second = reader.latestOffset(first, ReadMaxFiles(2))
    assert [part.name for part in reader.partitions(start, first)] == [  # type: ignore[attr-defined]
        str(tmp_path / name) for name in ("a", "c")
    ]
    (part,) = reader.partitions(first, second)
    assert [batch.to_pylist() for batch in reader.read(part)] == [[{"order_ref": Decimal(2)}]]
    assert reader.latestOffset(second, ReadMaxFiles(2)) == second
    reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
    itch_file(tmp_path / "d", add_order(4))
    assert reader.latestOffset(second, ReadMaxFiles(2)) == second  # it came after the query began


def test_a_file_that_cannot_be_read_ends_a_query_but_not_a_stream(tmp_path: Path) -> None:
    (tmp_path / "bad.pcap").write_bytes(b"no capture at all, but some bytes")
    options = {"path": str(tmp_path), "format": "iex", "message": "tradeReport", "quarantine": str(tmp_path / "bad")}
    source = TickSource(options)
    reader = source.reader(source.schema())
    with pytest.raises(TableError, match=r"bad\.pcap: .*the reader is 'iex-tp'"):
        list(reader.read(reader.partitions()[0]))
    stream = source.streamReader(source.schema())
    parts = stream.partitions(stream.initialOffset(), stream.latestOffset(stream.initialOffset(), ReadMaxFiles(9)))
    assert [batch for part in parts for batch in stream.read(part)] == []
    assert pq.read_table(tmp_path / "bad").column("reason").to_pylist() == ["damaged"]


def test_the_day_of_a_recording_may_be_in_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "day=2019-12-30"
    folder.mkdir()
    source = TickSource({"path": str(tmp_path), "format": "itch50", "message": "addOrder", "session": "path"})
    itch_file(folder / "x", add_order(1))
    (part,) = source.reader(source.schema()).partitions()
    assert part.session("path") == 20191230  # type: ignore[attr-defined]
    with pytest.raises(TableError, match="contains no day YYYYMMDD"):
        type(part)("x", (Path("day-1234-99-99"),)).session("path")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "option 'format' is missing"),
        ({"format": "itch"}, "option 'format' must be a shipped format or a file, not 'itch'; shipped are .*itch50"),
        ({"format": "itch50"}, "option 'message' is missing; .*addOrder"),
        ({"format": "itch50", "message": "nothing"}, "option 'message' is 'nothing'"),
        ({"format": "itch50", "message": "addOrder", "reader": "x"}, "option 'reader' is 'x'; .*moldudp64"),
        ({"format": "itch50", "message": "addOrder", "lines": "10.0.0.1"}, "'lines' selects from captures"),
        ({"format": "iex", "message": "tradeReport", "lines": "x"}, "option 'lines': .*give ADDRESS"),
        ({"format": "itch50", "message": "addOrder", "session": "today"}, "must be a day YYYYMMDD, or 'path'"),
        ({"format": "itch50", "message": "Trade", "table": "shipped"}, "times since midnight"),
        ({"format": "iex", "message": "Trade", "table": "shipped", "times": "x"}, "option 'times' is 'x'"),
    ],
)
def test_wrong_options_are_refused_with_what_to_give(options: dict[str, str], reason: str) -> None:
    with pytest.raises(TableError, match=reason):
        tick_table(options)


def test_columns_have_types_that_spark_has() -> None:
    schema = tick_table({"format": "dbn", "message": "mbo"}).arrow_schema()
    assert schema.field("price").type == pa.decimal128(20, 9)
    assert schema.field("order_id").type == pa.decimal128(20, 0)
    assert schema.field("size").type == pa.int64()
