"""The source fields that a conversion uses, and so the smallest size of a message's fixed part and groups' entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandemfeed.adapter.conversion.table.table import Conversion, DataWrite, GroupWrite, Operand, Operation
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceGroup


def used_fields(conversion: Conversion) -> set[int]:
    """The identities of all source fields that a conversion uses."""
    found: set[int] = set()

    def visit(operand: Operand) -> None:
        if isinstance(operand, SourceField):
            found.add(id(operand))
        elif isinstance(operand, Operation):
            for each in (*operand.operands.values(), *operand.keys):
                visit(each)

    for guard in (*conversion.guards, *conversion.output_guards):
        visit(guard.operand)
    for operand in (*conversion.pure, *conversion.stateful, *(value for _, value in conversion.writes)):
        visit(operand)
    _visit_parts(visit, conversion.groups, conversion.data)
    for action in conversion.orders:
        guard = [action.guard.operand] if action.guard else []
        for operand in (*([action.key] if action.key else []), *action.operands.values(), *guard):
            visit(operand)
    for _, key in conversion.book_reads:
        visit(key)
    return found


def _visit_parts(visit: Callable[[Operand], None], groups: Sequence[GroupWrite], data: Sequence[DataWrite]) -> None:
    for each in data:
        if each.operand is not None:
            visit(each.operand)
    for group in groups:
        for guard in (*group.guards, *group.output_guards):
            visit(guard.operand)
        for operand in (*group.pure, *group.stateful, *(value for _, value in group.writes)):
            visit(operand)
        _visit_parts(visit, group.groups, group.data)


def needed_end(conversion: Conversion, group: SourceGroup | None) -> int:
    """The size that the fixed part, or a group's entries, must have for the used fields that cannot be null."""
    fields = conversion.source.fields if group is None else group.fields
    used = used_fields(conversion)
    ends = [field.offset + field.size for field in fields.values() if id(field) in used and not field.is_nullable]
    return max(ends, default=0)
