"""A Spark session that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.spark_feed.numbering.driver.session import Spark, start_session
from tandemfeed.spark_feed.spark import register


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """A session on two cores, to which the data sources are registered."""
    from pyspark import SparkContext  # takes a second, so import it only here

    folder: Path = tmp_path_factory.mktemp("spark")
    if (gateway := SparkContext._gateway) is not None and gateway.proc.poll() is not None:
        SparkContext._gateway = SparkContext._jvm = None  # its JVM, which another test of this process used, has ended
    session = start_session("local[2]", "512m", folder)
    register(session)
    yield session
    session.stop()
