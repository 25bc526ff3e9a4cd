"""Every code block of every page runs, or is at least parsed by the code that reads it. The pages that need a cluster
are in test_cluster_pages.py."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from tandemfeed.deploy.demo.report import print_report
from tests.docs.blocks import CLUSTER_PAGE, PAGES, ROOT, blocks_of, needs_cluster
from tests.docs.reader import Reader


@pytest.mark.processes
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "```" in page.read_text() and not needs_cluster(page) and page != CLUSTER_PAGE],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_code_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    with Reader(tmp_path / "checkout", tmp_path / "bin") as reader:
        failures = [failure for block in blocks_of(page) if (failure := reader.failure(block))]
    assert not failures, "\n\n".join(failures)


def test_the_demos_report_in_the_readme_has_the_lines_that_the_demo_prints() -> None:
    (shown,) = (block.text for block in blocks_of(ROOT / "README.md") if block.language == "text")
    pauses = {"stall_ms": 8.0, "source_stall_ms": 8.0, "hiccup_ms": 8.0}
    figures = {
        **dict.fromkeys(("sent", "delivered", "lost", "duplicated", "out_of_order", "content_wrong"), 0),
        "takeovers": [pauses, pauses],
        **pauses,
        "longest_stall_ms": 9.0,
        "latency_us": {"p50": 300.0, "p99": 4_000.0, "max": 20_000.0},
    }
    printed = io.StringIO()
    print_report("tandemfeed demo: two kills of the active adapter", figures, Console(file=printed, width=80))
    assert _without_figures(shown) == _without_figures(printed.getvalue())


def _without_figures(report: str) -> list[str]:
    return [" ".join(re.sub(r"[\d.,]+( ms)? +", "", line).split()) for line in report.splitlines()]
