"""CSV and Parquet ticks: our frames contain what Python's own readers find in real files, to the last digit."""

from __future__ import annotations

import csv
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.files.tick_table import TableOptions, read_tick_file
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.real_data import shared_file

FORMAT = load_source_format(document("tick-table.xml"))
READER = FrameReader(FORMAT)


def rows_of(path: Path, options: TableOptions | None = None) -> list[tuple[str, dict[str, object]]]:
    return [row for chunk in read_tick_file(path, FORMAT, options) for row in READER.read(chunk.frames)]


def nanoseconds(text: str) -> int:
    at = datetime.fromisoformat(text)
    return int(at.replace(microsecond=0).timestamp()) * 10**9 + at.microsecond * 1_000


def test_real_quotes_in_csv_keep_every_digit() -> None:
    path = shared_file("ticks/usdjpy-ticks.csv")
    ours = rows_of(path, TableOptions(symbol="USD/JPY"))
    with path.open() as lines:
        for (name, values), row in zip(ours, csv.DictReader(lines), strict=True):
            assert name == "quote"
            assert values == {
                "symbol": b"USD/JPY",
                "event_at_ns": nanoseconds(row["timestamp"]),
                "bid_price": int(Decimal(row["bid"]) * 10**9),
                "ask_price": int(Decimal(row["ask"]) * 10**9),
                "bid_size": None,
                "ask_size": None,
            }
    assert len(ours) == 1_000


def test_real_trades_in_parquet_read_as_another_reader_reads_them() -> None:
    path = shared_file("ticks/btcusdt-trades.parquet")
    frame = pd.read_parquet(path)
    ours = rows_of(path, TableOptions(symbol="BTCUSDT"))
    for (name, values), row in zip(ours, frame.itertuples(), strict=True):
        assert name == "trade"
        assert values == {
            "symbol": b"BTCUSDT",
            "event_at_ns": pd.Timestamp(row.timestamp).value,
            "price": int(Decimal(repr(round(row.price, 9))) * 10**9),
            "size": int(Decimal(repr(round(row.quantity, 9))) * 10**9),
            "trade_id": row.trade_id,
            "side": b"S" if row.buyer_maker == "True" else b"B",
        }
    assert len(ours) == 2_001


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "ticks.csv"
    path.write_text(text)
    return path


def test_usual_column_names_are_found_in_any_case_and_times_may_be_integers(tmp_path: Path) -> None:
    path = written(tmp_path, "Time,Ticker,PRICE,Qty,Side\n1500000000123,ACME,1.000000001,7,buy\n1500000000124,X,-2,,\n")
    assert [values for _, values in rows_of(path, TableOptions(time_unit="ms"))] == [
        {"symbol": b"ACME", "event_at_ns": 1_500_000_000_123_000_000, "price": 1_000_000_001, "size": 7 * 10**9,
         "trade_id": None, "side": b"B"},
        {"symbol": b"X", "event_at_ns": 1_500_000_000_124_000_000, "price": -2 * 10**9, "size": None,
         "trade_id": None, "side": b"N"},
    ]  # fmt: skip


def test_words_for_no_value_may_be_tickers(tmp_path: Path) -> None:
    path = written(tmp_path, "time,symbol,price,size\n1,NA,2.5,3\n2,NULL,NaN,3\n3,nan,2.5,\n")
    rows = [(values["symbol"], values["price"], values["size"]) for _, values in rows_of(path)]
    price, size = 25 * 10**8, 3 * 10**9
    assert rows == [(b"NA", price, size), (b"NULL", None, size), (b"nan", price, None)]


def test_integers_and_decimals_in_parquet_are_read(tmp_path: Path) -> None:
    table = pa.table(
        {
            "ts": pa.array([5, 6], pa.timestamp("us")),
            "bid": pa.array([Decimal("1.25"), None], pa.decimal128(12, 4)),
            "ask": pa.array([2, 3], pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "q.parquet")
    ours = [values for _, values in rows_of(tmp_path / "q.parquet")]
    assert [(row["event_at_ns"], row["bid_price"], row["ask_price"]) for row in ours] == [
        (5_000, 1_250_000_000, 2_000_000_000),
        (6_000, None, 3_000_000_000),
    ]


def test_a_long_file_comes_in_chunks(tmp_path: Path) -> None:
    path = written(tmp_path, "time,price\n" + "".join(f"{number},1\n" for number in range(70_000)))
    chunks = list(read_tick_file(path, FORMAT))
    assert [(chunk.sequence, chunk.message_count) for chunk in chunks] == [(1, 65_535), (65_536, 4_465)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("price\n1\n", "no column for 'event_at_ns'; its name must be one of event_at_ns, timestamp"),
        ("time,size\n1,1\n", "no column for 'price'"),
        ("time,bid\n1,1\n", "no column for 'ask_price'"),
        ("time,price\n1,1\n2,x\n", "column 'price': row 2: "),
        ("time,price\n1,1.0000000001\n", "column 'price': row 1: "),
        ("time,price\n1,1\n,1\n", "column 'time': .*without a time"),
        ("time,price\n1,1\nnoon,1\n", "column 'time': row 1|column 'time': row 2"),
        ("time,price,side\n1,1,up\n", "column 'side', row 1: 'up' is not one of b, buy"),
        (f"time,price,symbol\n1,1,{'X' * 33}\n", "column 'symbol', row 1: .* more than 32 bytes"),
        ("time,price,id\n1,1,x\n", "column 'id': row 1"),
    ],
)
def test_an_unreadable_value_is_refused_with_column_and_row(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        rows_of(written(tmp_path, text))


def test_options_are_checked() -> None:
    for options in ({"time_unit": "h"}, {"symbol": "X" * 33}):
        with pytest.raises(FormatError):
            TableOptions(**options)
