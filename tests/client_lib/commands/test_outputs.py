"""What the commands print or write, in each format."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow.parquet
import pytest

from tandemfeed.client_lib import Dropped, load_messages
from tandemfeed.client_lib.commands.outputs import OutputRefused, add_output_arguments, open_output
from tandemfeed.client_lib.items import Filled, Item
from tests.client_lib.messages.test_message_attributes import XML, batch_of, trade

BOOK = load_messages(XML).Book(symbol="XEL", levels=[], note="")
DROPPED = Dropped(1, 20_261_122, 5, 8, 3, ((1, 5, 8),))


def output_of(items: list[Item], *options: str) -> None:
    parser = argparse.ArgumentParser()
    add_output_arguments(parser, "text")
    with open_output(parser.parse_args(options)) as output:
        output.write(items)


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_text_has_a_line_for_each_message_and_event(capsys: pytest.CaptureFixture[str]) -> None:
    output_of([batch_of([bytes(trade()), bytes(BOOK)]), DROPPED, Filled(batch_of([bytes(BOOK)]))])
    lines = lines_of(capsys)
    assert lines[0] == f"21 5:31 {trade()}"
    assert lines[2] == f"# {DROPPED}"
    assert lines[3].startswith("# late, fills an earlier gap: Batch(")
    assert len(lines) == 5


def test_json_lines_lose_no_digit(capsys: pytest.CaptureFixture[str]) -> None:
    output_of([batch_of([bytes(trade(size=None))]), DROPPED], "--as", "json")
    message, event = map(json.loads, lines_of(capsys))
    assert (message["type"], message["message_seq"], message["source_stream_id"], message["source_seq"]) == (
        "Trade", 21, 5, 31,
    )  # fmt: skip
    fields = message["fields"]
    assert (fields["price"], fields["eventAt"]) == ("38.490000000", "2026-11-22T14:30:00.000000001Z")
    assert (fields["size"], fields["flags"], fields["span"]) == (None, ["last"], {"low": -1, "high": 2})
    assert event == {
        "event": "Dropped", "channel_id": 1, "session": 20_261_122, "first_message_seq": 5, "end_message_seq": 8,
        "message_count": 3, "sources": [[1, 5, 8]],
    }  # fmt: skip


def test_a_table_has_aligned_columns_and_a_heading_for_each_type(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [bytes(trade()), bytes(trade(symbol="IBM", size=7)), bytes(BOOK)]
    output_of([batch_of(rows)], "--as", "table")
    heading, first, second, other, _ = lines_of(capsys)
    assert heading.split()[:4] == ["message_seq", "Trade", "symbol", "eventAt"]
    assert (
        heading.index("symbol")
        == first.index("'XEL'" if "'XEL'" in first else "XEL")
        == second.index("'IBM'" if "'IBM'" in second else "IBM")
    )
    assert other.split()[1] == "Book"


def test_raw_lines_have_the_bytes_of_the_messages(capsys: pytest.CaptureFixture[str]) -> None:
    output_of([batch_of([bytes(trade())])], "--as", "raw")
    assert lines_of(capsys) == [f"21 5:31 {bytes(trade()).hex()}"]


def test_csv_and_parquet_have_a_file_for_each_type_in_a_folder(tmp_path: Path) -> None:
    batch = batch_of([bytes(trade()), bytes(trade(symbol="IBM"))])
    output_of([batch, batch, DROPPED], "--as", "parquet", "-o", str(tmp_path / "out"))
    table = pyarrow.parquet.read_table(tmp_path / "out" / "Trade.parquet")
    assert table.column("symbol").to_pylist() == ["XEL", "IBM"] * 2
    assert str(table.schema.field("price").type) == "decimal128(20, 9)"
    output_of([batch], "--as", "csv", "-o", str(tmp_path / "trades.csv"))
    heading, first, _ = (tmp_path / "trades.csv").read_text().splitlines()
    assert heading.split(",")[0] == '"symbol"'
    assert "38.490000000" in first


def test_only_messages_of_a_type_are_written_if_one_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of([batch_of([bytes(trade()), bytes(BOOK)])], "--as", "raw", "--kind", "Book")
    assert lines_of(capsys) == [f"22 5:32 {bytes(BOOK).hex()}"]
    with pytest.raises(OutputRefused, match="--as parquet needs -o FILE or -o FOLDER"):
        output_of([], "--as", "parquet")
    output_of([batch_of([bytes(trade())])], "--as", "text", "-o", str(tmp_path / "out.txt"))
    assert (tmp_path / "out.txt").read_text() == f"21 5:31 {trade()}\n"
