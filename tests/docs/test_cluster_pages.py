"""The page that starts a cluster, and the code blocks of every page that needs one: it is the cluster of that page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import CLUSTER_PAGE, PAGES, ROOT, blocks_of, needs_cluster
from tests.docs.reader import Reader

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a cluster that a reader of docs/cluster.md started."""
    folder = tmp_path_factory.mktemp("cluster")
    with Reader(folder / "checkout", folder / "bin") as reader:
        for block in blocks_of(CLUSTER_PAGE):
            if failure := reader.failure(block):
                pytest.fail(failure)
        yield reader.shell.folder


@pytest.mark.parametrize(
    "page", [page for page in PAGES if needs_cluster(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_code_blocks_of_a_page_run_in_the_clusters_folder(page: Path, cluster_folder: Path, tmp_path: Path) -> None:
    with Reader(cluster_folder, tmp_path / "bin") as reader:
        failures = [failure for block in blocks_of(page) if (failure := reader.failure(block))]
    assert not failures, "\n\n".join(failures)
