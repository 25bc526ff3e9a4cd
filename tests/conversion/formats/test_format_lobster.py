"""LOBSTER message files: our frames contain what Python's own reader finds in a real file; so does the tick model."""

from __future__ import annotations

import csv
import gzip
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.files.lobster import read_lobster
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.conversion.formats.tick_material import interpreted
from tests.real_data import shared_file

FORMAT = load_source_format(document("lobster.xml"))
NAME = "AAPL_2012-06-21_34200000_57600000_message_10.csv"
SESSION = 20120621
MIDNIGHT_NS = int(datetime(2012, 6, 21, tzinfo=ZoneInfo("America/New_York")).timestamp()) * 10**9
KINDS = ["submission", "cancellation", "deletion", "execution", "hiddenExecution", "crossTrade", "halt"]
# A row of each event; events that the recording lacks are as in LOBSTER's documentation.
ROWS = """34200.1,1,7,18,5853300,1
34200.01,2,7,8,5853300,1
34200,3,7,10,5853300,1
34200.000000001,4,8,10,5853400,-1
34200.2,5,0,3,5853350,-1
57600.3,6,-2,99000,5853300,1
34713.685155243,7,0,0,-1,-1
34713.7,7,0,0,0,-1
34713.8,7,0,0,1,-1
"""


def written(tmp_path: Path, text: str, name: str = NAME) -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def read(path: Path, symbol: str = "") -> list[tuple[str, dict[str, Any]]]:
    return [each for chunk in read_lobster(path, FORMAT, symbol) for each in FrameReader(FORMAT).read(chunk.frames)]


def expected(row: list[str], symbol: bytes = b"AAPL") -> tuple[str, dict[str, Any]]:
    """A row as Python's reader reads it."""
    order_id, size, price, direction = map(int, row[2:])
    numbers = {"time": int(Decimal(row[0]) * 10**9), "order_id": order_id, "size": size, "price": price}
    return KINDS[int(row[1]) - 1], {"symbol": symbol, **numbers, "direction": direction}


def test_a_real_morning_reads_as_pythons_own_reader_reads_it() -> None:
    path = shared_file(f"lobster/{NAME}")
    with path.open() as lines:
        rows = list(csv.reader(lines))
    assert read(path) == [expected(row) for row in rows]
    assert len(rows) == 999
    assert {row[1] for row in rows} == {"1", "3", "4", "5"}


@pytest.mark.parametrize("name", [NAME, NAME + ".gz"])
def test_every_event_is_read_to_the_last_digit_of_its_time(tmp_path: Path, name: str) -> None:
    found = read(written(tmp_path, ROWS, name))
    assert found == [expected(row.split(",")) for row in ROWS.split()]
    assert found[3][1]["time"] == 34_200_000_000_001


def test_the_symbol_comes_from_the_file_name_or_the_caller(tmp_path: Path) -> None:
    assert {values["symbol"] for _, values in read(written(tmp_path, ROWS), "XYZ")} == {b"XYZ"}
    assert {values["symbol"] for _, values in read(written(tmp_path, ROWS, "mine.csv"))} == {b""}
    with pytest.raises(FormatError, match="more than 32 bytes"):
        read(written(tmp_path, ROWS), "X" * 33)


def test_a_long_file_comes_in_chunks(tmp_path: Path) -> None:
    path = written(tmp_path, "34200.5,1,7,18,5853300,1\n" * 70_000)
    chunks = list(read_lobster(path, FORMAT))
    assert [(chunk.sequence, chunk.message_count) for chunk in chunks] == [(1, 65_535), (65_536, 4_465)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("34200,1,7,18,5853300\n", "[Ee]xpected 6 columns"),
        (ROWS + "34200,8,7,18,5853300,1\n", "row 10: unknown event type 8"),
        (ROWS + "34200,0,7,18,5853300,1\n", "row 10: unknown event type 0"),
        ("34200,1,7,18,58.5,1\n", "column #4"),
        ("34200,1,7,-18,585,1\n", "column #3"),
        ("34200,1,7,18,585,1\n34200,1,7,,585,1\n", "row 2 has no size"),
        ("34200,1,7,18,585,1\n,1,7,1,585,1\n", "row 2 has no time"),
        ("34200,1,7,18,585,1\n34200.0000000001,1,7,1,585,1\n", "row 2: "),
        ("noon,1,7,18,585,1\n", "row 1: "),
        ("", "[Ee]mpty"),
    ],
)
def test_an_unreadable_row_is_refused_with_its_number(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        read(written(tmp_path, text))


def tick_model_says(row: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """The expected tick-model messages for a row."""
    kind, order_id, size, price, direction = map(int, row[1:])
    head = {"symbol": "AAPL", "eventAt": MIDNIGHT_NS + int(Decimal(row[0]) * 10**9)}
    if kind == 7:
        return [("Status", head | {"topic": "halt", "event": str(price), "state": {-1: "H", 0: "Q", 1: "T"}[price]})]
    values = head | {"price": price * 10**5, "size": size * 10**9}
    resting, taker = ("B", "S") if direction == 1 else ("S", "B")
    event = values | {"orderId": order_id, "side": resting}
    trade = values | {"kind": "R"}
    return {
        1: [("OrderEvent", event | {"action": "A"})],
        2: [("OrderEvent", event | {"action": "R"})],
        3: [("OrderEvent", event | {"action": "D"})],
        4: [("Trade", trade | {"side": taker}), ("OrderEvent", event | {"action": "E"})],
        5: [("Trade", trade)],
        6: [("Trade", values | {"side": "N", "kind": "C"})],
    }[kind]


def test_every_event_becomes_its_message_of_the_tick_model(tmp_path: Path) -> None:
    ours = interpreted("lobster", read_lobster(written(tmp_path, ROWS), FORMAT), SESSION)
    assert ours == [each for row in ROWS.split() for each in tick_model_says(row.split(","))]


def test_a_real_morning_is_converted_completely() -> None:
    path = shared_file(f"lobster/{NAME}")
    with path.open() as lines:
        expectation = [each for row in csv.reader(lines) for each in tick_model_says(row)]
    assert interpreted("lobster", read_lobster(path, FORMAT), SESSION) == expectation


def test_the_convert_command_reads_a_lobster_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = written(tmp_path, ROWS), tmp_path / "out"
    assert main(["file", "--shipped", "lobster", str(path), "--to", str(folder)]) == 2
    assert "give --session YYYYMMDD" in capsys.readouterr().err
    arguments = ["--session", str(SESSION), "--as", "csv", "--to", str(folder)]
    assert main(["file", "--shipped", "lobster", str(path), *arguments]) == 0
    with (folder / "OrderEvent.csv").open() as lines:
        assert [row["action"] for row in csv.DictReader(lines)] == ["A", "R", "D", "E"]
