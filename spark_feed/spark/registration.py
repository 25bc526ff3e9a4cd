"""Makes the data sources known to a Spark session by their names."""

from __future__ import annotations

from typing import Any

from tandemfeed.transport.entry_points import entry_points

SOURCES = "tandemfeed.spark_sources"  # the group of entry points; some sources are in packages that import this one
# Without it, Spark refuses a reader that takes filters.
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: Any) -> None:
    """Register the formats of this project with a session.

    Args:
        spark: a `SparkSession`.
    """
    spark.conf.set(PUSH_DOWN, "true")
    for source in entry_points(SOURCES).values():
        spark.dataSource.register(source.load())
