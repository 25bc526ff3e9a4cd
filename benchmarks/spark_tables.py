"""How fast Spark, as it comes, reads an adapter's output journal as a table, on one core.

A process of its own, because the source job's JVM has other options.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.feedcore.documents.message_model import frame_dtype, frame_size, load_message_model
from tandemfeed.feedcore.wire.output_packet import OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.spark_feed.numbering.driver.java import find_java_home
from tandemfeed.spark_feed.spark import register

MESSAGE_COUNT = 2_000_000
PACKET_MESSAGES = 16
SYMBOL_COUNT = 3_000
REPEATS = 3  # the last ones are warm
MODEL = Path(__file__).parent.parent / "deploy" / "examples" / "ticks" / "message-model.xml"
QUERIES = {
    "journal_scan_msgs_per_s": {},
    "journal_scan_3_columns_msgs_per_s": {"columns": "symbol,eventAt,price"},
}
ONE_SYMBOL = "journal_scan_1_symbol_msgs_per_s"


def measure(folder: Path) -> dict[str, int]:
    """Messages per second, in all columns, in three, and looking for a symbol."""
    _write_journal(folder / "journal")
    command = [sys.executable, "-m", "tandemfeed.benchmarks.spark_tables", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {name: round(MESSAGE_COUNT / each) for name, each in seconds.items()}


def main(folder: Path) -> None:
    """Print the shortest times as JSON."""
    os.environ["JAVA_HOME"] = str(find_java_home())
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    register(spark)
    queries = {
        name: spark.read.format("tandemfeed.journal")
        .options(model=str(MODEL), message="TradeTick", **options)
        .load(str(folder / "journal"))
        for name, options in QUERIES.items()
    }
    queries[ONE_SYMBOL] = queries["journal_scan_msgs_per_s"].where("symbol = 'S7'")
    times: dict[str, float] = {}
    for _ in range(REPEATS):
        for name, query in queries.items():
            began_s = time.perf_counter()
            query.write.format("noop").mode("overwrite").save()
            times[name] = min(times.get(name, 1e9), time.perf_counter() - began_s)
    spark.stop()
    print(json.dumps(times))


def _write_journal(folder: Path) -> None:
    model = load_message_model(MODEL)
    message = model.schema.messages["TradeTick"]
    rows = np.zeros(SYMBOL_COUNT * PACKET_MESSAGES, frame_dtype(message, frame_size(message)))
    places = np.arange(len(rows))
    rows["frame_length"], rows["source_offset"] = rows.dtype.itemsize, places % PACKET_MESSAGES
    rows["blockLength"], rows["templateId"] = message.block_length, message.template_id
    rows["schemaId"] = model.schema.schema_id
    rows["symbol"] = [b"S%d" % (place % SYMBOL_COUNT) for place in range(len(rows))]
    rows["price"], rows["size"], rows["eventAt"] = places * 1_000_003, places, 1_790_000_000_000_000_000 + places
    journal = OutputJournal(folder)
    for first in range(0, MESSAGE_COUNT, PACKET_MESSAGES):
        start, seq = first % len(rows), first + 1
        runs = (Run(1, seq, seq, 1, seq, PACKET_MESSAGES, PACKET_MESSAGES),)
        payload = encode_runs(runs) + rows[start : start + PACKET_MESSAGES].tobytes()
        journal.append(OutputPacket(0, 1, 1, 1, 20261121, 1, seq, seq, PACKET_MESSAGES, runs, 0, 0, payload))
    journal.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
