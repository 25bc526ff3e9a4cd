"""Mutants of a source file: each with an id that says where and what, and the mutated tree. Pure."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass

from tests.mutation.operators import sites


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    Attributes:
        id: `file:line:kind`, with `#2` and so on for further ones of the kind on the line.
        change: what is said about it: the function, and its statement before and after; stays when lines move.
        place: its number among the file's sites.
    """

    id: str
    line: int
    kind: str
    function: str
    change: str
    place: int


def mutants_of(source: str, path: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its text, without those that read like the original or another."""
    made: list[Mutant] = []
    seen: set[tuple[int, str, str]] = set()
    numbers: Counter[str] = Counter()
    original = ast.parse(source)
    before = ast.unparse(original).splitlines()
    for place in range(len(sites(original))):
        tree = ast.parse(source)
        site = sites(tree)[place]
        site.plant()
        change = _change(before, ast.unparse(ast.fix_missing_locations(tree)).splitlines())
        compile(tree, path, "exec")  # a tree that cannot be run would pass for a fault that was noticed
        if not change or (site.line, site.function, change) in seen:
            continue
        seen.add((site.line, site.function, change))
        name = f"{path}:{site.line}:{site.kind}"
        numbers[name] += 1
        number = f"#{numbers[name]}" if numbers[name] > 1 else ""
        made.append(Mutant(name + number, site.line, site.kind, site.function, change, place))
    return made


def mutated_tree(source: str, place: int) -> ast.Module:
    """The syntax tree with one fault in it."""
    tree = ast.parse(source)
    sites(tree)[place].plant()
    return ast.fix_missing_locations(tree)


def _change(before: list[str], after: list[str]) -> str:
    """The lines that a fault changes, as a diff: what is left when the lines before and after them are taken away."""
    begin = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(after))
    end = 0
    while end < min(len(before), len(after)) - begin and before[-1 - end] == after[-1 - end]:
        end += 1
    removed, added = before[begin : len(before) - end], after[begin : len(after) - end]
    return "\n".join([f"- {line.strip()}" for line in removed] + [f"+ {line.strip()}" for line in added])
