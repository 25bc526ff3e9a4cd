"""The fenced code blocks of a page, and the directives that HTML comments before them give.

A directive says what a test cannot see, or why it must not run a block; readers of the page do not see it::

    <!-- docs: needs cluster -->
    <!-- docs: parse only: takes two minutes -->

Several directives are several comments, directly above the block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
CLUSTER_PAGE = ROOT / "docs" / "cluster.md"
FENCE = re.compile(r"```(\S*)$")
DIRECTIVE = re.compile(r"<!-- docs: (?P<name>[a-z ]+?)(?:: (?P<text>.+))? -->$")
# Directive -> whether it needs a text, such as a reason.
DIRECTIVES = {
    "needs cluster": False,  # the cluster of docs/cluster.md runs, and this is its folder
    "needs source journal": False,  # these three: what `tests/docs/preparations.py` makes is in the folder
    "needs journals": False,
    "needs recordings": False,
    "serves": False,  # the command runs until the page ends; it prints a ready line
    "interrupt after": True,  # the code runs until it prints a line with this text; then the reader presses Ctrl-C
    "parse only": True,  # too slow, or needs what a test does not have: the reason
    "sample": True,  # output that no block on the page makes, or a drawing: where it comes from
}


class BrokenPage(Exception):
    """A page that a test cannot read: page, line, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block. `line` is that of its first line of code."""

    page: Path
    line: int
    language: str
    text: str
    directives: Mapping[str, str]

    @property
    def place(self) -> str:
        """Page and line, as an editor opens them."""
        return f"{self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The code blocks of a page, in order.

    Raises:
        BrokenPage: a block has no language or no end, or a comment is not a directive.
    """
    return list(_blocks(page, page.read_text().splitlines()))


def needs_cluster(page: Path) -> bool:
    """True if a block of this page needs the cluster."""
    return "\n<!-- docs: needs cluster -->\n" in page.read_text()


def _blocks(page: Path, lines: list[str]) -> Iterator[Block]:
    directives: dict[str, str] = {}
    begin, language = 0, ""
    for number, line in enumerate(lines, 1):
        fence = FENCE.fullmatch(line.strip())
        if begin:
            if fence is not None:
                yield Block(page, begin, language, "\n".join(lines[begin - 1 : number - 1]) + "\n", directives)
                begin, directives = 0, {}
        elif fence is not None:
            language = fence[1]
            if not language:
                raise BrokenPage(f"{page.name}:{number}: this code block has no language")
            begin = number + 1
        elif line.startswith("<!-- docs:"):
            name, text = _directive(page, number, line)
            directives[name] = text
        elif directives:
            raise BrokenPage(f"{page.name}:{number}: a directive must be directly above its code block")
    if begin:
        raise BrokenPage(f"{page.name}:{begin - 1}: this code block does not end")


def _directive(page: Path, number: int, line: str) -> tuple[str, str]:
    found = DIRECTIVE.match(line)
    if found is None or found["name"] not in DIRECTIVES:
        raise BrokenPage(f"{page.name}:{number}: {line} is not one of the directives {', '.join(DIRECTIVES)}")
    if bool(found["text"]) is not DIRECTIVES[found["name"]]:
        needed = "needs" if DIRECTIVES[found["name"]] else "has no"
        raise BrokenPage(f"{page.name}:{number}: the directive {found['name']!r} {needed} text")
    return found["name"], found["text"] or ""
