"""Links, paths and modules that the manuals name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT

NOT_MODULES = {"journal.tfc", "journal.failed", "journal.show_until"}  # two files, and a method of an object


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_and_paths_in_backticks_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    packages = "adapter|admin_server|client_lib|feedcore|transport|journal|spark_feed|deploy|benchmarks|tests|proto"
    paths = re.findall(rf"`((?:{packages})/[\w/.-]+\.(?:py|md|xml|toml|proto))`", text)
    missing += [path for path in paths if "NAME" not in path and not (ROOT / path).exists()]
    assert not missing


def test_modules_named_in_backticks_exist() -> None:
    packages = ("adapter", "admin_server", "client_lib", "feedcore", "transport", "journal", "spark_feed", "deploy")
    named = re.compile(rf"`((?:{'|'.join(packages)})(?:\.[a-z_]\w*)+)")
    sources = [path for package in (*packages, "benchmarks", "tests") for path in (ROOT / package).rglob("*.py")]
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (*PAGES, *sources)
        for name in named.findall(path.read_text())
        if name not in NOT_MODULES and not _exists(name)
    ]
    assert not missing


def _exists(dotted: str) -> bool:
    """True if this is a package or module, or a name in one."""
    *folders, last = dotted.split(".")
    folder = ROOT.joinpath(*folders)
    if (folder / last).is_dir() or (folder / f"{last}.py").is_file():
        return True
    holder = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return holder.is_file() and re.search(rf"\b{last}\b", holder.read_text()) is not None
