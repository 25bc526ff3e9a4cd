"""A converter table as readable text: for each source message, its output and the functions that make it."""

from __future__ import annotations

from collections.abc import Iterator

from tandemfeed.adapter.conversion.kernel.calls.packet_calls import PacketCalls
from tandemfeed.adapter.conversion.table.function_use import Comparison, ValueMap
from tandemfeed.adapter.conversion.table.functions import Calling
from tandemfeed.adapter.conversion.table.table import (
    Conversion,
    ConverterTable,
    GroupWrite,
    Guard,
    IndexValue,
    Literal,
    Operand,
    Operation,
    PacketValue,
    all_operations,
    type_of,
)
from tandemfeed.feedcore.documents.source_layout import SourceField

WORDS = {"is": "=", "isNot": "≠", "above": ">", "below": "<", "atLeast": "≥", "atMost": "≤"}


def explain(table: ConverterTable) -> Iterator[str]:
    """The lines of the text."""
    framing = table.source_format.framing
    yield f"Converter table {table.name!r}: {table.source_format.name} → messages of schema {table.schema_id}"
    length, kind = framing.length.kind.name, framing.type.kind.name
    yield f"frames: length {length} at {framing.length.offset}, type {kind} at {framing.type.offset}"
    for space in table.spaces:
        if space.is_digested:
            size = 8 * space.stride
            yield f"state by {space.name}: {len(space.initial)} cells, {size} bytes per key and 16 to 48 of index"
    yield from users_functions(table)
    for conversion in table.conversions:
        yield ""
        yield from _conversion(table, conversion)
    converted = {conversion.source.name for conversion in table.conversions}
    others = [name for name in table.source_format.messages if name not in converted]
    if others:
        yield f"\nnot converted: {', '.join(others)}"


def users_functions(table: ConverterTable) -> Iterator[str]:
    """A line for each user function of a table: how it runs, and why it is not compiled into the kernel."""
    calls = PacketCalls(table.conversions)
    stages: dict[str, list[str]] = {}
    for call in calls.calls:
        stages.setdefault(call.function.name, []).append(str(call.stage + 1))
    operations = (operation for conversion in table.conversions for operation in all_operations(conversion))
    used = {operation.function.name: operation.function for operation in operations}
    for name, function in sorted(used.items()):
        if function.calling is Calling.COMPILED:
            if function.python is not None:
                yield f"function {name}: compiled into the kernel"
            continue
        how = "with arrays" if function.calling is Calling.PER_ARRAY else "value by value"
        when = f"in stage {' and '.join(sorted(stages[name]))} of {calls.stages}"
        why = f": {function.why_called}" if function.calling is Calling.PER_VALUE else ""
        yield f"function {name}: called in Python once per packet, {how}, {when}{why}"


def _conversion(table: ConverterTable, conversion: Conversion) -> Iterator[str]:
    source, target = conversion.source, conversion.target
    kind = chr(source.type_id) if 32 < source.type_id < 127 else str(source.type_id)
    path = ".".join(group.name for group in (*conversion.within, *([conversion.each] if conversion.each else [])))
    each = f", for each entry of {path}" if path else ""
    yield f"{source.name} (type {kind}, line {conversion.line}) → {target.name if target else 'state only'}{each}"
    for guard in conversion.guards:
        yield f"    only if {_guard(guard)}"
    for action in conversion.orders:
        given = ", ".join(f"{name} {_name(operand)}" for name, operand in action.operands.items())
        book = table.books[action.book].name
        when = f" if {_guard(action.guard)}" if action.guard else ""
        by = _name(action.key) if action.key else "the order"
        yield f"    book {book!r} by {by}: {action.action} {given}{when}"
    yield from _written(table, conversion, target.name if target else "", "    ")


def _written(table: ConverterTable, written: Conversion | GroupWrite, name: str, margin: str) -> Iterator[str]:
    """The values of a message or of a group's entry, and the fields that they go to."""
    values = [operand for _, operand in written.writes] + [each.operand for each in written.data if each.operand]
    shown = {id(operand) for operand in values}
    for operation in (*written.pure, *written.stateful):
        if id(operation) not in shown:
            yield f"{margin}{operation.label} = {_how(table, operation)}    [{operation.type}]"
    for guard in written.output_guards:
        yield f"{margin}written only if {_guard(guard)}"
    for field, operand in written.writes:
        yield f"{margin}{name}.{field.name} ({field.kind.name}) ← {_value(table, operand)}"
    for group in written.groups:
        yield f"{margin}{name}.{group.target.name} ← {_entries(table, group)}"
        for guard in group.guards:
            yield f"{margin}    only if {_guard(guard)}"
        yield from _written(table, group, f"{name}.{group.target.name}", margin + "    ")
    for each in written.data:
        how = _value(table, each.operand) if each.operand else "nothing"
        yield f"{margin}{name}.{each.target.name} (variable) ← {how}"


def _entries(table: ConverterTable, group: GroupWrite) -> str:
    if group.levels is not None:
        book, side = table.books[group.levels[0]].name, ("bid", "ask")[group.levels[1]]
        return f"the {group.count} best {side} levels of book {book!r}"
    if group.source is not None:
        return f"each entry of {group.source.name}"
    return f"{group.count} entries" if group.count else "no entries"


def _value(table: ConverterTable, operand: Operand) -> str:
    return _how(table, operand) if isinstance(operand, Operation) else _name(operand)


def _guard(guard: Guard) -> str:
    return _comparison(_name(guard.operand), guard.comparison)


def _comparison(name: str, comparison: Comparison) -> str:
    if comparison.how == "isNull":
        return f"{name} is {'' if comparison.literal else 'not '}null"
    literal = comparison.literal
    return f"{name} {WORDS[comparison.how]} {literal.decode() if isinstance(literal, bytes) else literal}"


def _name(operand: Operand) -> str:
    if isinstance(operand, SourceField):
        return operand.name
    if isinstance(operand, PacketValue):
        return f"packet.{operand.name}"
    if isinstance(operand, IndexValue):
        return "the entry's number"
    if isinstance(operand, Literal):
        return repr(operand.value.decode()) if isinstance(operand.value, bytes) else str(operand.value)
    return operand.label


def _how(table: ConverterTable, operation: Operation) -> str:
    function = operation.function
    given = [f"{argument}: {_name(operand)}" for argument, operand in operation.operands.items()]
    for name, value in operation.constants.items():
        if isinstance(value, ValueMap):
            given.append(f"map {value.name!r}")
        elif isinstance(value, Comparison):
            given.append(_comparison("of", value))
        elif name in ("zone", "otherwise", "sources", "length", "amount", "value"):
            given.append(f"{name} {value}")
    if operation.type.exponent:
        given.append(f"exponent {operation.type.exponent}")
    text = f"{function.name}({', '.join(given)})"
    if operation.space is not None:
        text += f" by {' '.join(_name(key) for key in operation.keys)}"
    return f"{text} of book {table.books[operation.book].name!r}" if operation.book is not None else text


__all__ = ["explain", "type_of", "users_functions"]
