"""Writes bars into folders of Parquet files, a folder for each day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandemfeed.spark_feed.bars.bars import DataFrame

DAY = "day"


def write_bars(bars: DataFrame, out: Path) -> None:
    """Write the bars of a journal into a new folder.

    Raises:
        FileExistsError: the folder has bars already.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists already; give a new folder, or remove it")
    _with_day(bars).coalesce(1).write.partitionBy(DAY).parquet(str(out))


def start_bars(bars: DataFrame, out: Path, checkpoint: Path, *, until_idle: bool = False) -> Any:
    """Start the query that adds each bar of a stream when it is complete; returns it.

    Args:
        until_idle: end when what is there now is taken, instead of following the stream.
    """
    writer = _with_day(bars).writeStream.format("parquet").outputMode("append").partitionBy(DAY)
    writer = writer.option("path", str(out)).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if until_idle else writer).start()


def _with_day(bars: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return bars.withColumn(DAY, f.to_date("begin_at"))
