"""`tandemfeed convert`: its messages and its output files."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.feedcore.documents.message_model import load_message_model

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "ticks"
DOCUMENTS = [
    "--source-format", str(EXAMPLES / "source-format.xml"),
    "--table", str(EXAMPLES / "converter-table.xml"),
    "--message-model", str(EXAMPLES / "message-model.xml"),
]  # fmt: skip
TICKS = """symbol,time,price,size,side
ACME,1700000000000000001,101.25,300,buy
BRKB,1700000000000000002,3.5,20,sell
ACME,1700000000000000003,101.50,100,buy
"""


@pytest.fixture
def ticks(tmp_path: Path) -> Path:
    path = tmp_path / "ticks.csv"
    path.write_text(TICKS)
    return path


def convert(ticks: Path, kind: str) -> Path:
    folder = ticks.parent / kind
    assert main(["file", "--shipped", "tick-table", str(ticks), "--to", str(folder), "--as", kind]) == 0
    return folder


def test_check_reports_valid_documents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *DOCUMENTS]) == 0
    assert "3 conversions" in capsys.readouterr().out


def test_check_warns_of_what_is_unusual_in_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.xml"
    text = (EXAMPLES / "message-model.xml").read_text()
    model.write_text(text.replace("</types>", '<type name="Odd" primitiveType="int8" nullValue="5"/></types>'))
    assert main(["check", *DOCUMENTS, "--message-model", str(model)]) == 0
    assert f"warning: {model}:" in (output := capsys.readouterr().out)
    assert "type 'Odd' is required: its nullValue applies only to optional fields" in output


def test_check_names_file_line_and_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.xml"
    table.write_text((EXAMPLES / "converter-table.xml").read_text().replace('of="price"', 'of="prize"', 1))
    assert main(["check", *DOCUMENTS, "--table", str(table)]) == 2
    assert f"{table}:8: source message 'trade' has no field 'prize'" in capsys.readouterr().err


def test_explain_shows_each_field_and_its_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *DOCUMENTS]) == 0
    output = capsys.readouterr().out
    assert "trade (type 1, line 5) → TradeTick" in output
    assert "TradeTick.vwap (int64) ← vwap(of: price, weight: size, exponent -9) by symbol" in output
    assert "TradeTick.side (char) ← side" in output
    assert "state by symbol: 7 cells, 128 bytes per key" in output


def test_explain_prints_the_generated_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--source", *DOCUMENTS]) == 0
    source = capsys.readouterr().out
    compile(source, "kernel", "exec")
    assert "# trade -> TradeTick" in source


def test_a_file_becomes_parquet_with_decimals(ticks: Path) -> None:
    table = pyarrow.parquet.read_table(convert(ticks, "parquet") / "Trade.parquet")
    assert table["price"].to_pylist() == [Decimal("101.250000000"), Decimal("3.500000000"), Decimal("101.500000000")]
    assert table["symbol"].to_pylist() == ["ACME", "BRKB", "ACME"]
    assert table["size"].to_pylist() == [Decimal(300), Decimal(20), Decimal(100)]


def test_a_file_becomes_csv(ticks: Path) -> None:
    table = pyarrow.csv.read_csv(convert(ticks, "csv") / "Trade.csv")
    assert [float(price) for price in table["price"].to_pylist()] == [101.25, 3.5, 101.5]


def test_a_file_becomes_sbe_with_open_framing_headers(ticks: Path) -> None:
    data = (convert(ticks, "sbe") / "messages.sbe").read_bytes()
    size = len(data) // 3
    assert len(data) == 3 * size
    assert data[:6] == size.to_bytes(4, "big") + b"\xeb\x50"
    model = load_message_model(document("tick.xml"))
    header = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    assert header == (model.schema.messages["Trade"].block_length, model.schema.messages["Trade"].template_id)


def test_a_table_of_rows_needs_the_tick_table_format(ticks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["file", *DOCUMENTS, str(ticks), "--reader", "tick-table", "--to", str(ticks.parent)]) == 2
    assert "needs the source format 'tick-table'" in capsys.readouterr().err


def test_a_missing_file_is_an_error_not_a_traceback(ticks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["file", *DOCUMENTS, "nowhere.itch", "--reader", "binary-file", "--to", str(ticks.parent)]) == 2
    assert "nowhere.itch" in capsys.readouterr().err
