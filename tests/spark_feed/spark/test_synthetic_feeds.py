"""Spark's own rate source as a feed source: what it makes comes back from the source journal."""

from __future__ import annotations

import time
from decimal import Decimal
from pathlib import Path

import pytest

from tandemfeed.spark_feed.journaling.committed_records import last_commit
from tandemfeed.spark_feed.numbering.driver.session import Spark
from tests.spark_feed.source_material import SOURCE_FORMAT

pytestmark = [pytest.mark.spark, pytest.mark.processes]
PATIENCE_S = 300.0
CLUSTER = (
    '[[feed]]\nfeed_id = 1\nname = "equities"\nsession = 20261121\n'
    "[[feed.source_stream]]\nsource_stream_id = 1\n[[feed.source_stream]]\nsource_stream_id = 2\n"
)
TICKS = (
    "concat('S', value % 50) as symbol", "timestamp as event_at_ns", "'N' as side", "0 as flags",
    "cast(100 + (value % 200) / 100 as decimal(20,9)) as price", "value % 900 + 1 as size",
)  # fmt: skip
ROWS = 300  # of a micro-batch


def committed_count(journal: Path) -> int:
    commit = last_commit(journal) if journal.is_dir() else None
    return commit.next_record_index if commit is not None else 0


def test_sparks_rate_source_is_a_synthetic_feed(spark: Spark, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    journal = tmp_path / "journal"
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    query = (
        rate.selectExpr(*TICKS)
        .writeStream.format("tandemfeed")
        .options(journal=str(journal), sourceFormat=str(SOURCE_FORMAT), message="trade", split="hash")
        .options(feedDescription=str(tmp_path / "cluster.toml"), checkpointLocation=str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        end_s = time.monotonic() + PATIENCE_S
        while committed_count(journal) < 2 * ROWS:
            assert query.isActive, query.exception()
            assert time.monotonic() < end_s, query.lastProgress
            time.sleep(0.1)
    finally:
        query.stop()
    options = {"sourceFormat": str(SOURCE_FORMAT), "message": "trade"}
    rows = spark.read.format("tandemfeed.source-journal").options(**options).load(str(journal)).collect()
    count = committed_count(journal)
    assert len(rows) == count
    expected = [
        (f"S{value % 50}", Decimal(100 + value % 200 / Decimal(100)), value % 900 + 1) for value in range(count)
    ]
    assert sorted((row.symbol, row.price, row.size) for row in rows) == sorted(expected)
