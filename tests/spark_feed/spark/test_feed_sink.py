"""`df.writeStream.format("tandemfeed")`: rows of a query become source messages, once for each batch id."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.spark_feed.journaling.end_session import end_session
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.numbering.driver.session import Spark
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.sink.feed_sink import FeedWriter, feed_writer
from tests.spark_feed.source_material import (
    FEED,
    SOURCE_FORMAT,
    assert_gapless,
    frames_in,
    packets_of,
    stream_records_of,
)

CLUSTER = (
    '[[feed]]\nfeed_id = 1\nname = "equities"\nsession = 20261121\n'
    "[[feed.source_stream]]\nsource_stream_id = 1\n[[feed.source_stream]]\nsource_stream_id = 2\n"
)
AT = datetime(2026, 11, 21, 14, 30, 0, 123_456, UTC)
SCHEMA = pa.schema(
    [
        ("symbol", pa.string()),
        ("event_at_ns", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(20, 9)),
        ("size", pa.int64()),
        ("side", pa.string()),
        ("flags", pa.int32()),
    ]
)
Row = dict[str, Any]


def trade(number: int, **changed: object) -> Row:
    """A trade whose size is its number."""
    return {
        "symbol": "AAPL" if number % 2 else "XEL", "event_at_ns": AT, "price": Decimal("-1.000000001"), "size": number,
        "side": "B", "flags": 3, **changed,
    }  # fmt: skip


def writer_of(folder: Path, schema: pa.Schema = SCHEMA, **options: str) -> FeedWriter:
    (folder / "cluster.toml").write_text(CLUSTER)
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    if not (checkpoint / "metadata").exists():
        (checkpoint / "metadata").write_text(json.dumps({"id": "query-1"}))
    given = {
        "journal": str(folder / "journal"), "sourceFormat": str(SOURCE_FORMAT), "message": "trade",
        "feedDescription": f"{folder / 'cluster.toml'}#equities", "checkpointLocation": str(checkpoint), **options,
    }  # fmt: skip
    return feed_writer(given, from_arrow_schema(schema))


def take_batch(writer: FeedWriter, batch_id: int, *tasks: Sequence[Row], schema: pa.Schema = SCHEMA) -> None:
    """What Spark does with a micro-batch of these tasks' rows."""
    batches = [pa.RecordBatch.from_pylist(list(rows), schema) for rows in tasks]
    writer.commit([writer.write(iter([batch])) for batch in batches], batch_id)


def sizes_in(journal: Path) -> list[int]:
    """The sizes of the trades in a source journal, in sending order."""
    message = load_source_format(SOURCE_FORMAT).messages["trade"]
    frames = [frame for packet in packets_of(journal) for frame in frames_in(packet)]
    return [int(np.frombuffer(frame, message.dtype)["size"][0]) for frame in frames]


def test_rows_become_source_messages_with_exact_values(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    take_batch(writer, 0, [trade(1), trade(2)], [trade(3)])
    packets = packets_of(tmp_path / "journal")
    assert assert_gapless(packets) == {1: 2, 2: 1}
    frame = frames_in(next(packet for packet in packets if packet.source_stream_id == 1))[0]
    row = np.frombuffer(frame, load_source_format(SOURCE_FORMAT).messages["trade"].dtype)[0]
    assert (row["symbol"], row["price"], row["size"]) == (b"AAPL", -1_000_000_001, 1)
    assert row["event_at_ns"] == int(AT.timestamp()) * 10**9 + 123_456_000


def test_a_batch_that_spark_commits_again_is_in_the_journal_once(tmp_path: Path) -> None:
    for batch_id, rows in ((0, [trade(1)]), (0, [trade(1)]), (1, [trade(3)]), (1, [trade(3)]), (2, [])):
        take_batch(writer_of(tmp_path), batch_id, rows)
    assert sizes_in(tmp_path / "journal") == [1, 3]


def test_a_commit_that_died_is_completed_with_its_own_rows_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception):
        """In place of the process."""

    def die(*_: object) -> None:
        raise Died

    take_batch(writer_of(tmp_path), 0, [trade(1)])
    with monkeypatch.context() as dying:
        dying.setattr(SourceJournalWriter, "commit", die)  # after the packets were appended
        with pytest.raises(Died):
            take_batch(writer_of(tmp_path), 1, [trade(3)], [trade(5), trade(7)])
    appended = stream_records_of(tmp_path / "journal")
    with pytest.raises(SourceJournalError, match="micro-batch 1 of its query is half committed"):
        end_session(tmp_path / "journal")
    take_batch(writer_of(tmp_path), 1, [trade(7), trade(5)], [trade(3)])
    assert stream_records_of(tmp_path / "journal") == appended
    assert sizes_in(tmp_path / "journal") == [1, 3, 5, 7]
    take_batch(writer_of(tmp_path), 2, [trade(9)])
    assert sizes_in(tmp_path / "journal") == [1, 3, 5, 7, 9]
    assert not list((tmp_path / "journal").glob("pending*"))


def test_bad_rows_go_to_the_quarantine_table_with_batch_row_and_reason(tmp_path: Path) -> None:
    known = tmp_path / "symbols"
    known.write_text("AAPL\nXEL\n")
    bad = [
        trade(2, price=Decimal("99999999999.5")), trade(3, size=-1), trade(4, symbol="OTHER"), trade(5, symbol=None),
    ]  # fmt: skip
    writer = writer_of(tmp_path, symbols=str(known))
    take_batch(writer, 0, [trade(1)], bad[:2], [*bad[2:], trade(7)])
    assert sizes_in(tmp_path / "journal") == [1, 7]
    rows = pq.read_table(tmp_path / "journal" / "quarantine").to_pylist()
    assert [(row["file"], row["row"]) for row in rows] == [("batch-0", place) for place in (1, 2, 3, 4)]
    assert [row["reason"].split(";")[0] for row in rows] == [
        "price is 99999999999.500000000, which the source format cannot hold",
        "size is -1",
        "the symbol 'OTHER' is unknown",
        "symbol is null",
    ]
    assert json.loads(rows[1]["record"])["size"] == -1


def test_decimals_with_more_places_than_the_format_are_refused_and_floats_rounded(tmp_path: Path) -> None:
    places = pa.schema([field.with_type(pa.decimal128(20, 12)) if field.name == "price" else field for field in SCHEMA])
    writer = writer_of(tmp_path, places)
    rows = [trade(1, price=Decimal("0.000000001000")), trade(3, price=Decimal("0.000000001001"))]
    take_batch(writer, 0, rows, schema=places)
    assert sizes_in(tmp_path / "journal") == [1]
    floats = pa.schema([field.with_type(pa.float64()) if field.name == "price" else field for field in SCHEMA])
    rows = [trade(5, price=0.1), trade(7, price=float("nan"))]
    take_batch(writer_of(tmp_path, floats), 1, rows, schema=floats)
    assert sizes_in(tmp_path / "journal") == [1, 5]


def test_a_lost_checkpoint_is_refused_because_batches_would_be_taken_for_old_ones(tmp_path: Path) -> None:
    take_batch(writer_of(tmp_path), 0, [trade(1)])
    (tmp_path / "checkpoint" / "metadata").write_text(json.dumps({"id": "query-2"}))
    with pytest.raises(SourceJournalError, match=r"recording was 'query-1', is 'query-2'.*new journal"):
        take_batch(writer_of(tmp_path), 0, [trade(3)])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"journal": ""}, "option 'journal' is missing"),
        ({"message": "swap"}, "the source format's messages are trade, quote, order"),
        ({"message": "quote"}, "no columns ask_price, ask_size, bid_price, bid_size"),
        ({"split": "index"}, "a query's rows have no order of their own"),
        ({"split": "ranges:A,B"}, "2 source streams need 1 values"),
        ({"checkpointLocation": "nowhere"}, "must be a folder of this host"),
    ],
)
def test_options_and_columns_that_cannot_be_used_are_refused(tmp_path: Path, options: Row, text: str) -> None:
    with pytest.raises(TableError, match=text):
        writer_of(tmp_path, **options)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_query_writes_each_row_once_over_restarts(spark: Spark, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    rows = spark.range(0, 0).select("id")
    for part in range(2):
        numbers = spark.range(part * 300, part * 300 + 300)
        numbers.write.mode("append").parquet(str(tmp_path / "rows"))
        query = (
            spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
            .selectExpr(
                "case when id % 2 = 0 then 'AAPL' else 'XEL' end symbol", "current_timestamp() event_at_ns",
                "cast(id as decimal(20,9)) price", "id size", "'B' side", "0 flags",
            )
            .writeStream.format("tandemfeed")
            .options(journal=str(tmp_path / "journal"), sourceFormat=str(SOURCE_FORMAT), message="trade")
            .option("feedDescription", f"{tmp_path / 'cluster.toml'}#equities")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        planned = ("metadata", f"offsets/{part}", f"sources/0/{part}")  # what `flush_planned` flushes
        assert all((tmp_path / "checkpoint" / name).is_file() for name in planned)
    assert sorted(sizes_in(tmp_path / "journal")) == list(range(600))
    assert sum(assert_gapless(packets_of(tmp_path / "journal")).values()) == 600
    plan, next_source_seqs = end_session(tmp_path / "journal")
    assert plan.feed.name == FEED.name
    assert sum(next_source_seqs.values()) == 600 + len(FEED.source_stream_ids)
