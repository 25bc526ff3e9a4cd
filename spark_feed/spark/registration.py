"""Makes the data sources known to a Spark session by their names."""

from __future__ import annotations

from typing import Any

from tandemfeed.spark_feed.spark.journals.journal_source import JournalSource
from tandemfeed.spark_feed.spark.live.live_source import LiveSource
from tandemfeed.spark_feed.spark.source_journals.source_journal_source import SourceJournalSource

SOURCES = (JournalSource, SourceJournalSource, LiveSource)
# Without it, Spark refuses a reader that takes filters.
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: Any) -> None:
    """Register the formats of this package with a session.

    Args:
        spark: a `SparkSession`.
    """
    spark.conf.set(PUSH_DOWN, "true")
    for source in SOURCES:
        spark.dataSource.register(source)
