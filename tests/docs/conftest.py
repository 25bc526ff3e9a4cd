"""The cluster that pages need: the one that a reader of docs/cluster.md starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.reader import Reader


@pytest.fixture(scope="session")
def cluster_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the cluster, which runs until the last test has ended."""
    folder = tmp_path_factory.mktemp("cluster")
    with Reader(folder / "checkout", folder / "bin") as reader:
        for block in blocks_of(ROOT / "docs" / "cluster.md"):
            if failure := reader.failure(block):
                pytest.fail(failure)
        yield reader.shell.folder
