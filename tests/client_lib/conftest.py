"""A toy cluster for each test; see toy_cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client_lib.toy_cluster import ToyCluster


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    """A running toy cluster."""
    toy = ToyCluster()
    yield toy
    toy.close()
