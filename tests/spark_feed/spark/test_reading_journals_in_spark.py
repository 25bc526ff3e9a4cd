"""`spark.read.format("tandemfeed.journal")` in a Spark session."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from tandemfeed.spark_feed.numbering.driver.session import Spark
from tests.spark_feed.spark.output_material import MODEL_FILE, journal_of, plain_packets, price_of

pytestmark = [pytest.mark.spark, pytest.mark.processes]


def test_a_journal_is_a_table_in_sql(spark: Spark, tmp_path: Path) -> None:
    journal_of(tmp_path, plain_packets(1_000))
    trades = (
        spark.read.format("tandemfeed.journal").option("model", str(MODEL_FILE)).option("message", "TradeTick")
    ).load(str(tmp_path))
    assert dict(trades.dtypes) == dict(trades.dtypes) | {
        "message_seq": "bigint", "symbol": "string", "price": "decimal(20,9)", "eventAt": "timestamp",
        "received_at": "timestamp", "size": "bigint", "dayVolume": "decimal(20,0)",
    }  # fmt: skip
    trades.createOrReplaceTempView("trades")
    (row,) = spark.sql(
        "select count(*) n, sum(price) total, min(message_seq) low, max(source_seq) high from trades "
        "where symbol = 'IBM' and message_seq between 100 and 900 and eventAt >= '2026-01-01' and price > 1.0"
    ).collect()
    chosen = [seq for seq in range(1, 1_000, 2) if seq % 3 == 1 and 100 <= seq <= 900 and price_of(seq) > 10**9]
    assert (row.n, row.total) == (len(chosen), Decimal(sum(map(price_of, chosen))).scaleb(-9))
    assert (row.low, row.high) == (chosen[0], 100 + chosen[-1])
    plan = trades.where("symbol = 'IBM' and price > 1.0")._jdf.queryExecution().toString()
    left = plan[plan.index("Physical Plan") :]
    assert "price" in left
    assert "IBM)" not in left[left.index("Filter") : left.index("BatchScan")], left


def test_a_users_schema_and_the_option_columns_choose_columns(spark: Spark, tmp_path: Path) -> None:
    journal_of(tmp_path, plain_packets(10))
    quotes = spark.read.format("tandemfeed.journal").options(model=str(MODEL_FILE), message="QuoteTick")
    chosen = quotes.option("columns", "message_seq, channel_id").load(str(tmp_path))
    assert chosen.columns == ["message_seq", "channel_id"]
    assert [row.message_seq for row in chosen.collect()] == [2, 4, 6, 8]
    assert chosen.where("channel_id = 9").count() == 0  # no task at all
    prices = quotes.schema("bidPrice decimal(20,9)").load(str(tmp_path))
    assert [row.bidPrice for row in prices.collect()] == [Decimal(price_of(seq)).scaleb(-9) for seq in (2, 4, 6, 8)]
