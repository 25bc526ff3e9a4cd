"""`format("tandemfeed.ticks")` in Spark: a folder of files as a table, and as a stream that continues."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tandemfeed.spark_feed.numbering.driver.session import Spark
from tests.real_data import shared_file

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.long]
ITCH = {"format": "itch50", "message": "addOrder"}
ORDERS = 367  # in the file


def test_a_folder_of_itch_files_is_a_table_and_a_stream_that_continues(spark: Spark, tmp_path: Path) -> None:
    file, folder = shared_file("itch50/12302019_SNIPPET.NASDAQ_ITCH50"), tmp_path / "days"
    folder.mkdir()
    shutil.copy(file, folder / "one.itch")
    table = spark.read.format("tandemfeed.ticks").options(**ITCH).load(str(folder))
    assert table.where("price > 0").count() == ORDERS
    stocks = {row.stock: row["count"] for row in table.groupBy("stock").count().collect()}
    assert sum(stocks.values()) == ORDERS
    assert all(stock == stock.strip() for stock in stocks)

    def continue_stream() -> int:
        """Take what is there now; returns the rows so far."""
        orders = spark.readStream.format("tandemfeed.ticks").options(**ITCH).load(str(folder))
        query = (
            orders.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "orders"))
        )
        query.awaitTermination()
        return int(spark.read.parquet(str(tmp_path / "orders")).count())

    assert continue_stream() == ORDERS
    for name in ("two.itch", "three.itch"):
        shutil.copy(file, folder / name)
    assert continue_stream() == 3 * ORDERS


def test_rows_of_a_capture_have_the_venues_stream_and_number(spark: Spark) -> None:
    options = {"format": "iex", "message": "quoteUpdate"}
    table = spark.read.format("tandemfeed.ticks").options(**options).load(str(shared_file("iex/TOPS16.pcapng.gz")))
    assert table.columns[:2] == ["venue_stream", "venue_seq"]
    (stream,) = table.select("venue_stream").distinct().collect()
    assert stream.venue_stream == "0x8003/1/1137508352"
    assert table.select("venue_seq").distinct().count() == table.count()
    assert table.where("venue_seq between 1 and 57674").count() == table.count()
