"""Output messages of variable size in plain Python: the size of groups and texts, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tandemfeed.adapter.conversion.table.function_checks import digits_size
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.conversion.table.table import (
    Conversion,
    DataWrite,
    GroupWrite,
    Literal,
    Operand,
    Operation,
    dimension_of,
    type_of,
)
from tandemfeed.feedcore.documents.message_model import frame_size
from tandemfeed.feedcore.documents.source_layout import SourceField
from tests.conversion.oracle.interpreted_values import Refused, Scope

OfBook = Callable[[Operation, Scope], int]
LevelCount = Callable[[int, int], int]


def text_room(scope: Scope, operand: Operand) -> int:
    """The size counted for a text: for a variable text, its size in this message; for others, the largest size."""
    if isinstance(operand, SourceField) and operand.is_variable:
        return len(scope.text(operand))
    if isinstance(operand, Literal) and isinstance(operand.value, bytes):
        return len(operand.value)
    found = type_of(operand)
    if not found.text_size:
        return digits_size(found)
    if isinstance(operand, Operation) and operand.function.name == "concatenate":
        parts = list(operand.operands.values())
        separator = operand.constants["separator"]
        assert isinstance(separator, bytes)
        return sum(text_room(scope, part) for part in parts) + len(separator) * (len(parts) - 1)
    if isinstance(operand, Operation) and operand.function.name in ("text", "cut"):
        return min(text_room(scope, operand.operands["of"]), found.text_size)
    return found.text_size


def room(scope: Scope, conversion: Conversion) -> int:
    """The size counted for the output of a checked scope, including all entries that state may later leave out.

    Raises:
        Refused: an entry's value does not fit, or there are more entries than the output's count field can express.
    """
    assert conversion.target is not None
    return frame_size(conversion.target) + _parts_room(scope, conversion.groups, conversion.data)


def _parts_room(scope: Scope, groups: Sequence[GroupWrite], data: Sequence[DataWrite]) -> int:
    need = sum(each.target.length_kind.size for each in data)
    need += sum(text_room(scope, each.operand) for each in data if each.operand is not None)
    for group in groups:
        need += group.target.dimension.size
        entries = 0
        for entry in _entries(scope, group, group.count):
            if entry.evaluate_with(group.guards, group.pure):
                entries += 1
                need += group.target.block_length + _parts_room(entry, group.groups, group.data)
        if entries > group.target.count.maximum:
            raise Refused(Reason.TOO_LARGE)
    return need


def _entries(scope: Scope, group: GroupWrite, count: int) -> Iterator[Scope]:
    if group.source is not None:
        yield from scope.entries(group.source)
        return
    for number in range(1, count + 1):
        yield scope.numbered(group.number, number)


def parts(
    scope: Scope, groups: Sequence[GroupWrite], data: Sequence[DataWrite], of_book: OfBook, level_count: LevelCount
) -> bytes:
    """The bytes of groups and variable data."""
    written = b""
    for group in groups:
        count = group.count if group.levels is None else min(group.count, level_count(*group.levels))
        entries = [
            _entry(entry, group, of_book, level_count)
            for entry in _entries(scope, group, count)
            if entry.evaluate_with(group.guards, group.pure)
        ]
        kept = [entry for entry in entries if entry is not None]
        dimension, count_part = bytearray(dimension_of(group.target)), group.target.count
        dimension[count_part.offset : count_part.end] = len(kept).to_bytes(count_part.size, "little")
        written += bytes(dimension) + b"".join(kept)
    for each in data:
        text = b"" if each.operand is None else _text(scope, each.operand)
        written += len(text).to_bytes(each.target.length_kind.size, "little") + text
    return written


def _entry(scope: Scope, group: GroupWrite, of_book: OfBook, level_count: LevelCount) -> bytes | None:
    """One entry; None if a guard on state leaves it out."""
    for operation in group.stateful:
        scope.compute_late(operation, of_book)
    if not all(scope.holds(guard) for guard in group.output_guards):
        return None
    block = bytearray(group.target.block_length)
    scope.write_block(block, 0, group.target.columns, group.writes)
    return bytes(block) + parts(scope, group.groups, group.data, of_book, level_count)


def _text(scope: Scope, operand: Operand) -> bytes:
    """A variable text unchanged; any other text without trailing blanks."""
    if isinstance(operand, SourceField) and operand.is_variable:
        return scope.text(operand)
    return scope.appended(operand)
