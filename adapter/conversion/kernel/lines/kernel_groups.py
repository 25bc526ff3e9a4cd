"""Kernel lines that write output messages of variable size.

The size of their groups and texts is computed before anything is changed; then their bytes are written. The size
includes every entry, even those that a condition on state may leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tandemfeed.adapter.conversion.kernel.kernel_names import shown
from tandemfeed.adapter.conversion.kernel.lines.constant_bytes import ConstantBytes
from tandemfeed.adapter.conversion.kernel.lines.kernel_operations import ValueWriter, indented
from tandemfeed.adapter.conversion.kernel.lines.kernel_walk import PLACED_MAX, entry_steps, numbers_of
from tandemfeed.adapter.conversion.table.function_checks import digits_size
from tandemfeed.adapter.conversion.table.table import (
    Conversion,
    DataWrite,
    GroupWrite,
    Literal,
    Operand,
    Operation,
    dimension_of,
    entry_size,
    least_size,
    type_of,
)
from tandemfeed.feedcore.documents.message_model import frame_size
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceGroup, SourceMessageType
from tandemfeed.feedcore.sbe.messages import Block, Column


def zero_gaps(block: Block, constants: ConstantBytes, base: int) -> None:
    """Set the bytes of a block that no field covers to zero, so that no old bytes remain there."""
    covered = bytearray(block.block_length)
    for field in block.columns.values():
        covered[field.offset : field.offset + field.size] = b"\1" * field.size
    for place, is_covered in enumerate(covered):
        if not is_covered:
            constants.put(base + place, b"\0")


def write_block(
    values: ValueWriter,
    block: Block,
    writes: Sequence[tuple[Column, Operand]],
    base: int,
    constants: ConstantBytes | None = None,
) -> list[str]:
    """The fixed part of a message or an entry: gaps, written fields, nulls.

    Args:
        base: the distance in bytes from `cursor` to the block.
        constants: constant bytes before the block, which are written with those of the block.
    """
    constants = constants or ConstantBytes()
    zero_gaps(block, constants, base)
    written = dict(writes)
    lines: list[str] = []
    for field, operand in written.items():
        lines += values.write(field, operand, constants, base)
    for field in block.columns.values():
        if field not in written:
            values.write_null(field, constants, base)
    return [*values.write_constants(constants), *lines]


def split_pure(values: ValueWriter, pure: Sequence[Operation], guarding: set[int]) -> tuple[list[str], list[str]]:
    """Lines of the operations without state: those that guards need, and the others."""
    first: list[str] = []
    rest: list[str] = []
    for operation in pure:
        (first if operation.number in guarding else rest).extend(values.operation(operation, {}))
    return first, rest


def size_bound(values: ValueWriter, operand: Operand) -> tuple[int, list[str]]:
    """The largest size of a text in bytes: a number, and expressions that are evaluated for each message."""
    if isinstance(operand, SourceField) and operand.is_variable:
        return 0, [values.size(operand)]
    if isinstance(operand, Literal) and isinstance(operand.value, bytes):
        return len(operand.value), []
    if not type_of(operand).text_size:
        return digits_size(type_of(operand)), []
    if not isinstance(operand, Operation):
        return type_of(operand).text_size, []
    of, name = operand.operands.get("of"), operand.function.name
    if name in ("text", "cut") and isinstance(of, SourceField) and of.is_variable:
        return 0, [f"min({values.size(of)}, {operand.type.text_size})"]
    if name == "concatenate":
        separator = operand.constants["separator"]
        assert isinstance(separator, bytes)
        bounds = [size_bound(values, part) for part in operand.operands.values()]
        known = len(separator) * (len(bounds) - 1) + sum(known for known, _ in bounds)
        return known, [text for _, texts in bounds for text in texts]
    return operand.type.text_size, []


class PartsWriter:
    """The groups and variable data of one conversion's output.

    Args:
        needed: returns the identities of the fields and the numbers of the operations that values depend on.
        read: identities of the fields and texts that are read.
        is_loaded: True for a field whose value is used.
        book_names: returns the template names of the books and orders that an operation reads.
    """

    def __init__(
        self,
        source: SourceMessageType,
        values: ValueWriter,
        needed: Callable[[Sequence[Operand]], tuple[set[int], set[int]]],
        read: Collection[int],
        is_loaded: Callable[[SourceField], bool],
        book_names: Callable[[Operation], dict[str, str]],
    ) -> None:
        self._numbers, self._values, self._read = numbers_of(source), values, read
        self._needed, self._is_loaded, self._book_names = needed, is_loaded, book_names

    # --- their size

    def room(self, conversion: Conversion) -> list[str]:
        """Lines that add the size of the whole output message to `need`."""
        assert conversion.target is not None
        size = frame_size(conversion.target) + least_size(conversion.groups, conversion.data)
        return self._room(size, conversion.groups, conversion.data)

    def _room(self, size: int, groups: Sequence[GroupWrite], data: Sequence[DataWrite]) -> list[str]:
        """`size`: the part of the size that is the same for every message."""
        terms: list[str] = []
        for each in data:
            if each.operand is not None:
                known, texts = size_bound(self._values, each.operand)
                size += known
                terms += texts
        terms = [str(size), *terms] if size else terms
        lines = [f"need += {' + '.join(terms)}"] if terms else []
        for group in groups:
            lines += self._group_room(group)
        return lines

    def _group_room(self, group: GroupWrite) -> list[str]:
        if group.number < 0:
            return []
        is_counted = group.source is None and not group.guards  # the entries' fixed parts are in least_size
        inside = self._room(0 if is_counted else entry_size(group), group.groups, group.data)
        limit = self._limit(group, f"entries_{group.number}")
        if not (group.pure or group.guards or group.groups or group.data):
            if group.source is None:
                return []
            count = f"count_{self._place(group)}"
            return [f"need += {count} * {entry_size(group)}", *self._limit(group, count)]
        first, rest = self._pure(group)
        body = [*first, *self._guarded(group, [*rest, *inside, *([f"entries_{group.number} += 1"] if limit else [])])]
        if not body:
            return []
        head = [f"entries_{group.number} = 0"] if limit else []
        return [*head, *self._loop(group, body, str(group.count)), *limit]

    def _limit(self, group: GroupWrite, count: str) -> list[str]:
        """Lines that check whether a source group has more entries than the output's count field can express."""
        source, most = group.source, group.target.count.maximum
        if source is None:
            return []
        if most >= (source.count if isinstance(source.count, int) else min(PLACED_MAX, source.count.kind.maximum)):
            return []
        return [f"if {count} > {most}:", "    reason = reason or TOO_LARGE"]

    def _guarded(self, group: GroupWrite, lines: list[str]) -> list[str]:
        if not group.guards:
            return lines
        test = " and ".join(self._values.guard(guard) for guard in group.guards)
        return [f"if reason == 0 and {test}:", *indented(lines)]

    def _pure(self, group: GroupWrite) -> tuple[list[str], list[str]]:
        guarding = self._needed([guard.operand for guard in group.guards])[1]
        return split_pure(self._values, group.pure, guarding)

    def _place(self, group: GroupWrite) -> int:
        assert group.source is not None
        return self._numbers[id(group.source)]

    def _loop(self, group: GroupWrite, lines: list[str], most: str) -> list[str]:
        """The lines, once per entry; `most`: the number of entries of a counted group."""
        if group.source is None:
            return [
                f"for index_{group.number} in range(1, {most} + 1):  # {shown(group.target.name)}",
                *indented(lines),
            ]
        return self.entries(group.source, (group.target.name, group.source.name), lines)

    def entries(self, source: SourceGroup, what: Sequence[str], lines: list[str]) -> list[str]:
        """The lines, once per entry of a source group; `what`: names for the comment."""
        place = self._numbers[id(source)]
        names = f"entry_{place}", f"size_of_entry_{place}", f"number_{place}"
        before, head = entry_steps(source, self._numbers, self._read, *names)
        for field in (*source.fields.values(), *(data.text for data in source.data.values())):
            head += self._values.load(field) if self._is_loaded(field) else []
        comment = " of ".join(shown(name) for name in what)
        return [*before, f"for number_{place} in range(count_{place}):  # {comment}", *indented([*head, *lines])]

    # --- their bytes

    def output(self, conversion: Conversion) -> list[str]:
        """Lines that write groups and data from `cursor` on."""
        return self._output(conversion.groups, conversion.data)

    def _output(self, groups: Sequence[GroupWrite], data: Sequence[DataWrite]) -> list[str]:
        lines: list[str] = []
        for group in groups:
            lines += self._write_group(group)
        for each in data:
            lines += self._write_data(each)
        return lines

    def _write_group(self, group: GroupWrite) -> list[str]:
        target, number = group.target, group.number
        size, empty = target.dimension.size, dimension_of(target)
        constants = ConstantBytes()
        constants.put(0, empty)
        dimension = self._values.write_constants(constants)
        if number < 0:
            return [f"# {shown(target.name)}: no entries", *dimension, f"cursor += {size}"]
        first, rest = self._pure(group)
        for operation in group.stateful:
            rest += self._values.operation(operation, self._book_names(operation))
        entry = [
            *write_block(self._values, target, group.writes, 0),
            *([f"cursor += {target.block_length}"] if target.block_length else []),
            *self._output(group.groups, group.data),
            f"entries_{number} += 1",
        ]
        if group.output_guards:
            test = " and ".join(self._values.guard(guard) for guard in group.output_guards)
            entry = [f"if {test}:", *indented(entry)]
        most = str(group.count)
        if group.levels is not None:
            most = f"min({group.count}, level_count(arena, book_{group.levels[0]}, {group.levels[1]}))"
        return [
            f"dimension_{number} = cursor  # {shown(target.name)}",
            *dimension,
            f"cursor += {size}",
            f"entries_{number} = 0",
            *self._loop(group, [*first, *self._guarded(group, [*rest, *entry])], most),
            f"store_{8 * target.count.size}(out, dimension_{number} + {target.count.offset}, entries_{number})",
        ]

    def _write_data(self, data: DataWrite) -> list[str]:
        size, operand = data.target.length_kind.size, data.operand
        if operand is None:
            return [f"store_{8 * size}(out, cursor, 0)  # {shown(data.target.name)}: empty", f"cursor += {size}"]
        if isinstance(operand, SourceField) and operand.is_variable:
            text = f"datagram, {self._values.place(operand)}, {self._values.size(operand)}"
            lines = [f"fill = copy_text(out, fill, {text})"]
        else:
            lines = self._values.append(operand)
        return [
            f"fill = cursor + {size}  # {shown(data.target.name)}",
            *lines,
            f"store_{8 * size}(out, cursor, fill - cursor - {size})",
            "cursor = fill",
        ]
