"""Python in the manuals can be parsed, and the names that it imports from the project exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_MODULES = {"journal.tfc", "journal.show_until"}  # a file, and a method of an object
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{page.read_text()[: found.start()].count(chr(10)) + 1}")
    for page in PAGES
    for found in BLOCK.finditer(page.read_text())
    for block in [found[1]]
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_code_block_imports_names_that_exist(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tandemfeed":
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tandemfeed":
            assert hasattr(importlib.import_module("tandemfeed"), node.attr)


def test_the_manuals_have_code_blocks() -> None:
    assert len(BLOCKS) > 10


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
