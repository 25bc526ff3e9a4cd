"""Generated ticks resemble a market, and users' files become recordings without losing a digit."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import databento_dbn
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.spark_feed.numbering.rows.column_split import BY_LETTER, IN_TURN
from tandemfeed.spark_feed.numbering.rows.encoding import EncodingError, TickEncoder
from tandemfeed.spark_feed.recordings.cli import main as ticks
from tandemfeed.spark_feed.recordings.generator import CENT, GeneratorOptions, TickGenerator
from tandemfeed.spark_feed.recordings.ingest import dbn_reader
from tandemfeed.spark_feed.recordings.ingest.file_columns import IngestOptions
from tandemfeed.spark_feed.recordings.ingest.ingesting import ingest
from tandemfeed.spark_feed.recordings.prices import to_nine_digits
from tandemfeed.spark_feed.recordings.recording import NULL_PRICE, SCHEMA, Manifest, RecordingError, restore_file_order
from tandemfeed.spark_feed.recordings.tickers import make_tickers
from tandemfeed.spark_feed.recordings.values import BadValue
from tests.real_data import shared_file
from tests.spark_feed.source_material import SOURCE_FORMAT, make_recording


def _rows(recording: Path) -> list[dict[str, Any]]:
    parts = sorted(recording.glob("part-*.parquet"))
    rows = [row for part in parts for row in pq.ParquetFile(part).read().to_pylist()]
    assert [row["record_index"] for row in rows] == list(range(len(rows)))
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def _milliseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@pytest.fixture(scope="module")
def market() -> list[dict[str, Any]]:
    tables = TickGenerator(GeneratorOptions(60_000, 400, 11)).tables()
    return [row for table in tables for row in table.to_pylist()]


def test_a_trade_happens_at_the_bid_or_ask_of_its_symbols_last_quote(market: list[dict[str, Any]]) -> None:
    quoted: dict[str, tuple[int, int]] = {}
    trades = 0
    for row in market:
        if row["kind"] == "quote":
            assert 0 < row["bid_price"] < row["ask_price"]
            assert row["bid_price"] % CENT == row["ask_price"] % CENT == 0
            assert row["bid_size"] > 0
            quoted[row["symbol"]] = row["bid_price"], row["ask_price"]
        else:
            trades += 1
            bid, ask = quoted[row["symbol"]]
            assert row["price"] == (ask if row["side"] == "B" else bid)
            assert row["size"] > 0
    assert 0.2 < trades / len(market) < 0.3


def test_activity_is_high_at_the_open_and_the_close_and_low_at_noon(market: list[dict[str, Any]]) -> None:
    events = np.array([row["event_at_ns"] for row in market])
    assert np.all(np.diff(events) >= 0)
    share = (events - events[0]) / (events[-1] - events[0])
    opening, noon, closing = (np.count_nonzero((share >= at) & (share < at + 0.05)) for at in (0.0, 0.45, 0.95))
    assert opening > 3 * noon
    assert closing > 1.5 * noon


def test_a_few_symbols_have_most_of_the_activity(market: list[dict[str, Any]]) -> None:
    counts: dict[str, int] = defaultdict(int)
    for row in market:
        counts[row["symbol"]] += 1
    busiest = sorted(counts.values(), reverse=True)
    assert sum(busiest[:40]) > 0.4 * len(market)
    assert len(counts) > 380


@given(st.integers(1, 3_000), st.integers(0, 1_000))
def test_tickers_are_unique_and_short_and_their_first_letters_cover_the_alphabet(count: int, seed: int) -> None:
    tickers = make_tickers(np.random.default_rng(seed), count)
    assert len(set(tickers)) == count
    assert all(1 <= len(ticker) <= 5 and ticker.isascii() and ticker.isupper() for ticker in tickers)
    assert len({ticker[0] for ticker in tickers}) == min(count, 26)


def test_the_same_seed_gives_the_same_ticks_for_any_file_size(tmp_path: Path) -> None:
    make_recording(tmp_path / "a", 2_500, 1_000, seed=3)
    make_recording(tmp_path / "b", 2_500, 300, seed=3)
    make_recording(tmp_path / "c", 2_500, 1_000, seed=4)
    assert _rows(tmp_path / "a") == _rows(tmp_path / "b") != _rows(tmp_path / "c")


def test_only_texts_have_dictionaries_and_what_ascends_is_stored_as_differences(tmp_path: Path) -> None:
    make_recording(tmp_path / "a", 900, 900)
    group = pq.read_metadata(tmp_path / "a" / "part-00000000.parquet").row_group(0)
    columns = {column.path_in_schema: column for column in map(group.column, range(group.num_columns))}
    texts = {field.name for field in SCHEMA if pa.types.is_string(field.type)}
    assert {name for name, column in columns.items() if column.has_dictionary_page} <= texts
    assert columns["symbol"].has_dictionary_page
    differences = {name for name, column in columns.items() if "DELTA_BINARY_PACKED" in column.encodings}
    assert differences == {"record_index", "event_at_ns"}


def test_the_order_of_files_survives_a_copy(tmp_path: Path) -> None:
    make_recording(tmp_path / "a", 900, 300)
    parts = sorted((tmp_path / "a").glob("part-*"))
    times = [part.stat().st_mtime_ns for part in parts]
    assert times == sorted(set(times))
    assert not restore_file_order(tmp_path / "a")
    for part in reversed(parts):
        part.touch()
    assert restore_file_order(tmp_path / "a")
    assert [part.stat().st_mtime_ns for part in parts] == times


def test_the_command_makes_recordings_and_explains_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "r")]
    assert ticks(["generate", "--messages", "500", "--symbols", "30", *out]) == 0
    assert '"record_count": 500' in capsys.readouterr().out
    assert Manifest.read(tmp_path / "r").record_count == 500
    assert ticks(["generate", "--messages", "500", *out]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert ticks(["ingest", str(tmp_path / "none.csv"), "--out", str(tmp_path / "s")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_real_quotes_from_csv_keep_every_digit(tmp_path: Path) -> None:
    file = shared_file("ticks/usdjpy-ticks.csv")
    manifest = ingest([file], tmp_path / "r", IngestOptions())
    assert manifest.price_conversion.startswith("decimal strings")
    rows = _rows(tmp_path / "r")
    with file.open() as lines:
        expected = list(csv.DictReader(lines))
    assert len(rows) == len(expected) == 1_000
    for row, line in zip(rows, expected, strict=True):
        assert (row["kind"], row["symbol"]) == ("quote", "USDJPY")
        assert row["bid_price"] == Decimal(line["bid"]) * 10**9
        assert row["ask_price"] == Decimal(line["ask"]) * 10**9
        assert row["event_at_ns"] == _milliseconds(datetime.fromisoformat(line["timestamp"])) * 10**6


def test_real_trades_from_parquet_are_rounded_to_nine_decimal_places(tmp_path: Path) -> None:
    file = shared_file("ticks/btcusdt-trades.parquet")
    manifest = ingest([file], tmp_path / "r", IngestOptions())
    assert (manifest.record_count, manifest.size_exponent) == (2_001, -6)
    for row, trade in zip(_rows(tmp_path / "r"), pq.read_table(file).to_pylist(), strict=True):
        assert (row["kind"], row["symbol"]) == ("trade", "BTCUSDT")
        assert row["price"] == round(Decimal(trade["price"]), 9) * 10**9
        assert row["size"] == round(Decimal(trade["quantity"]), 9) * 10**6
        assert row["side"] == ("A" if trade["buyer_maker"] == "True" else "B")
        assert row["event_at_ns"] == _milliseconds(trade["timestamp"]) * 10**6


def test_every_record_of_a_real_futures_file_is_kept(tmp_path: Path) -> None:
    file = shared_file("futures/esh4-glbx-mdp3-20231224.mbo.dbn.zst")
    ingest([file], tmp_path / "r", IngestOptions(), rows_per_file=1_000)
    rows = _rows(tmp_path / "r")
    raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(file.read_bytes()), read_across_frames=True).read()
    # Decoded without the product's decoder: after the metadata, the records are fixed structures.
    records = np.frombuffer(raw[8 + int.from_bytes(raw[4:8], "little") :], databento_dbn.MBOMsg._dtypes)
    assert len(rows) == len(records) == 8_725
    for row, record in zip(rows, records, strict=True):
        assert (row["kind"], row["symbol"]) == ("order", "ESH4")
        for field, dbn_field in (
            *(("event_at_ns", "ts_event"), ("received_at_ns", "ts_recv"), ("order_id", "order_id")),
            *(("price", "price"), ("size", "size"), ("sequence", "sequence"), ("received_delta_ns", "ts_in_delta")),
            *(("flags", "flags"), ("venue_channel", "channel_id")),
        ):
            assert row[field] == record[dbn_field]
        assert (row["action"], row["side"]) == (record["action"].decode(), record["side"].decode())


def test_null_prices_of_a_real_futures_file_reach_the_wire(tmp_path: Path) -> None:
    file = shared_file("futures/esh4-glbx-mdp3-20231224.mbo.dbn.zst")
    ingest([file], tmp_path / "r", IngestOptions())
    table = pq.read_table(tmp_path / "r" / "part-00000000.parquet")
    source_format = load_source_format(SOURCE_FORMAT)
    parts = TickEncoder(source_format, IN_TURN, 2).encode(table)
    by_stream = [part.data.view(source_format.messages["order"].dtype) for part in parts]
    orders = np.empty(8_725, by_stream[0].dtype)
    orders[0::2], orders[1::2] = by_stream
    assert orders["price"].tolist() == table.column("price").to_pylist()
    assert np.count_nonzero(orders["price"] == NULL_PRICE) == table.column("price").to_pylist().count(NULL_PRICE)
    assert set(orders["symbol"].tolist()) == {b"ESH4"}


WITH_VERSION_1 = ("mbo", "trades", "tbbo", "mbp-1", "mbp-10")
KINDS_OF_SCHEMA = {
    "mbo": ["order", "order"],
    "trades": ["trade", "trade"],
    "tbbo": ["quote", "trade", "quote", "trade"],
    "mbp-1": ["quote", "quote"],
    "mbp-10": ["quote", "quote"],
    "bbo-1s": ["quote"] * 4,
    "cmbp-1": ["quote", "quote"],
    "cbbo-1s": ["quote", "quote"],
}


@pytest.mark.parametrize("schema", KINDS_OF_SCHEMA)
@pytest.mark.parametrize("version", ["v2.dbn.zst", "v3.dbn.zst"])
def test_dbn_files_of_every_schema_with_ticks_are_read(tmp_path: Path, schema: str, version: str) -> None:
    version = "v1.dbn.zst" if version == "v2.dbn.zst" and schema in WITH_VERSION_1 else version
    ingest([shared_file(f"dbn/test_data.{schema}.{version}")], tmp_path / "r", IngestOptions())
    assert [row["kind"] for row in _rows(tmp_path / "r")] == KINDS_OF_SCHEMA[schema]


def changed_dbn(path: Path, schema: str, offset: int, value: bytes, of: Path | None = None) -> Path:
    """A real file, or another one, with other bytes in its first record."""
    raw = bytearray((of or shared_file(f"dbn/test_data.{schema}.dbn")).read_bytes())
    at = 8 + int.from_bytes(raw[4:8], "little") + offset
    raw[at : at + len(value)] = value
    path.write_bytes(raw)
    return path


def test_a_dbn_file_is_read_in_pieces_and_leaves_nothing_if_its_end_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shared_file("futures/esh4-glbx-mdp3-20231224.mbo.dbn.zst")
    ingest([file], tmp_path / "whole", IngestOptions(), rows_per_file=1_000)
    monkeypatch.setattr(dbn_reader, "TABLE_ROWS", 700)
    ingest([file], tmp_path / "pieces", IngestOptions(), rows_per_file=1_000)
    assert _rows(tmp_path / "pieces") == _rows(tmp_path / "whole")
    (tmp_path / "cut.dbn.zst").write_bytes(file.read_bytes()[:-1_000])
    with pytest.raises(RecordingError, match=r"cut\.dbn\.zst: not a complete DBN file"):
        ingest([tmp_path / "cut.dbn.zst"], tmp_path / "cut", IngestOptions(), rows_per_file=1_000)
    assert not (tmp_path / "cut").exists()


def test_a_trade_among_quotes_of_dbn_is_kept(tmp_path: Path) -> None:
    action_at = 16 + 8 + 4  # after header, price and size
    file = changed_dbn(tmp_path / "mbp.dbn", "mbp-1", action_at, b"T")
    ingest([file], tmp_path / "r", IngestOptions())
    trade, quote, other = _rows(tmp_path / "r")
    assert [each["kind"] for each in (trade, quote, other)] == ["trade", "quote", "quote"]
    assert trade["event_at_ns"] == quote["event_at_ns"]
    assert {"price", "size", "side", "flags"} <= trade.keys()
    assert "bid_price" in quote
    assert "price" not in quote


def test_undefined_times_of_dbn_are_null(tmp_path: Path) -> None:
    undefined = b"\xff" * 8
    ingest([changed_dbn(tmp_path / "received.dbn", "mbo", 40, undefined)], tmp_path / "a", IngestOptions())
    assert "received_at_ns" not in _rows(tmp_path / "a")[0]
    ingest([changed_dbn(tmp_path / "event.dbn", "mbo", 8, undefined)], tmp_path / "b", IngestOptions())
    row = _rows(tmp_path / "b")[0]
    assert row["event_at_ns"] == row["received_at_ns"], "the time of the receipt stands for it"
    file = changed_dbn(tmp_path / "both.dbn", "mbo", 8, undefined)
    file = changed_dbn(file, "mbo", 40, undefined, of=file)
    with pytest.raises(RecordingError, match="row 1: neither the event's time nor the time of its receipt"):
        ingest([file], tmp_path / "c", IngestOptions())


def test_words_for_no_value_may_be_tickers(tmp_path: Path) -> None:
    file = tmp_path / "ticks.csv"
    file.write_text("time,symbol,price,size\n1,NA,2.5,3\n2,NULL,2.5,3\n3,nan,NaN,3\n")
    ingest([file], tmp_path / "r", IngestOptions())
    rows = _rows(tmp_path / "r")
    assert [row["symbol"] for row in rows] == ["NA", "NULL", "nan"]
    assert [row["price"] for row in rows] == [2_500_000_000, 2_500_000_000, NULL_PRICE]


def test_symbols_of_options_and_crypto_are_read_and_encoded_as_long_as_the_format_allows(tmp_path: Path) -> None:
    names = ["SPXW  261218C06000000", "BTC-29DEC26-100000-C", "X"]
    file = tmp_path / "ticks.csv"
    file.write_text("time,symbol,price,size\n" + "".join(f"{at},{name},2.5,3\n" for at, name in enumerate(names)))
    ingest([file], tmp_path / "r", IngestOptions())
    assert [row["symbol"] for row in _rows(tmp_path / "r")] == names
    (tmp_path / "format.xml").write_text(SOURCE_FORMAT.read_text().replace('length="8"', 'length="24"'))
    source_format = load_source_format(tmp_path / "format.xml")
    (part,) = TickEncoder(source_format, IN_TURN, 1).encode(pq.read_table(tmp_path / "r" / "part-00000000.parquet"))
    trades = part.data.view(source_format.messages["trade"].dtype)
    assert trades["symbol"].tolist() == [name.encode() for name in names]


def test_an_unsupported_dbn_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="schema definition is not supported"):
        ingest([shared_file("dbn/test_data.definition.v3.dbn.zst")], tmp_path / "r", IngestOptions())
    broken = tmp_path / "broken.dbn"
    broken.write_bytes(b"not DBN at all, but long enough to look")
    with pytest.raises(RecordingError, match=r"broken\.dbn"):
        ingest([broken], tmp_path / "r", IngestOptions())


@given(st.decimals(min_value=-9_000_000_000, max_value=9_000_000_000, places=9))
def test_decimal_text_is_exact(number: Decimal) -> None:
    values = to_nine_digits(pa.array([f"{number:f}", None]), NULL_PRICE)
    assert values.tolist() == [int(number * 10**9), NULL_PRICE]


@given(st.floats(min_value=-9e9, max_value=9e9))
def test_floats_are_rounded_half_even_to_nine_decimal_places(number: float) -> None:
    values = to_nine_digits(pa.array([number]), NULL_PRICE)
    assert values.tolist() == [int(round(Decimal(number), 9) * 10**9)]


def test_invalid_numbers_are_refused_with_their_row() -> None:
    for text in ("1.0000000001", "9300000000", "abc"):
        with pytest.raises(BadValue) as refused:
            to_nine_digits(pa.array(["1", text]), NULL_PRICE)
        assert refused.value.row == 1


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("time,price,size\n1,2.5,x", r"t\.csv: row 1 \(line 2\), column 'size': 'x' is not a number"),
        (
            "time,price,size\n1,2.5,3\nnoon,2,3",
            r"row 2 \(line 3\), column 'time': 'noon' is neither an ISO 8601",
        ),
        ("when,price,size\n1,2.5,3", "no column found for event_at_ns of a trade .*--column event_at_ns=NAME"),
        (f"time,symbol,price,size\n1,{'X' * 65},2.5,3", "row 1.*'XXX.*'; it must be 1 to 64 bytes long"),
        ("time,price,size\n1,2.5,5000000000", "size 5000000000 is not a 32-bit multiple"),
    ],
)
def test_an_invalid_file_is_refused_with_row_and_column(tmp_path: Path, lines: str, expected: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(lines + "\n")
    with pytest.raises(RecordingError, match=expected):
        ingest([file], tmp_path / "r", IngestOptions())


def test_columns_and_symbol_can_be_chosen(tmp_path: Path) -> None:
    file = tmp_path / "made-up-long-name.csv"
    file.write_text("when,what,much,bid,ask\n1700000000,12.25,0.5,1,2\n")
    chosen = {"event_at_ns": "when", "price": "what", "size": "much"}
    ingest([file], tmp_path / "r", IngestOptions(kind="trade", symbol="ACME", columns=chosen))
    assert _rows(tmp_path / "r") == [
        {
            "record_index": 0,
            "kind": "trade",
            "symbol": "ACME",
            "event_at_ns": 1_700_000_000 * 10**9,
            "price": 12_250_000_000,
            "size": 5,
            "side": "N",
            "flags": 0,
        }
    ]


def test_a_value_out_of_range_for_its_field_is_refused_with_its_record(tmp_path: Path) -> None:
    make_recording(tmp_path / "r", 50, 50)
    table = pq.read_table(tmp_path / "r" / "part-00000000.parquet")
    sizes = [None if kind == "quote" else 1 << 40 for kind in table.column("kind").to_pylist()]
    place = SCHEMA.get_field_index("size")
    wrong = table.set_column(place, SCHEMA.field("size"), pa.array(sizes, pa.int64()))
    with pytest.raises(EncodingError, match=r"record \d+: trade.size is 1099511627776"):
        TickEncoder(load_source_format(SOURCE_FORMAT), BY_LETTER, 2).encode(wrong)
