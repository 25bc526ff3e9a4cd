"""The small faults: every place in a syntax tree where one can be planted, in a fixed order. Pure.

Strings, annotations, docstrings, assertions (the `strict` of `zip` is one) and decorators get no faults, because these
would not test logic; nor do the values of module and class constants, which are configuration. A change that differs
only for a caller that distinguishes `False` from 0 or None is not made either.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
EXTREMES = {"min": "max", "max": "min"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Scope:
    """A function of a module or class, with its qualified name."""

    name: str
    node: Function

    @property
    def first_line(self) -> int:
        """The line of its first decorator, or of its `def`; a code object has the same."""
        return min(part.lineno for part in (self.node, *self.node.decorator_list))


@dataclass(frozen=True, slots=True)
class Site:
    """A place for one fault.

    Attributes:
        kind: what is changed, in a word.
        scope: the enclosing function.
        statement: the innermost enclosing statement.
        plant: changes the tree.
    """

    line: int
    kind: str
    scope: Scope
    statement: ast.stmt
    plant: Callable[[], None]

    @property
    def lines(self) -> range:
        """The lines of the statement, without the statements inside it; whoever executes the fault executes one."""
        inner = [
            part.lineno
            for name in ("body", "orelse", "finalbody")
            for part in getattr(self.statement, name, [])
            if isinstance(part, ast.stmt)
        ]
        last = min(inner) - 1 if inner else self.statement.end_lineno or self.statement.lineno
        return range(self.statement.lineno, max(last, self.statement.lineno) + 1)


def sites(scope: Scope) -> list[Site]:
    """Every place in a function, in source order."""
    body = scope.node.body
    # A function returns at its end in any case.
    return [site for site in _of_block(body, scope) if site.kind != "return_removed" or site.statement is not body[-1]]


def functions(tree: ast.Module) -> list[Scope]:
    """The functions and methods of a module; those inside a function are part of it."""
    return list(_functions(tree, ""))


def _functions(node: ast.AST, prefix: str) -> Iterator[Scope]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield Scope(prefix + child.name, child)
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _of_block(block: list[ast.stmt], scope: Scope) -> Iterator[Site]:
    for place, statement in enumerate(block):
        if isinstance(statement, ast.Assert) or _is_text(statement):
            continue
        yield from _of_statement(block, place, scope)
        yield from _of_expressions(statement, scope)
        for name in ("body", "orelse", "finalbody"):
            yield from _of_block(getattr(statement, name, []), scope)
        for part in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
            yield from _of_block(part.body, scope)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _of_statement(block: list[ast.stmt], place: int, scope: Scope) -> Iterator[Site]:
    """Faults of a statement as a whole."""
    statement = block[place]

    def replaced_by(other: ast.stmt) -> Callable[[], None]:
        def plant() -> None:
            block[place] = ast.fix_missing_locations(ast.copy_location(other, statement))

        return plant

    def site(kind: str, other: ast.stmt) -> Site:
        return Site(statement.lineno, kind, scope, statement, replaced_by(other))

    match statement:
        case ast.Return(value=ast.expr() as value) if not _is_none_or_false(value):  # callers use only its truth
            yield site("return_none", ast.Return(ast.Constant(None)))
        case ast.Return():
            yield site("return_removed", ast.Pass())
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() | ast.Tuple(), *_]):
            yield site("statement_removed", ast.Pass())
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Continue() | ast.Break():
            yield site("statement_removed", ast.Pass())


def _is_none_or_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and (value.value is None or value.value is False)


def _of_expressions(statement: ast.stmt, scope: Scope) -> Iterator[Site]:
    """Faults in the expressions of one statement, without those of the statements inside it."""
    for node in _expressions(statement):
        for kind, plant in [*_of_operators(node), *_of_conditions(node), *_of_values(node)]:
            yield Site(getattr(node, "lineno", statement.lineno), kind, scope, statement, plant)


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """This node and the expressions below it, outermost first."""
    yield node
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "pattern"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            if isinstance(child, ast.expr | ast.comprehension | ast.keyword | ast.arguments | ast.withitem):
                yield from _expressions(child)


def _set(node: ast.AST, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(node, name, value)


def _put(items: list[ast.cmpop], place: int, value: ast.cmpop) -> Callable[[], None]:
    return lambda: items.__setitem__(place, value)


def _of_operators(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    match node:
        case ast.Compare(ops=ops):
            for place, operator in enumerate(ops):
                yield "comparison", _put(ops, place, NEGATED[type(operator)]())
                if type(operator) in BOUNDARY:
                    yield "boundary", _put(ops, place, BOUNDARY[type(operator)]())
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield "arithmetic", _set(node, "op", ARITHMETIC[type(op)]())
        case ast.Call(func=ast.Name(id=name) as function) if name in EXTREMES:
            yield "min_max", _set(function, "id", EXTREMES[name])


def _of_conditions(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    match node:
        case ast.BoolOp(op=op, values=values):
            yield "and_or", _set(node, "op", ast.Or() if isinstance(op, ast.And) else ast.And())
            neutral = isinstance(op, ast.And)
            for place, operand in enumerate(values):
                if isinstance(operand, ast.Constant) and operand.value == neutral:
                    continue  # `a or 0` would become `a or False`
                kept = [*values[:place], _constant(neutral, operand), *values[place + 1 :]]
                yield "operand_removed", _set(node, "values", kept)
        case ast.If() | ast.While() | ast.IfExp():
            if isinstance(node, ast.While) and isinstance(node.test, ast.Constant):
                return
            for value in (False,) if isinstance(node, ast.While) else (True, False):
                yield f"condition_{str(value).lower()}", _set(node, "test", _constant(value, node.test))
        case ast.comprehension(ifs=ifs):
            for place in range(len(ifs)):
                yield "filter_removed", _set(node, "ifs", ifs[:place] + ifs[place + 1 :])


def _of_values(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    match node:
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            # `not x` becomes `not not x`, so that the node itself stays in place.
            other = ast.UnaryOp(node.op, operand)
            yield (
                "not_removed" if isinstance(node.op, ast.Not) else "sign_removed",
                _set(node, "operand", ast.fix_missing_locations(ast.copy_location(other, node))),
            )
        case ast.Constant(value=bool() as value):
            yield "constant", _set(node, "value", not value)
        case ast.Constant(value=int() | float() as number):
            yield "constant", _set(node, "value", number + 1)
            if number:
                yield "constant", _set(node, "value", number - 1)


def _constant(value: bool, place: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Constant(value), place)
