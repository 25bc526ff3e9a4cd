"""Every code block of every page runs, or is at least parsed by the code that reads it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from tandemfeed.deploy.report import print_report
from tests.docs.blocks import PAGES, ROOT, blocks_of
from tests.docs.reader import Reader

CLUSTER_PAGE = ROOT / "docs" / "cluster.md"
WITH_BLOCKS = [page for page in PAGES if "```" in page.read_text()]


@pytest.mark.processes
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_blocks_of_a_page_run(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    blocks = blocks_of(page)
    needs_cluster = any("needs cluster" in block.directives for block in blocks)
    is_of_cluster = page == CLUSTER_PAGE or needs_cluster
    folder = request.getfixturevalue("cluster_folder") if is_of_cluster else tmp_path / "checkout"
    if page == CLUSTER_PAGE:
        return  # the cluster runs, so its page is right
    with Reader(folder, tmp_path / "bin") as reader:
        failures = [failure for block in blocks if (failure := reader.failure(block))]
    assert not failures, "\n\n".join(failures)


def test_the_demos_report_in_the_readme_has_the_lines_that_the_demo_prints() -> None:
    (shown,) = (block.text for block in blocks_of(ROOT / "README.md") if block.language == "text")
    figures = {
        **dict.fromkeys(("sent", "delivered", "lost", "duplicated", "out_of_order", "content_wrong"), 0),
        "takeovers": [{"stall_ms": 8.0, "epoch": epoch} for epoch in (2, 3)],
        "longest_stall_ms": 9.0,
        "latency_us": {"p50": 300.0, "p99": 4_000.0, "max": 20_000.0},
    }
    printed = io.StringIO()
    print_report("tandemfeed demo: two kills of the active adapter", figures, Console(file=printed, width=80))
    assert _without_figures(shown) == _without_figures(printed.getvalue())


def _without_figures(report: str) -> list[str]:
    return [re.sub(r"^│ +[\d.,]+( ms)? +", "", line).rstrip(" │") for line in report.splitlines()]
