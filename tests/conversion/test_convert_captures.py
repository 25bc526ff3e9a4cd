"""`tandemfeed convert file` with captures and large files: what is wrong is named and never ends the conversion."""

from __future__ import annotations

import csv
import datetime
import gzip
import struct
from collections.abc import Sequence
from decimal import Decimal
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.all import IP, UDP, Ether, Raw, wrpcap

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.files.binary_file import read_binary_file
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import encode_end_of_session, encode_mold_packet
from tandemfeed.adapter.conversion.loading.table_loading import load_table
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input
from tandemfeed.adapter.convert_command.input.packet_values import reads_packet
from tandemfeed.adapter.convert_command.input.reading import READERS
from tandemfeed.adapter.convert_command.output import row_groups
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.real_data import shared_file

TABLE = "itch50-to-tick.xml"
ITCH = ["--shipped", "itch50", "--session", "20191230"]
FORMAT = load_source_format(document("itch50.xml"))
MIDNIGHT_NS = 1_577_682_000_000_000_000  # 2019-12-30, New York


def add_order(number: int, price: int = 1_000_000) -> bytes:
    """ITCH message A."""
    return struct.pack(">cHH6sQcI8sI", b"A", 7, 0, number.to_bytes(6, "big"), number, b"B", 100, b"ACME    ", price)


def delete_order(number: int) -> bytes:
    """ITCH message D."""
    return struct.pack(">cHH6sQ", b"D", 7, 0, number.to_bytes(6, "big"), number)


def capture(path: Path, *payloads: bytes) -> Path:
    """A capture of these datagrams, a millisecond apart."""
    packets = []
    for number, payload in enumerate(payloads):
        packet = Ether() / IP(dst="233.54.12.111") / UDP(sport=1, dport=26_400) / Raw(payload)
        packet.time = 1_577_700_000 + number / 1_000
        packets.append(packet)
    wrpcap(str(path), packets)
    return path


def convert_capture(path: Path, *options: str, then: Sequence[Path] = ()) -> int:
    files = [str(each) for each in (path, *then)]
    return main(["file", *files, *ITCH, "--reader", "moldudp64", "--to", str(path.parent / "out"), *options])


def mold(first: int, *messages: bytes) -> bytes:
    return encode_mold_packet(b"S", first, messages)


def rows(path: Path, name: str = "OrderEvent") -> list[dict[str, object]]:
    found: list[dict[str, object]] = pyarrow.parquet.read_table(path.parent / "out" / f"{name}.parquet").to_pylist()
    return found


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def itch_file(path: Path, count: int) -> Path:
    bodies = [body for number in range(1, count + 1) for body in (add_order(number), delete_order(number))]
    path.write_bytes(b"".join(len(body).to_bytes(2, "big") + body for body in bodies))
    return path


def test_bad_datagrams_are_counted_and_the_others_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = mold(2, add_order(2))[:-1]
    path = capture(tmp_path / "day.pcap", mold(1, add_order(1)), b"foreign", cut, mold(2, add_order(2)))
    assert convert_capture(path) == 3
    assert [row["orderId"] for row in rows(path)] == [1, 2]
    text = shown(capsys)
    assert (
        "day.pcap, packet 2, sent to 233.54.12.111:26400: the datagram has 7 bytes; a MoldUDP64 header has 20" in text
    )
    assert "1 datagrams refused: the packet ends before message 1" in text


def test_missing_messages_are_listed_and_the_exit_status_says_so(tmp_path: Path) -> None:
    path = capture(tmp_path / "day.pcap", mold(1, add_order(1)), mold(5, add_order(5)), encode_end_of_session(b"S", 9))
    assert convert_capture(path) == 3
    assert [row["orderId"] for row in rows(path)] == [1, 5]
    with (tmp_path / "out" / "missing.csv").open() as file:
        assert list(csv.reader(file)) == [
            ["stream", "first", "last", "count"],
            ["S", "2", "4", "3"],
            ["S", "6", "8", "3"],
        ]
    assert convert_capture(path, "--strict") == 2


def test_both_lines_of_a_stream_become_each_message_once(tmp_path: Path) -> None:
    one, two = mold(1, add_order(1), add_order(2)), mold(3, add_order(3))
    path = capture(tmp_path / "day.pcap", one, two, one, mold(2, add_order(2), add_order(3), add_order(4)), two)
    assert convert_capture(path) == 0
    assert [row["orderId"] for row in rows(path)] == [1, 2, 3, 4]


def test_a_capture_of_another_protocol_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = capture(tmp_path / "day.pcap", b"hello", b"world")
    assert convert_capture(path) == 2
    assert "none of the 2 datagrams follows the format" in shown(capsys)


def test_a_bad_datagram_is_named_by_file_and_packet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = capture(tmp_path / "morning.pcap", mold(1, add_order(1)))
    second = capture(tmp_path / "noon.pcap", mold(2, add_order(2)), b"foreign")
    assert convert_capture(first, then=[second]) == 3
    assert [row["orderId"] for row in rows(first)] == [1, 2]
    assert "noon.pcap, packet 2, sent to 233.54.12.111:26400: the datagram has 7 bytes" in shown(capsys)


def test_a_capture_that_is_cut_off_is_converted_up_to_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = capture(tmp_path / "day.pcap", *(mold(number, add_order(number)) for number in range(1, 4)))
    other = capture(tmp_path / "next.pcap", mold(4, add_order(4)))
    path.write_bytes(path.read_bytes()[:-10])
    assert convert_capture(path, then=[other]) == 3
    assert [row["orderId"] for row in rows(path)] == [1, 2, 4]
    text = shown(capsys)
    assert "day.pcap: offset" in text
    assert "what precedes this is converted" in text
    assert "stream S: 1 missing, 3 to 3" in text


def test_a_file_compressed_with_gzip_that_is_cut_off_is_converted_up_to_there(tmp_path: Path) -> None:
    path = itch_file(tmp_path / "day.itch.gz", 50_000)
    path.write_bytes(gzip.compress(path.read_bytes())[:-1_000])
    assert main(["file", str(path), *ITCH, "--to", str(tmp_path / "out")]) == 3
    assert 1_000 < len(rows(path)) < 100_000


def test_messages_with_sequence_number_0_are_converted_in_the_order_of_the_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = capture(
        tmp_path / "day.pcap", mold(0, add_order(1), add_order(2)), mold(7, add_order(7)), mold(0, add_order(3))
    )
    assert convert_capture(path) == 0
    assert sorted(row["orderId"] for row in rows(path)) == [1, 2, 3, 7]
    assert "3 messages with sequence number 0: no gap or duplicate can be found among them" in shown(capsys)


def test_only_the_chosen_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "day.pcap"
    lines = {"233.54.12.111": mold(1, add_order(1)), "233.49.196.111": mold(1, add_order(1), add_order(2))}
    wrpcap(str(path), [Ether() / IP(dst=to) / UDP(dport=26_400) / Raw(payload) for to, payload in lines.items()])
    assert convert_capture(path) == 0
    assert [row["orderId"] for row in rows(path)] == [1, 2]
    assert convert_capture(path, "--line", "233.54.12.111:26400") == 0
    assert [row["orderId"] for row in rows(path)] == [1]
    assert convert_capture(path, "--line", "233.54.12.111:1", "--line", "233.49.196.111") == 0
    assert [row["orderId"] for row in rows(path)] == [1, 2]


@pytest.mark.parametrize("text", ["here", "233.54.12.111:http", "233.54.12.1111"])
def test_a_line_that_is_not_an_address_is_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        convert_capture(tmp_path / "day.pcap", "--line", text)
    assert "give ADDRESS or ADDRESS:PORT" in shown(capsys)


def test_a_table_that_reads_the_time_of_a_packet_is_recognised(tmp_path: Path) -> None:
    model, text = load_message_model(document("tick.xml")), document(TABLE).read_text()
    changed = tmp_path / "table.xml"
    since_midnight = 'function="since_midnight" of="timestamp" zone="America/New_York"'
    changed.write_text(text.replace(since_midnight, 'function="copy" of="packet.sent_at_ns"', 1))
    found = [reads_packet(load_table(each, FORMAT, model, 1_472), "sent_at_ns") for each in (document(TABLE), changed)]
    assert found == [False, True]


def test_alternating_types_make_few_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "ROWS_MAX", 1_000)
    path = itch_file(tmp_path / "day.itch", 1_200)
    assert main(["file", str(path), *ITCH, "--to", str(tmp_path / "out")]) == 0
    file = pyarrow.parquet.ParquetFile(tmp_path / "out" / "OrderEvent.parquet")
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert sizes == [1_000, 1_000, 400]
    assert [row["action"] for row in file.read().to_pylist()] == ["A", "D"] * 1_200


def test_columns_have_the_types_of_their_meaning(tmp_path: Path) -> None:
    path = itch_file(tmp_path / "day.itch", 2)
    assert main(["file", str(path), *ITCH, "--to", str(tmp_path / "out")]) == 0
    table = pyarrow.parquet.read_table(tmp_path / "out" / "OrderEvent.parquet")
    assert table.schema.field("eventAt").type == pa.timestamp("ns", "UTC")
    assert pa.types.is_dictionary(table.schema.field("symbol").type)
    first, second = table.slice(0, 2).to_pylist()
    assert first["symbol"] == "ACME"
    assert first["price"] == Decimal("100.000000000")
    assert second["symbol"] is None
    opening = datetime.datetime.fromtimestamp(MIDNIGHT_NS // 10**9, datetime.UTC)
    assert table["eventAt"].cast(pa.int64()).to_pylist()[0] == MIDNIGHT_NS + 1
    assert abs(first["eventAt"].to_pydatetime() - opening) < datetime.timedelta(seconds=1)


@pytest.mark.parametrize("kind", ["arrow", "csv"])
def test_other_tables_have_the_same_rows(tmp_path: Path, kind: str) -> None:
    path = itch_file(tmp_path / "day.itch", 3)
    for each in ("parquet", kind):
        assert main(["file", str(path), *ITCH, "--to", str(tmp_path / "out"), "--as", each]) == 0
    if kind == "arrow":
        table = pa.ipc.open_file(tmp_path / "out" / "OrderEvent.arrow").read_all()
    else:
        table = pyarrow.csv.read_csv(tmp_path / "out" / "OrderEvent.csv")
    parquet = pyarrow.parquet.read_table(tmp_path / "out" / "OrderEvent.parquet")
    assert table["orderId"].to_pylist() == parquet["orderId"].to_pylist()
    assert [text or None for text in table["symbol"].to_pylist()] == parquet["symbol"].to_pylist()


def test_a_file_compressed_with_zstd_is_read(tmp_path: Path) -> None:
    path = itch_file(tmp_path / "day.itch.zst", 5)
    skippable = b"\x50\x2a\x4d\x18\4\0\0\0skip"
    path.write_bytes(skippable + zstandard.compress(path.read_bytes()))
    assert main(["file", str(path), *ITCH, "--to", str(tmp_path / "out")]) == 0
    assert len(rows(path)) == 10


@pytest.mark.parametrize("cut", [1, 20, 1_000])
def test_a_file_compressed_with_zstd_that_is_cut_off_is_converted_up_to_there(
    tmp_path: Path, cut: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = itch_file(tmp_path / "day.itch.zst", 50_000)
    first, second = itch_file(tmp_path / "one", 5).read_bytes(), path.read_bytes()
    path.write_bytes(zstandard.compress(first) + zstandard.compress(second)[:-cut])
    assert main(["file", str(path), *ITCH, "--to", str(tmp_path / "out")]) == 3
    assert 10 <= len(rows(path)) <= 100_010
    assert "cannot be decompressed further: a zstd frame is cut off" in shown(capsys)


def test_records_of_databento_are_read_from_gzip(tmp_path: Path) -> None:
    plain = shared_file("dbn/test_data.mbo.dbn")
    path, findings, dbn = tmp_path / "day.dbn.gz", Findings(), load_source_format(document("dbn.xml"))
    path.write_bytes(gzip.compress(data := plain.read_bytes()))
    packed, whole = (list(READERS["dbn"](Input((each,), dbn), findings)) for each in (path, plain))
    assert packed == whole
    assert not findings.is_incomplete
    path.write_bytes(gzip.compress(data)[:-10])
    list(READERS["dbn"](Input((path,), dbn), findings))
    assert findings.is_incomplete


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 200), st.integers(1, 40))
def test_a_file_is_read_in_blocks_of_any_size(block_size: int, messages_max: int) -> None:
    data = b"".join(len(body).to_bytes(2, "big") + body for number in range(30) for body in (add_order(number),))
    chunks = list(read_binary_file(BytesIO(data), FORMAT, messages_max, block_size))
    assert b"".join(chunk.frames for chunk in chunks) == data
    assert [chunk.sequence for chunk in chunks] == list(range(1, 31, messages_max))
