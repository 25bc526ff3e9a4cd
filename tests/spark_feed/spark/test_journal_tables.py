"""An output journal as a table, without Spark's JVM: what the tasks read, and what filters leave out."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, Not
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.client_lib.messages.sbe_writing import SbeWriter
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE, OutputFlag, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.journal import Journal
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.journals import journal_scan
from tandemfeed.spark_feed.spark.journals.journal_source import JournalSource
from tests.feedcore.sbe.sbe_material import ORDERS
from tests.spark_feed.spark.output_material import (
    BLOCK,
    FIRST_EVENT_NS,
    MODEL_FILE,
    SESSION,
    journal_of,
    packet,
    plain_packets,
    price_of,
)

Row = dict[str, Any]


def read(journal: Path, *filters: Filter, message: str = "TradeTick", **options: str) -> tuple[list[Row], list[Filter]]:
    """(the rows of the table, the filters that stay with Spark)."""
    source = JournalSource({"path": str(journal), "model": str(MODEL_FILE), "message": message, **options})
    reader = source.reader(source.schema())
    left = list(reader.pushFilters(list(filters)))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()], left


def seqs(journal: Path, *filters: Filter, **options: str) -> list[int]:
    """The numbers of the messages that the filters leave."""
    rows, left = read(journal, *filters, **options)
    assert not left
    return [row["message_seq"] for row in rows]


def test_each_message_is_a_row_with_its_numbers_and_fields(tmp_path: Path) -> None:
    rows, _ = read(journal_of(tmp_path, plain_packets(20)))
    assert [row["message_seq"] for row in rows] == list(range(1, 20, 2))
    first = rows[0]
    assert (first["source_stream_id"], first["source_seq"], first["channel_id"]) == (1, 101, 1)
    assert (first["session"], first["epoch"]) == (SESSION, 1)
    assert first["price"] == Decimal(price_of(1)).scaleb(-9)
    assert first["price"] < 0
    assert (first["symbol"], first["side"], first["size"]) == ("IBM", "B", 4_000_000_000)
    assert first["dayVolume"] == (1 << 64) - 1
    assert first["eventAt"] == datetime.fromtimestamp(FIRST_EVENT_NS // 10**9, UTC).replace(microsecond=1_000)
    assert rows[2] == rows[2] | {"message_seq": 5, "source_stream_id": 2, "source_seq": 105}


def test_times_are_integers_of_nanoseconds_if_the_user_prefers(tmp_path: Path) -> None:
    rows, _ = read(journal_of(tmp_path, plain_packets(4)), times="nanoseconds", columns="eventAt,source_sent_at")
    assert rows[0] == {"eventAt": FIRST_EVENT_NS + 1_000_000, "source_sent_at": 1_790_000_000_000_000_000}


def test_a_time_that_the_source_did_not_give_is_null(tmp_path: Path) -> None:
    rows, _ = read(journal_of(tmp_path, [packet(1, (1,), sent_ns=0)]))
    assert rows[0]["source_sent_at"] is None


def test_what_a_newer_epoch_numbered_again_is_in_the_table_once(tmp_path: Path) -> None:
    packets = [*plain_packets(20), packet(14, (3, 3), epoch=2), packet(20, (4,), epoch=2)]
    rows, _ = read(journal_of(tmp_path, packets))
    assert [(row["message_seq"], row["epoch"]) for row in rows] == [
        *((seq, 1) for seq in range(1, 14, 2)),
        *((seq, 2) for seq in range(15, 24, 2)),
    ]


def test_a_provisional_packet_counts_once_it_is_committed(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    journal.append(packet(1, (5,)))
    for first in (6, 9):
        journal.append(packet(first, (3,), flags=OutputFlag.PROVISIONAL))
    journal.commit_provisional(1, 7, 6, 13, SESSION)
    journal.append(packet(11, (2,), epoch=8))  # replaces the end of the second one
    journal.append(packet(13, (3,), flags=OutputFlag.PROVISIONAL))
    journal.close()
    rows, _ = read(tmp_path)
    assert [(row["message_seq"], row["epoch"]) for row in rows] == [(1, 1), (3, 1), (5, 1), (7, 7), (9, 7), (11, 8)]


def test_a_slice_belongs_to_one_channel_and_has_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_scan, "SLICE_MESSAGES", 24)
    monkeypatch.setattr(journal_scan, "SCAN_COUNT", 8)
    pairs = zip(plain_packets(100), plain_packets(100, channel=2), strict=True)
    journal_of(tmp_path, [each for pair in pairs for each in pair])
    slices = journal_scan.plan_slices(tmp_path)
    assert {part.channel_id for part in slices} == {1, 2}
    assert len(slices) > 6
    rows, _ = read(tmp_path)
    for channel in (1, 2):
        assert [row["message_seq"] for row in rows if row["channel_id"] == channel] == list(range(1, 100, 2))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([GreaterThanOrEqual(("message_seq",), 7), LessThan(("message_seq",), 12)], [7, 9, 11]),
        ([EqualTo(("symbol",), "IBM")], [1, 7, 13, 19, 25]),
        ([In(("symbol",), ("IBM", "none", None)), GreaterThan(("message_seq",), 8)], [13, 19, 25]),
        ([EqualTo(("source_stream_id",), 2), EqualTo(("channel_id",), 1)], [5, 11, 17, 23, 29]),
        ([EqualTo(("channel_id",), 2)], []),
        ([EqualTo(("size",), 4_000_000_000), LessThan(("source_seq",), 104)], [1, 3]),
        ([GreaterThan(("dayVolume",), Decimal(-1)), LessThan(("message_seq",), 4)], [1, 3]),
        ([IsNotNull(("symbol",)), LessThan(("message_seq",), 2)], [1]),
        ([GreaterThan(("received_at",), datetime(2100, 1, 1, tzinfo=UTC))], []),
    ],
)
def test_filters_are_evaluated_before_rows_become_columns(
    tmp_path: Path, filters: list[Filter], expected: object
) -> None:
    assert seqs(journal_of(tmp_path, plain_packets(31))) == list(range(1, 31, 2))
    assert seqs(tmp_path, *filters) == expected


def test_a_time_is_compared_as_spark_shows_it(tmp_path: Path) -> None:
    journal_of(tmp_path, plain_packets(10))
    shown = read(tmp_path)[0][2]["eventAt"]  # of message 5, cut to microseconds
    assert seqs(tmp_path, EqualTo(("eventAt",), shown)) == [5]
    assert seqs(tmp_path, GreaterThan(("eventAt",), shown)) == [7, 9]
    assert seqs(tmp_path, LessThan(("eventAt",), shown)) == [1, 3]


def test_filters_that_numpy_cannot_evaluate_exactly_stay_with_spark(tmp_path: Path) -> None:
    journal_of(tmp_path, plain_packets(10))
    filters: list[Filter] = [
        EqualTo(("price",), Decimal(1)),
        Not(EqualTo(("symbol",), "IBM")),
        EqualTo(("symbol",), "Ä"),
        datasource.StringStartsWith(("symbol",), "I"),
        EqualTo(("source_sent_at",), datetime(2026, 1, 1, tzinfo=UTC)),
    ]
    rows, left = read(tmp_path, *filters)
    assert left == filters
    assert len(rows) == 5


def test_slices_without_a_wanted_number_or_time_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_scan, "SLICE_MESSAGES", 24)
    monkeypatch.setattr(journal_scan, "SCAN_COUNT", 4)
    journal_of(tmp_path, plain_packets(100))
    source = JournalSource({"path": str(tmp_path), "model": str(MODEL_FILE), "message": "QuoteTick"})
    reader = source.reader(source.schema())
    assert len(reader.partitions()) == 5
    assert not list(reader.pushFilters([EqualTo(("message_seq",), 50)]))
    (part,) = reader.partitions()
    assert [row["bidPrice"] for batch in reader.read(part) for row in batch.to_pylist()] == [Decimal("0.47")]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"message": ""}, "choose one of TradeTick, QuoteTick, OrderEvent"),
        ({"message": "Trade"}, "option 'message' is 'Trade'"),
        ({"times": "ms"}, "must be one of timestamp, nanoseconds"),
        ({"damaged": "yes"}, "must be one of fail, skip"),
        ({"columns": "price, volume"}, "no column 'volume'; the columns are message_seq"),
        ({"model": ""}, "option 'model' is missing"),
        ({"path": "nowhere"}, "nowhere: no such folder"),
    ],
)
def test_options_that_cannot_be_used_are_refused_with_what_to_do(tmp_path: Path, options: Row, text: str) -> None:
    journal_of(tmp_path, plain_packets(4))
    with pytest.raises(TableError, match=text):
        read(tmp_path, **options)


def test_the_columns_of_a_users_schema_must_exist_with_these_types(tmp_path: Path) -> None:
    source = JournalSource({"path": str(tmp_path), "model": str(MODEL_FILE), "message": "TradeTick"})
    with pytest.raises(TableError, match=r"column price is decimal\(20,9\), not bigint"):
        source.reader(StructType([StructField("price", LongType())]))
    with pytest.raises(TableError, match="no column 'volume'"):
        source.reader(StructType([StructField("volume", LongType())]))


def test_a_damaged_journal_is_refused_unless_the_user_accepts_gaps(tmp_path: Path) -> None:
    journal_of(tmp_path, plain_packets(400))
    (block,) = tmp_path.glob("*.tfj")
    data = bytearray(block.read_bytes())
    place = data.index(b"IBM\0\0\0\0\0", len(data) // 8)
    data[place] ^= 1
    block.write_bytes(data)
    with pytest.raises(TableError, match="damaged records"):
        read(tmp_path)
    assert 180 < len(seqs(tmp_path, damaged="skip")) < 200


def test_a_folder_with_another_journal_is_refused(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append(b"something else")
    with pytest.raises(TableError, match="has no output packets"):
        read(tmp_path)


def test_a_message_that_an_older_model_wrote_is_refused(tmp_path: Path) -> None:
    journal_of(tmp_path, plain_packets(4))
    newer = tmp_path / "model.xml"
    newer.write_text(
        MODEL_FILE.read_text().replace(
            '<field name="vwap" id="10" type="Price"/>',
            '<field name="vwap" id="10" type="Price"/><field name="more" id="11" type="uint32" sinceVersion="0"/>',
        )
    )
    with pytest.raises(TableError, match=r"message 1 of channel 1.*older version of the model"):
        read(tmp_path, model=str(newer))


@pytest.mark.parametrize("message", ["TradeTick", "QuoteTick"])
def test_the_arrow_batches_have_exactly_the_types_that_spark_expects(tmp_path: Path, message: str) -> None:
    journal_of(tmp_path, plain_packets(20))
    source = JournalSource({"path": str(tmp_path), "model": str(MODEL_FILE), "message": message})
    reader = source.reader(source.schema())
    (batch,) = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert to_arrow_schema(source.schema(), timezone="UTC").equals(batch.schema)


def test_groups_are_lists_of_structures_and_enumerations_stay_as_they_were_sent(tmp_path: Path) -> None:
    values = {
        "OrderID": "O1", "ExecID": "X1", "ExecType": "Trade", "OrdStatus": "New", "Symbol": "ABC", "Side": "Buy",
        "MaturityMonthYear": {"year": 2026, "month": 6, "day": 30, "week": 1}, "TradeDate": 16_000, "LeavesQty": 1,
        "CumQty": 7,
    }  # fmt: skip
    fills = [{"FillPx": Decimal("123.456"), "FillQty": 2}, {"FillPx": None, "FillQty": 4}]
    writer = SbeWriter(load_message_model(ORDERS).schema)
    bodies = [writer.write("ExecutionReport", values | {"Fills": each}) for each in (fills, [])]
    frames = b"".join(OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(body), 0) + body for body in bodies)
    runs = (Run(1, 1, 1, 1, 1, 2, 2),)
    journal_of(tmp_path, [packet(1, (2,))._replace(payload=encode_runs(runs) + frames)])
    model = tmp_path / "orders.xml"
    model.write_bytes(ORDERS)
    rows, left = read(tmp_path, EqualTo(("Symbol",), "ABC"), message="ExecutionReport", model=str(model))
    assert len(left) == 1
    assert [row["Fills"] for row in rows] == [
        [{"FillPx": Decimal("123.456"), "FillQty": Decimal(2)}, {"FillPx": None, "FillQty": Decimal(4)}],
        [],
    ]
    assert rows[0]["MaturityMonthYear_month"] == 6
    assert rows[0]["ExecType"] == "F"
