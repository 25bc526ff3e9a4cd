"""The mutants of a source file, each with an id that shows its place and kind, and the mutated code. Pure."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from tests.mutation.operators import Scope, functions, sites


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    Attributes:
        id: `file:line:kind`; further mutants of the same kind on a line end in `#2` and so on.
        key: identifies the text of the faulty function, so it stays the same while only other functions change.
        first_line: of the function.
        lines: a test that executes none of these lines cannot detect the fault.
        change: the changed lines before and after, as a diff; does not depend on line numbers.
        place: the index of its site in the function.
    """

    id: str
    key: str
    line: int
    kind: str
    function: str
    first_line: int
    lines: range
    change: str
    place: int

    @property
    def scope(self) -> tuple[str, int]:
        """The function, which its name alone does not identify: a property may have a setter."""
        return self.function, self.first_line

    @property
    def module(self) -> str:
        """The path of its file."""
        return self.id.partition(":")[0]


def mutants_of(source: str, path: str, only: Container[str] | None = None) -> list[Mutant]:
    """Every mutant of a file, in source order, without those equal to the original or to another mutant.

    Args:
        only: the names of the functions to mutate; None: all.
    """
    numbers: Counter[str] = Counter()
    scopes = [scope for scope in functions(ast.parse(source)) if only is None or scope.name in only]
    return [mutant for scope in scopes for mutant in _mutants_of_function(scope, path, numbers)]


def _mutants_of_function(scope: Scope, path: str, numbers: Counter[str]) -> Iterator[Mutant]:
    seen: set[tuple[int, str]] = set()
    before = ast.unparse(scope.node).splitlines()
    for place in range(len(sites(scope))):
        faulty = Scope(scope.name, copy.deepcopy(scope.node))
        site = sites(faulty)[place]
        site.plant()
        text = ast.unparse(ast.fix_missing_locations(faulty.node))
        change = _change(before, text.splitlines())
        # A tree that does not compile would count as a detected fault.
        compile(ast.Module([faulty.node], []), path, "exec")
        if not change or (site.line, change) in seen:
            continue
        seen.add((site.line, change))
        name = f"{path}:{site.line}:{site.kind}"
        numbers[name] += 1
        number = f"#{numbers[name]}" if numbers[name] > 1 else ""
        key = hashlib.sha256(f"{scope.name}\n{text}".encode()).hexdigest()[:16]
        lines = site.lines
        yield Mutant(name + number, key, site.line, site.kind, scope.name, scope.first_line, lines, change, place)


def mutated_tree(source: str, mutant: Mutant, free_names: Sequence[str] = ()) -> ast.Module:
    """The syntax tree with one fault.

    Args:
        free_names: the names that the right function takes from functions or classes around it. A fault may remove the
            last use of one, but the code of a function can only be replaced by code with the same names.
    """
    tree = ast.parse(source)
    scope = next(each for each in functions(tree) if (each.name, each.first_line) == mutant.scope)
    sites(scope)[mutant.place].plant()
    if free_names:
        uses: list[ast.stmt] = [ast.Expr(ast.Name(name, ast.Load())) for name in free_names]
        scope.node.body.append(ast.If(ast.Constant(False), uses, []))
    return ast.fix_missing_locations(tree)


def mutated_code(source: str, path: str, mutant: Mutant, free_names: Sequence[str]) -> CodeType:
    """The code of the mutant's function, with the fault; `free_names` as for `mutated_tree`."""
    module = compile(mutated_tree(source, mutant, free_names), path, "exec")
    return next(code for code in _codes(module) if (code.co_qualname, code.co_firstlineno) == mutant.scope)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _change(before: list[str], after: list[str]) -> str:
    """The lines that a fault changes, as a diff without context."""
    begin = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(after))
    end = 0
    while end < min(len(before), len(after)) - begin and before[-1 - end] == after[-1 - end]:
        end += 1
    removed, added = before[begin : len(before) - end], after[begin : len(after) - end]
    return "\n".join([f"- {line.strip()}" for line in removed] + [f"+ {line.strip()}" for line in added])
