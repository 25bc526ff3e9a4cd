"""`spark.read.format("tandemfeed.source-journal")`: the committed messages of a source journal, as a table."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tandemfeed.spark_feed.numbering.driver.session import Spark
from tandemfeed.spark_feed.recordings.recording import NULL_PRICE
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.source_journals.source_journal_source import SourceJournalSource
from tests.spark_feed.source_material import FEED, SOURCE_FORMAT, journal_without_spark, make_recording

pytestmark = [pytest.mark.spark, pytest.mark.processes]
COUNT = 4_000


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source journal, beside its recording."""
    folder: Path = tmp_path_factory.mktemp("source-tables")
    make_recording(folder / "recording", COUNT, 1_000)
    journal_without_spark(folder / "recording", folder / "journal")
    return folder / "journal"


def recorded(journal: Path, kind: str) -> list[dict[str, Any]]:
    rows = pq.read_table(journal.parent / "recording").to_pylist()
    return [row for row in rows if row["kind"] == kind]


def test_a_source_journal_is_a_table_in_sql(spark: Spark, journal: Path) -> None:
    options = {"sourceFormat": str(SOURCE_FORMAT), "message": "trade"}
    table = spark.read.format("tandemfeed.source-journal").options(**options).load(str(journal))
    assert dict(table.dtypes) == {
        "source_stream_id": "int", "source_seq": "bigint", "session": "int", "symbol": "string",
        "event_at_ns": "timestamp", "price": "decimal(20,9)", "size": "bigint", "side": "string", "flags": "smallint",
    }  # fmt: skip
    rows, expected = table.collect(), recorded(journal, "trade")
    assert len(rows) == len(expected)
    assert {row.session for row in rows} == {FEED.session}
    assert len({(row.source_stream_id, row.source_seq) for row in rows}) == len(rows)
    found = sorted((row.symbol, row.price, row.size) for row in rows)
    assert found == sorted((each["symbol"], Decimal(each["price"]).scaleb(-9), each["size"]) for each in expected)
    few = table.where("source_stream_id = 2 and source_seq between 10 and 200 and price > 1")
    chosen = [row for row in rows if row.source_stream_id == 2 and 10 <= row.source_seq <= 200 and row.price > 1]
    assert sorted(row.source_seq for row in few.collect()) == sorted(row.source_seq for row in chosen)
    assert table.where("source_stream_id = 7").count() == 0


def test_nulls_nanoseconds_and_columns(journal: Path) -> None:
    source = SourceJournalSource({"sourceFormat": str(SOURCE_FORMAT), "message": "quote", "path": str(journal),
                                  "times": "nanoseconds", "columns": "source_seq, event_at_ns, bid_price"})  # fmt: skip
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    found = sorted((row["event_at_ns"], row["bid_price"]) for batch in batches for row in batch.to_pylist())
    expected = sorted(
        (row["event_at_ns"], None if row["bid_price"] == NULL_PRICE else Decimal(row["bid_price"]).scaleb(-9))
        for row in recorded(journal, "quote")
    )
    assert found == expected


def test_wrong_folders_and_messages_are_refused(journal: Path, tmp_path: Path) -> None:
    source = SourceJournalSource({"sourceFormat": str(SOURCE_FORMAT), "path": str(journal)})
    with pytest.raises(TableError, match=r"option 'message' is missing; .*trade, quote, order"):
        source.schema()
    trades = SourceJournalSource({"sourceFormat": str(SOURCE_FORMAT), "message": "trade", "path": str(tmp_path)})
    with pytest.raises(TableError, match="has no commit"):
        trades.reader(trades.schema()).partitions()
