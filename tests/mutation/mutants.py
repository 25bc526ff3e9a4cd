"""The mutants of a source file, each with an id that shows its place and kind, and the mutated tree. Pure."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass

from tests.mutation.operators import sites


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    Attributes:
        id: `file:line:kind`; further mutants of the same kind on a line end in `#2` and so on.
        change: the changed lines before and after, as a diff; does not depend on line numbers.
        place: the index of its site in the file.
    """

    id: str
    line: int
    kind: str
    function: str
    change: str
    place: int


def mutants_of(source: str, path: str) -> list[Mutant]:
    """Every mutant of a file, in source order, without those equal to the original or to another mutant."""
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
        compile(tree, path, "exec")  # a tree that does not compile would count as a detected fault
        if not change or (site.line, site.function, change) in seen:
            continue
        seen.add((site.line, site.function, change))
        name = f"{path}:{site.line}:{site.kind}"
        numbers[name] += 1
        number = f"#{numbers[name]}" if numbers[name] > 1 else ""
        made.append(Mutant(name + number, site.line, site.kind, site.function, change, place))
    return made


def mutated_tree(source: str, place: int) -> ast.Module:
    """The syntax tree with one fault."""
    tree = ast.parse(source)
    sites(tree)[place].plant()
    return ast.fix_missing_locations(tree)


def _change(before: list[str], after: list[str]) -> str:
    """The lines that a fault changes, as a diff without context."""
    begin = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(after))
    end = 0
    while end < min(len(before), len(after)) - begin and before[-1 - end] == after[-1 - end]:
        end += 1
    removed, added = before[begin : len(before) - end], after[begin : len(after) - end]
    return "\n".join([f"- {line.strip()}" for line in removed] + [f"+ {line.strip()}" for line in added])
