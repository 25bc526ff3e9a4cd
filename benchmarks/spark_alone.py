"""What Spark does alone, as it comes, with the rows of `bench spark`: a scan and a rewrite to Parquet, on one
core and on two.

A process of its own, because the source job's JVM has other options.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil

from tandemfeed.spark_feed.numbering.driver.java import find_java_home

REPEATS = 4  # the last ones are warm


def main(folder: Path) -> None:
    """Print the shortest times as JSON, by the session's master."""
    os.environ["JAVA_HOME"] = str(find_java_home())
    print(json.dumps({master: _times(folder, master) for master in ("local[1]", "local[2]")}))


def _times(folder: Path, master: str) -> dict[str, float]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    rows = spark.read.parquet(str(folder / "recording" / "part-*.parquet"))
    plain = spark.read.parquet(str(folder / "plain.parquet"))
    scans, plain_scans, rewrites, rewrites_cpu = [], [], [], []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        scans.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        plain.write.format("noop").mode("overwrite").save()
        plain_scans.append(time.perf_counter() - began_s)
        began_s, began_cpu_s = time.perf_counter(), tree_cpu_s()
        rows.write.mode("overwrite").parquet(str(folder / "rewritten"))
        rewrites.append(time.perf_counter() - began_s)
        rewrites_cpu.append(tree_cpu_s() - began_cpu_s)
    spark.stop()
    return {
        "scan_s": min(scans),
        "plain_scan_s": min(plain_scans),
        "rewrite_s": min(rewrites),
        "rewrite_cpu_s": min(rewrites_cpu),
    }


def tree_cpu_s() -> float:
    """Processor time of this process and all below it: the JVM and the Python workers."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
