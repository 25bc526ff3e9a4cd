"""Kernel lines that convert one source message.

First everything that can fail is checked; then state is changed and output is written. A message that fails changes
only a count.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from tandemfeed.adapter.conversion.kernel.calls.packet_calls import slot_lines, slots_of
from tandemfeed.adapter.conversion.kernel.kernel_names import shown
from tandemfeed.adapter.conversion.kernel.kernel_tables import TableData
from tandemfeed.adapter.conversion.kernel.lines.constant_bytes import ConstantBytes
from tandemfeed.adapter.conversion.kernel.lines.kernel_groups import PartsWriter, split_pure, write_block
from tandemfeed.adapter.conversion.kernel.lines.kernel_operations import ValueWriter, indented
from tandemfeed.adapter.conversion.kernel.lines.kernel_orders import book_lines, order_lines
from tandemfeed.adapter.conversion.kernel.lines.kernel_walk import entry_steps, numbers_of, walk
from tandemfeed.adapter.conversion.table.table import (
    Conversion,
    ConverterTable,
    Operand,
    Operation,
    all_groups,
    key_words,
    type_of,
)
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE, frame_size
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceGroup, SourceMessageType
from tandemfeed.feedcore.wire.output_packet import FRAME_LAYOUT, OUTPUT_FRAME_SIZE
from tandemfeed.feedcore.wire.sbe_header import SBE_HEADER_LAYOUT


def needed(operands: Iterable[Operand]) -> tuple[set[int], set[int]]:
    """(identities of source fields, numbers of operations) that values depend on, directly or indirectly."""
    fields: set[int] = set()
    numbers: set[int] = set()
    waiting = list(operands)
    while waiting:
        operand = waiting.pop()
        if isinstance(operand, SourceField):
            fields.add(id(operand))
        elif isinstance(operand, Operation) and operand.number not in numbers:
            numbers.add(operand.number)
            waiting += [*operand.operands.values(), *operand.keys]
    return fields, numbers


def values_used(conversion: Conversion) -> list[Operand]:
    """All values that a conversion uses, except those that it only copies into the output."""
    found: list[Operand] = [guard.operand for guard in (*conversion.guards, *conversion.output_guards)]
    found += [*conversion.pure, *conversion.stateful]
    for group in all_groups(conversion.groups):
        found += [guard.operand for guard in (*group.guards, *group.output_guards)]
        found += [*group.pure, *group.stateful]
    for action in conversion.orders:
        found += [*([action.key] if action.key else []), *action.operands.values()]
        found += [action.guard.operand] if action.guard else []
    return found + [key for _, key in conversion.book_reads]


def values_written(conversion: Conversion) -> list[Operand]:
    """The values that a conversion writes."""
    found = [operand for _, operand in conversion.writes]
    data = list(conversion.data)
    for group in all_groups(conversion.groups):
        found += [operand for _, operand in group.writes]
        data += group.data
    return found + [each.operand for each in data if each.operand is not None]


class MessageWriter:
    """The kernel lines of one source message and of all its conversions."""

    def __init__(
        self, table: ConverterTable, source: SourceMessageType, conversions: list[Conversion], data: TableData
    ) -> None:
        self._table = table
        self._source = source
        self._conversions = conversions
        self._numbers = numbers_of(source)
        self._framing = source.framing
        has_block = self._framing.block_length is not None
        self._used_fields = set[int]().union(*(needed(values_used(each))[0] for each in conversions))
        self._needed = self._used_fields.union(*(needed(values_written(each))[0] for each in conversions))
        self._values = [
            ValueWriter(
                number,
                frozenset(each.each.fields if each.each else ()),
                data,
                has_block,
                self._iterated_fields(each),
                slots_of(number, each),
                self._numbers,
            )
            for number, each in enumerate(conversions)
        ]
        self._parts = [
            PartsWriter(source, values, needed, self._needed, self._is_loaded, self._book_names)
            for values in self._values
        ]
        self._is_fixed = not source.parts and not source.longer

    @property
    def name(self) -> str:
        """The name of the source message."""
        return self._source.name

    def condition(self) -> str:
        """The expression that checks type and length."""
        if self._is_fixed:
            return f"kind == {self._source.type_id} and length == {self._source.frame_size}"
        least = self._framing.header_size + (0 if self._framing.block_length else self._source.size)
        return f"kind == {self._source.type_id} and length >= {max(least, self._framing.size_min)}"

    def lines(self, when_full: str) -> list[str]:
        """The lines that convert the message.

        Args:
            when_full: the statement that ends the conversion if the output has no room for this message.
        """
        names = ", ".join(shown(each.target.name) if each.target else "state" for each in self._conversions)
        lines = [f"# {shown(self._source.name)} -> {names}"]
        if not self._is_fixed:
            lines += walk(self._source, self._needed)
        body = [
            *self._load_body(),
            *slot_lines(self._source, self._conversions, "slots[index - done]"),
            "need = 0",
            *self._check(),
            *self._make_room(when_full),
            "if reason == 0:",
            *indented(self._act()),
        ]
        return [*lines, *(body if self._is_fixed else ["if reason == 0:", *indented(body)])]

    def _fields_read(self, group: SourceGroup | None) -> list[SourceField]:
        """The fields used, of the body or of a group's entries."""
        fields = self._source.fields if group is None else group.fields
        return [field for field in fields.values() if id(field) in self._needed and field.constant is None]

    def _iterated_fields(self, conversion: Conversion) -> dict[int, int]:
        """The fields of the source groups that the conversion iterates over."""
        sources = [group.source for group in all_groups(conversion.groups) if group.source is not None]
        sources += conversion.within
        return {id(field): self._numbers[id(group)] for group in sources for field in group.fields.values()}

    def _is_loaded(self, field: SourceField) -> bool:
        return id(field) in self._needed and field.constant is None and self._is_used(field)

    def _is_used(self, field: SourceField) -> bool:
        """False for a text that is only copied from its place: it is never loaded."""
        if not field.is_text or field.since_version:
            return True
        return id(field) in self._used_fields

    def _load_body(self) -> list[str]:
        lines: list[str] = []
        for field in filter(self._is_used, self._fields_read(None)):
            lines += self._values[0].load(field) if field.name not in self._hidden(0) else self._load_plainly(field)
        for data in self._source.data.values():
            lines += self._load_plainly(data.text) if id(data.text) in self._used_fields else []
        return lines

    def _hidden(self, number: int) -> set[str]:
        """Names of the message's fields that mean the entry's fields in a conversion with each=."""
        each = self._conversions[number].each
        return set(each.fields) if each else set()

    def _load_plainly(self, field: SourceField) -> list[str]:
        """Load a field from the message's body, even if a field of an entry has the same name."""
        return ValueWriter(0, frozenset(), TableData(), self._framing.block_length is not None).load(field)

    # --- what can fail

    def _check(self) -> list[str]:
        lines: list[str] = []
        for number, conversion in enumerate(self._conversions):
            lines += self._per_entry(number, conversion, self._check_one(number, conversion))
        return lines

    def _per_entry(self, number: int, conversion: Conversion, lines: list[str]) -> list[str]:
        """The lines, once per entry if the conversion has each=."""
        group = conversion.each
        if group is None:
            return lines
        place = self._numbers[id(group)]
        names = "entry", "size_of_entry", "entry_number"
        before, head = entry_steps(group, self._numbers, self._needed, *names)
        for field in filter(self._is_used, self._fields_read(group)):
            head += self._values[number].load(field)
        for data in group.data.values():
            head += self._values[number].load(data.text) if id(data.text) in self._used_fields else []
        lines = [
            *before,
            f"for entry_number in range(count_{place}):  # {shown(group.name)}",
            *indented([*head, *lines]),
        ]
        for outer in reversed(conversion.within):
            lines = self._parts[number].entries(outer, (outer.name,), lines)
        return lines

    def _check_one(self, number: int, conversion: Conversion) -> list[str]:
        """Guards, operations without state, and the size of the output."""
        first, rest = self._pure(number, conversion)
        if conversion.target is not None:
            rest += self._parts[number].room(conversion)
        return [*first, *self._guarded(number, conversion, rest)]

    def _pure(self, number: int, conversion: Conversion) -> tuple[list[str], list[str]]:
        """Lines of the operations without state: those that guards need, and the others."""
        _, guarding = needed(guard.operand for guard in conversion.guards)
        return split_pure(self._values[number], conversion.pure, guarding)

    def _guarded(self, number: int, conversion: Conversion, lines: list[str]) -> list[str]:
        if not conversion.guards or not lines:
            return lines
        test = " and ".join(self._values[number].guard(guard) for guard in conversion.guards)
        return [f"if reason == 0 and {test}:", *indented(lines)]

    def _make_room(self, when_full: str) -> list[str]:
        if all(conversion.target is None for conversion in self._conversions):
            return []
        is_full = "if reason == 0 and cursor + need > end:"
        if self._always_fits:
            return [is_full, f"    {when_full}"]
        return [
            is_full,
            f"    if need > {self._table.room}:",
            "        reason = TOO_LARGE",
            "    else:",
            f"        {when_full}",
        ]

    @property
    def _always_fits(self) -> bool:
        """True if a datagram has room for all outputs of any such message."""
        targets = [each.target for each in self._conversions if each.target is not None]
        if any(each.each is not None for each in self._conversions) or not all(each.is_fixed for each in targets):
            return False
        return sum(map(frame_size, targets)) <= self._table.room

    # --- what changes state and writes output

    def _act(self) -> list[str]:
        lines: list[str] = []
        for number, conversion in enumerate(self._conversions):
            act = self._act_one(number, conversion)
            if conversion.each is None:
                act = self._guarded(number, conversion, act)
                lines += act if number == 0 else ["if reason == 0:", *indented(act)]
                continue
            first, rest = self._pure(number, conversion)  # each entry computes its values again
            act = ["if reason == 0:", *indented(act)]
            lines += self._per_entry(number, conversion, [*first, *self._guarded(number, conversion, [*rest, *act])])
        if not any("reason = " in line for line in lines):
            return lines
        return [
            "cursor_before, written_before = cursor, written",
            *lines,
            "if reason != 0:",
            "    cursor, written = cursor_before, written_before",
        ]

    def _act_one(self, number: int, conversion: Conversion) -> list[str]:
        values = self._values[number]
        names: dict[str, str] = {}
        rows: list[str] = []
        for operation in conversion.stateful:
            if operation.space is not None and values.row_name(operation) not in names:
                row = f"row_{number}_{len(names)}"
                names[values.row_name(operation)] = row
                rows += self._find_row(values, operation, row)
        books = {action.book: action.key for action in conversion.orders} | dict(conversion.book_reads)
        lines: list[str] = []
        for action in conversion.orders:
            lines += order_lines(values, self._table.books, conversion, action)
        for book, key in sorted(books.items(), key=itemgetter(0)):
            lines += book_lines(values, self._table.books[book].spaces, conversion, book, key)
        for operation in conversion.stateful:
            lines += values.operation(operation, names | self._book_names(operation))
        output = self._output(number, conversion)
        if conversion.output_guards:
            output = [
                f"if {' and '.join(values.guard(guard) for guard in conversion.output_guards)}:",
                *indented(output),
            ]
        lines += output
        for space in sorted({operation.space for operation in conversion.stateful if operation.space is not None}):
            lines += [f"settle_down(arena, SPACE_{space})"]
        for book in sorted({action.book for action in conversion.orders}):
            lines += [f"settle_down(arena, SPACE_{self._table.books[book].spaces.orders})"]
        return [*rows, "if reason == 0:", *indented(lines)] if rows else lines

    def _find_row(self, values: ValueWriter, operation: Operation, row: str) -> list[str]:
        space, lines, word = f"SPACE_{operation.space}", list[str](), 0
        for key in operation.keys:
            words = key_words(type_of(key))
            lines += values.key_words(key, f"{space} + KEY + {word}", words)
            word += words
        return [*lines, f"{row} = find_row(arena, {space}, session)", f"if {row} < 0:", "    reason = TOO_MANY_KEYS"]

    @staticmethod
    def _book_names(operation: Operation) -> dict[str, str]:
        book = operation.book
        if book is None:
            return {}
        return {f"order_{what}": f"order_{what}_{book}" for what in ("price", "size", "side")} | {
            "book_row": f"book_{book}",
            "order_by": f"order_by_{book}",
        }

    def _output(self, number: int, conversion: Conversion) -> list[str]:
        target = conversion.target
        if target is None:
            return []
        header = (target.block_length, target.template_id, self._table.schema_id, self._table.schema_version)
        places = [OUTPUT_FRAME_SIZE + offset for offset in SBE_HEADER_LAYOUT.offsets.values()]
        size, constants = frame_size(target), ConstantBytes()
        for place, value in zip(places, header, strict=True):
            constants.put(place, value.to_bytes(2, "little"))
        if target.is_fixed:
            constants.put(0, size.to_bytes(2, "little"))
        lines = [
            f"# {shown(target.name)}" if target.is_fixed else f"begin_{number} = cursor  # {shown(target.name)}",
            *write_block(self._values[number], target, conversion.writes, PREFIX_SIZE, constants),
            f"store_16(out, cursor + {FRAME_LAYOUT.offsets['source_offset']}, index)",
            f"cursor += {size}",
        ]
        if not target.is_fixed:
            lines += self._parts[number].output(conversion)
            lines += [f"store_16(out, begin_{number}, cursor - begin_{number})"]
        return [*lines, "written += 1"]
