"""A Spark session that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.spark_feed.numbering.driver.session import Spark, start_session
from tandemfeed.spark_feed.spark import register
from tests.spark_jvm import forget_ended_jvm


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """A session on two cores, to which the data sources are registered."""
    folder: Path = tmp_path_factory.mktemp("spark")
    forget_ended_jvm()
    session = start_session("local[2]", "512m", folder)
    register(session)
    yield session
    session.stop()
