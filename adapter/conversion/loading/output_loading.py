"""Loads what a <convert> or a <group> writes: its conditions, its fields, and its <group>s and <data>s.

A <group> writes the entries of a group, and a <data> writes a text of variable length.
"""

from __future__ import annotations

from tandemfeed.adapter.conversion.loading.value_loading import BOOK_ATTRIBUTES, GroupScope, Scope
from tandemfeed.adapter.conversion.table.function_use import comparison_of
from tandemfeed.adapter.conversion.table.table import (
    DataWrite,
    GroupWrite,
    Guard,
    IndexValue,
    Literal,
    Operand,
    Operation,
    type_of,
)
from tandemfeed.adapter.conversion.table.values import why_not_data, why_not_fit
from tandemfeed.feedcore.documents.source_layout import SourceBlock, SourceField, SourceGroup
from tandemfeed.feedcore.documents.xml_document import Node
from tandemfeed.feedcore.sbe.messages import Block, Column, Group, MessageType, VarData

ELEMENTS = ("when", "let", "field", "group", "data")
COUNT_MAX = 1_000  # entries of a counted group; far more than fit in a datagram


def load_guards(scope: Scope) -> tuple[tuple[Guard, ...], tuple[Guard, ...]]:
    """The conditions of a <convert> or <group>: those without state, and those that depend on state."""
    guards: list[Guard] = []
    output_guards: list[Guard] = []
    for node in scope.node.all("when"):
        node.only("of", "is", "isNot", "above", "below", "atLeast", "atMost", "isNull")
        operand = scope.resolve_name(node.need("of"), node)
        if isinstance(operand, Literal):
            raise node.error(f"{node.need('of')!r} is a constant, so the comparison is always true or always false")
        if isinstance(operand, Operation) and operand.type.text_size:
            raise node.error(f"{node.need('of')!r} is a text made for the output; compare a field")
        guard = Guard(operand, comparison_of(node, type_of(operand)))
        is_stateful = isinstance(operand, Operation) and operand.is_stateful
        (output_guards if is_stateful else guards).append(guard)
    return tuple(guards), tuple(output_guards)


def load_writes(scope: Scope, target: Block | None) -> tuple[tuple[Column, Operand], ...]:
    """The fields that a <convert> or <group> writes, and their values. Only nullable fields may be left out."""
    writes = tuple(_write(scope, node, target) for node in scope.node.all("field"))
    if target is None:
        return ()
    written = [column.name for column, _ in writes]
    for name, column in target.columns.items():
        times = written.count(name)
        if times != 1 and (times or column.null is None):
            raise scope.node.error(f"field {name!r} of {target.name} is written {times} times; it must be written once")
    return writes


def _write(scope: Scope, node: Node, target: Block | None) -> tuple[Column, Operand]:
    if target is None:
        raise node.error("a <field> is not allowed in a <convert> without to=")
    column = target.columns.get(node.need("name"))
    if column is None:
        raise node.error(f"{target.name} has no field {node.need('name')!r}")
    operand = scope.resolve(node)
    reason = why_not_fit(type_of(operand), column)
    if reason is not None:
        raise node.error(reason)
    return column, operand


def load_parts(
    scope: Scope, target: MessageType | Group | None
) -> tuple[tuple[GroupWrite, ...], tuple[DataWrite, ...]]:
    """The groups and variable data of a message or of a group's entry; those that the table does not name are empty."""
    nodes = [node for node in scope.node.children if node.tag in ("group", "data")]
    if target is None:
        if nodes:
            raise nodes[0].error(f"a <{nodes[0].tag}> is not allowed in a <convert> without to=")
        return (), ()
    named: dict[str, Node] = {}
    for node in nodes:
        name = node.need("name")
        if name not in (target.groups if node.tag == "group" else target.data):
            raise node.error(f"{target.name} has no {node.tag} {name!r}")
        if name in named:
            raise node.error(f"{node.tag} {name!r} of {target.name} is written twice")
        named[name] = node
    groups = tuple(_group(scope, part, named.get(part.name)) for part in target.groups.values())
    return groups, tuple(_data(scope, part, named.get(part.name)) for part in target.data.values())


def _data(scope: Scope, target: VarData, node: Node | None) -> DataWrite:
    operand = None if node is None else scope.resolve(node)
    size = len(operand.value) if isinstance(operand, Literal) and isinstance(operand.value, bytes) else 0
    if size < target.minimum:
        raise (node or scope.node).error(f"{target.name} needs at least {target.minimum} bytes; it may get {size}")
    if node is not None and operand is not None:
        is_copy = isinstance(operand, SourceField) and operand.is_variable and not operand.since_version
        reason = why_not_data(type_of(operand), target, is_copy=is_copy)
        if reason is not None:
            raise node.error(reason)
    return DataWrite(target, operand)


def _group(outer: Scope, target: Group, node: Node | None) -> GroupWrite:
    blamed = node or outer.node
    if target.block_length > target.length.kind.maximum:
        raise blamed.error(
            f"an entry of {target.name} takes {target.block_length} bytes; its blockLength is {target.length.kind.name}"
        )
    write = GroupWrite(target, line=outer.node.line) if node is None else _entries(outer, target, node)
    certain = write.count if write.levels is None and not write.guards and not write.output_guards else 0
    if certain < target.count.minimum:
        raise blamed.error(
            f"{target.name} needs at least {target.count.minimum} entries; this <group> cannot guarantee them"
        )
    return write


def _entries(outer: Scope, target: Group, node: Node) -> GroupWrite:
    """What a <group> writes.

    Args:
        outer: the scope of the enclosing <convert> or <group>.
    """
    node.only("name", "of", "count", "levels", "index", *BOOK_ATTRIBUTES)
    for child in node.children:
        if child.tag not in ELEMENTS:
            raise child.error(
                f"<{child.tag}> is not allowed in <group>; it takes {', '.join(f'<{tag}>' for tag in ELEMENTS)}"
            )
    each = _find_each(outer, node)
    _check_book_attributes(node)
    count = 0 if each else _find_count(node, target)
    number = next(outer.shared.group_numbers)
    scope = GroupScope(node, outer, each, None if each else IndexValue(number, count))
    levels: tuple[int, int] | None = None
    if "levels" in node.attributes:
        if node.need("side") not in ("bid", "ask"):
            raise node.error(f"side is {node.need('side')!r}; it must be bid or ask")
        levels = scope.book_of(node), int(node.need("side") == "ask")
    guards, output_guards = load_guards(scope)
    for child in node.all("let"):
        scope.resolve(child)
    writes = load_writes(scope, target)
    groups, data = load_parts(scope, target)
    return GroupWrite(
        target,
        number,
        each,
        count,
        levels,
        guards,
        output_guards,
        tuple(scope.pure),
        tuple(scope.stateful),
        writes,
        groups,
        data,
        node.line,
    )


def _find_each(outer: Scope, node: Node) -> SourceGroup | None:
    """The source group that a <group> with of= iterates over."""
    kinds = [name for name in ("of", "count", "levels") if name in node.attributes]
    if len(kinds) != 1:
        raise node.error("<group> takes exactly one of of=, count= and levels=")
    if kinds[0] != "of":
        return None
    name = node.need("of")
    around: list[SourceBlock] = [*reversed(outer.passed), outer.source]
    group = next((each.groups[name] for each in around if name in each.groups), None)
    if group is None:
        raise node.error(f"source message {outer.source.name!r} has no group {name!r}")
    if any(group is other for other in outer.passed):
        raise node.error(f"an enclosing element already iterates over {group.name!r}")
    return group


def _check_book_attributes(node: Node) -> None:
    for attribute in BOOK_ATTRIBUTES:
        if attribute in node.attributes and "levels" not in node.attributes:
            raise node.error(f"{attribute}= of <group> needs levels=")


def _find_count(node: Node, target: Group) -> int:
    """The number of entries of a counted group, or the largest number of levels."""
    name = "count" if "count" in node.attributes else "levels"
    count, most = node.need_int(name), min(COUNT_MAX, target.count.maximum)
    if not 1 <= count <= most:
        raise node.error(f"{name} is {count}; it must be from 1 to {most}")
    return count
