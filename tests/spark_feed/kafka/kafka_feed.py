"""A user's Spark program, as docs/spark.md shows it: the messages of a Kafka topic become a source journal.

`kafka_feed.py send BROKER FIRST END` sends trades to the topic instead: JSON, numbered by their size.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tandemfeed.spark_feed.numbering.driver.session import Spark, start_session
from tandemfeed.spark_feed.spark import register
from tests.spark_feed.kafka.kafka_jars import connector_jars
from tests.spark_feed.source_material import SOURCE_FORMAT

TOPIC = "ticks"
SCHEMA = "symbol string, at timestamp, price decimal(20,9), size bigint"
BATCH_ROWS_MAX = 100


def send(spark: Spark, broker: str, first: int, end: int) -> None:
    """Send the trades with these sizes, in order."""
    trades = spark.range(first, end, 1, 1).selectExpr(
        "to_json(named_struct('symbol', concat('S', id % 5), 'at', current_timestamp(), "
        "'price', cast(id as decimal(20,9)) / 100, 'size', id)) as value"
    )
    trades.write.format("kafka").options(**{"kafka.bootstrap.servers": broker, "topic": TOPIC}).save()


def feed(spark: Spark, broker: str, folder: Path) -> None:
    """Append what the topic has to the source journal, until this process ends."""
    topic = {"kafka.bootstrap.servers": broker, "subscribe": TOPIC, "startingOffsets": "earliest"}
    ticks = (
        spark.readStream.format("kafka")
        .options(**topic, maxOffsetsPerTrigger=BATCH_ROWS_MAX)
        .load()
        .selectExpr(f"from_json(cast(value as string), '{SCHEMA}') as tick")
        .selectExpr("tick.symbol", "tick.at as event_at_ns", "tick.price", "tick.size", "'N' as side", "0 as flags")
    )
    query = (
        ticks.writeStream.format("tandemfeed")
        .options(journal=str(folder / "journal"), sourceFormat=str(SOURCE_FORMAT), message="trade")
        .options(feedDescription=str(folder / "cluster.toml"), split="hash")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.awaitTermination()


def _run(task: str, broker: str, *arguments: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_session("local[1]", "512m", Path(scratch), jars=connector_jars())
        register(spark)
        if task == "send":
            send(spark, broker, int(arguments[0]), int(arguments[1]))
        else:
            feed(spark, broker, Path(arguments[0]))
        spark.stop()


if __name__ == "__main__":
    _run(*sys.argv[1:])
