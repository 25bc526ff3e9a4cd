"""Kernel lines of single values: loading fields, computing operations, comparing, writing output fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tandemfeed.adapter.conversion.kernel.kernel_names import in_variable, shown
from tandemfeed.adapter.conversion.kernel.kernel_tables import (
    WORD_SIZE,
    TableData,
    WordMap,
    value_words,
    word_of,
)
from tandemfeed.adapter.conversion.kernel.lines.constant_bytes import ConstantBytes, chunks
from tandemfeed.adapter.conversion.kernel.unaligned import load_expression
from tandemfeed.adapter.conversion.table.function_use import Comparison, ValueMap
from tandemfeed.adapter.conversion.table.functions import LOOK_UP
from tandemfeed.adapter.conversion.table.table import (
    Guard,
    IndexValue,
    Literal,
    Operand,
    Operation,
    PacketValue,
    key_words,
    type_of,
)
from tandemfeed.adapter.conversion.table.values import NULL, null_bits, null_of
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceGroup
from tandemfeed.feedcore.sbe.messages import Column
from tandemfeed.feedcore.wire.source_packet import SOURCE_LAYOUT

SIGN_BIT = 1 << 63
FLOAT_SIZE = 4
SOURCE_STREAM_ID = load_expression(
    SOURCE_LAYOUT.part("source_stream_id").size, str(SOURCE_LAYOUT.offsets["source_stream_id"])
)
NAN_BITS = {4: 0x7FC0_0000, 8: 0x7FF8_0000_0000_0000}  # SBE's null of floating-point numbers, by size


def signed(value: int) -> int:
    """A 64-bit pattern as the kernel's int64."""
    return value - (1 << 64) if value >= SIGN_BIT else value


def _bytes_of(literal: int | bytes, target: Column) -> bytes:
    """A literal as it is written into an output field."""
    if isinstance(literal, bytes):
        return literal.ljust(target.size, b"\0")
    return (literal & ((1 << (8 * target.size)) - 1)).to_bytes(target.size, "little")


def indented(lines: Iterable[str], levels: int = 1) -> list[str]:
    """Indent lines."""
    return [f"{'    ' * levels}{line}" for line in lines]


class ValueWriter:
    """Kernel lines of the values of one conversion.

    Args:
        number: the index of the conversion among those of its source message; it makes its variables' names unique.
        entry_fields: names of the fields of a group's entry.
        data: the words that the kernel reads; maps, texts and zones are added to it.
        has_block: messages contain the length of their fixed part, so nullable fields may be absent.
        iterated_fields: by a field's identity, the number of the source group that an output group iterates over.
        slots: by number of operation, where the answer of a function called per packet is.
        groups: the numbers of the message's groups, by their identity.
    """

    def __init__(
        self,
        number: int,
        entry_fields: frozenset[str],
        data: TableData,
        has_block: bool,
        iterated_fields: Mapping[int, int] | None = None,
        slots: Mapping[int, str] | None = None,
        groups: Mapping[int, int] | None = None,
    ) -> None:
        self._number = number
        self._entry_fields = entry_fields
        self._data = data
        self._has_block = has_block
        self._iterated_fields = iterated_fields or {}
        self._slots = slots or {}
        self._groups = groups or {}

    def place(self, field: SourceField) -> str:
        """The position of a field in the datagram."""
        if field.is_variable:
            return f"data_{in_variable(field.name)}"
        return self._fixed_place(field)

    def _fixed_place(self, field: SourceField) -> str:
        """The position of a field of a fixed part."""
        base = "entry" if field.name in self._entry_fields else "body"
        if id(field) in self._iterated_fields:
            base = f"entry_{self._iterated_fields[id(field)]}"
        return f"{base} + {field.offset}" if field.offset else base

    @staticmethod
    def size(field: SourceField) -> str:
        """The size of a text in bytes."""
        return f"length_{in_variable(field.name)}" if field.is_variable else str(field.size)

    def variable(self, operand: Operand) -> str:
        """The variable or literal of a value; a text of at most 8 bytes is a word."""
        if isinstance(operand, SourceField):
            return f"f{self._iterated_fields.get(id(operand), '')}_{in_variable(operand.name)}"
        if isinstance(operand, PacketValue):
            return operand.name if operand.name != "source_stream_id" else SOURCE_STREAM_ID
        if isinstance(operand, IndexValue):
            return f"index_{operand.group}"
        if isinstance(operand, Literal):
            value = operand.value
            return str(word_of(value) if isinstance(value, bytes) else signed(value))
        return f"v{self._number}_{operand.number}"

    def load(self, field: SourceField) -> list[str]:
        """Load a number or a text of at most 8 bytes; longer texts are only copied."""
        name, at = self.variable(field), self.place(field)
        if field.is_text:
            lines = self._find_later_text(field) if field.since_version else []
            if field.size > 8:
                return lines
            word = self.text_word(at, field.size)
            return [
                *lines,
                f"{name} = {f'word_of_text(datagram, {at}, {self.size(field)}, 0)' if field.is_variable else word}",
            ]
        text = load_expression(field.size, at, signed=field.kind.minimum < 0, is_big_endian=field.is_big_endian)
        lines = [f"{name} = {text}"]
        if field.null is not None and signed(field.null) != NULL:
            lines += [f"if {name} == {signed(field.null)}:", f"    {name} = NULL"]
        if field.is_nullable and self._has_block:
            null = NAN_BITS[field.size] if field.kind.is_float else "NULL"
            return [f"{name} = {null}", f"if {self._is_there(field)}:", *indented(lines)]
        return lines

    def _is_there(self, field: SourceField) -> str:
        """The condition for a field that shorter blocks and messages of earlier versions do not have."""
        block = "size_of_entry" if field.name in self._entry_fields else "block"
        if id(field) in self._iterated_fields:
            block = f"size_of_entry_{self._iterated_fields[id(field)]}"
        version = f"version >= {field.since_version} and " if field.since_version else ""
        return f"{version}{block} >= {field.offset + field.size}"

    def _find_later_text(self, field: SourceField) -> list[str]:
        """Lines that give a text its place and size, which is 0 in a message that does not have it."""
        at, size = self.place(field), self.size(field)
        return [
            f"{at} = {self._fixed_place(field)}",
            f"{size} = 0",
            f"if {self._is_there(field)}:",
            f"    {size} = text_size(datagram, {at}, {field.size})",
        ]

    @staticmethod
    def text_word(at: str, size: int) -> str:
        """A text of at most 8 bytes as a word, without trailing blanks."""
        return f"trim_word({load_expression(size, at)})"

    def key_words(self, key: Operand, at: str, words: int) -> list[str]:
        """Lines that put a key into `words` words of the arena from `at` on; a text ends with zeros."""
        size, own = type_of(key).text_size, key_words(type_of(key))
        if size > WORD_SIZE or (size and isinstance(key, Operation)):
            lines = self._words_of_text(key, at, own)
        else:
            lines = [f"arena[{at}] = {self.variable(key)}"]
        return [*lines, *(f"arena[{at} + {word}] = 0" for word in range(own, words))]

    def _words_of_text(self, key: Operand, at: str, words: int) -> list[str]:
        """`key_words` of a text of more than one word, or of the beginning of a field."""
        of, size = key, type_of(key).text_size
        if isinstance(key, Operation):
            of = key.operands["of"]
        assert isinstance(of, SourceField)
        length = self.size(of) if key is of else f"min({self.size(of)}, {size})"
        return [f"put_text(arena, {at}, datagram, {self.place(of)}, {length}, {words})"]

    def operation(self, operation: Operation, names: dict[str, str]) -> list[str]:
        """Lines that compute an operation.

        Args:
            names: the names of the rows and orders that its cells are in.
        """
        function, result = operation.function, self.variable(operation)
        if function.shape == "peek":
            return self._peek(operation, names)
        if function.shape == "entry":
            return self._entry(operation)
        if function.shape == "text" and not operation.lines:
            return []
        names = {**names, **self._constants(operation), "r": result, "best": result}
        names |= {argument: self.variable(operand) for argument, operand in operation.operands.items()}
        if operation.space is not None and operation.type.bits is not None:
            names |= {name: self._double(operand) for name, operand in operation.operands.items() if name != "source"}
        names["slot"] = self._slots.get(operation.number, "")
        if operation.space is not None:
            names |= self._cells(operation, names)
            if function.shape == "kept text":
                return [*self._keep_text(operation, names), f"{result} = {function.value.format(**names)}"]
            update = (line.format(**names) for line in (*function.update, *function.read))
            return [*update, f"{result} = {function.value.format(**names)}"]
        if "level" in operation.operands:
            names["depth"] = f"{names['level']} - 1"
        if function.shape == "book":
            return [f"{result} = {function.value.format(**names)}"]
        is_index = function.name == "map" and operation.type.text_size  # the text itself is read when it is written
        lines = [line.format(**names) for line in (LOOK_UP if is_index else operation.lines)]
        nullable = [self.variable(operand) for operand in operation.operands.values() if type_of(operand).is_nullable]
        if function.skips_null and nullable:
            test = " and ".join(f"{variable} != NULL" for variable in nullable)
            return [f"{result} = NULL", f"if {test}:", *indented(lines)]
        return lines

    def _double(self, operand: Operand) -> str:
        """The bits of a float or double as those of a double."""
        bits, variable = type_of(operand).bits, self.variable(operand)
        return f"widened({variable})" if bits is not None and bits.size == FLOAT_SIZE else variable

    def _cells(self, operation: Operation, names: dict[str, str]) -> dict[str, str]:
        row = names[self.row_name(operation)]
        cells = {f"c{place}": f"arena[{row} + {column}]" for place, column in enumerate(operation.columns)}
        return cells | {"cells": f"{row} + {operation.columns[0]}"}

    def _keep_text(self, operation: Operation, names: dict[str, str]) -> list[str]:
        """Lines that put a text into its cells, unless it is blank; shorter texts end with zeros."""
        of, most = operation.operands["of"], ""
        if isinstance(of, Operation):  # the beginning of a field
            most, of = str(of.constants["length"]), of.operands["of"]
        assert isinstance(of, SourceField)
        size = f"min({self.size(of)}, {most})" if most else self.size(of)
        text = f"datagram, {self.place(of)}, {size}"
        words = (f"{names[f'c{place}']} = word_of_text({text}, {place})" for place in range(len(operation.columns)))
        return [f"if text_size({text}) > 0:  # {shown(of.name)}", *indented(words)]

    def row_name(self, operation: Operation) -> str:
        """The name of the row of an operation's state."""
        return f"row {operation.space} {' '.join(self.variable(key) for key in operation.keys)}"

    def _peek(self, operation: Operation, names: dict[str, str]) -> list[str]:
        """The keeper's value, without its update."""
        keeper, result = operation.peeks, self.variable(operation)
        assert keeper is not None
        names = {**names, **self._cells(operation, names), "r": result, "best": result}
        names |= {name: str(value) for name, value in keeper.constants.items()}
        read = (line.format(**names) for line in keeper.function.read)
        return [*read, f"{result} = {keeper.function.value.format(**names)}"]

    def _entry(self, operation: Operation) -> list[str]:
        """The value of a field in an entry that its number names; after the walk, all entries are known to be there."""
        field, group, result = operation.operands["of"], operation.constants["group"], self.variable(operation)
        assert isinstance(field, SourceField)
        assert isinstance(group, SourceGroup)
        place, number = self._groups[id(group)], self.variable(operation.operands["number"])
        is_signed = field.kind.minimum < 0
        load = load_expression(
            field.size, f"picked + {field.offset}", signed=is_signed, is_big_endian=field.is_big_endian
        )
        there = f"{number} > 0 and {number} <= count_{place} and size_{place} >= {field.offset + field.size}"
        version = f"version >= {field.since_version} and " if field.since_version else ""
        lines = [f"picked = first_{place} + ({number} - 1) * size_{place}", f"{result} = {load}"]
        if field.null is not None and signed(field.null) != NULL:
            lines += [f"if {result} == {signed(field.null)}:", f"    {result} = NULL"]
        return [f"{result} = NULL", f"if {version}{there}:  # {shown(group.name)}", *indented(lines)]

    def _constants(self, operation: Operation) -> dict[str, str]:
        """The constants of the templates, as source text."""
        names: dict[str, str] = {}
        of = operation.operands.get("of")
        for name, value in operation.constants.items():
            if isinstance(value, ValueMap):
                names |= self._map(value, operation)
            elif isinstance(value, Comparison):
                assert of is not None
                names["condition"] = self.comparison(of, value)
            elif name == "zone":
                names["midnight"] = self._data.midnight(str(value))
            else:
                names[name] = str(value).format(r=self.variable(operation)) if isinstance(value, str) else str(value)
        if isinstance(of, SourceField) and of.is_text:
            names |= {"of_at": self.place(of), "of_size": self.size(of)}
        return names

    def _map(self, value_map: ValueMap, operation: Operation) -> dict[str, str]:
        of, result = operation.operands["of"], self.variable(operation)
        found = self._data.map(value_map, is_word=type_of(of).text_size <= WORD_SIZE)
        if isinstance(found, WordMap):
            call = f"look_up(tables, {found.at}, {found.count}, {self.variable(of)})"
        else:
            assert isinstance(of, SourceField)
            text = f"{self.place(of)}, {self.size(of)}"
            call = f"look_up_text(datagram, {text}, tables, {found.at}, {found.mask}, {found.words})"
        names = {"look_up": call, "map_values": found.values}
        if value_map.default is None:
            return names | {"missing": "reason = reason or UNMAPPED"}
        if value_map.has_text_values:
            return names | {"missing": f"{result} = {found.count}"}
        return names | {"missing": f"{result} = {value_map.default!r}"}

    def guard(self, guard: Guard) -> str:
        """An expression that is true if the guard is satisfied."""
        return self.comparison(guard.operand, guard.comparison)

    def comparison(self, operand: Operand, comparison: Comparison) -> str:
        """A comparison as an expression; null is neither above nor below any value."""
        found, variable, literal = type_of(operand), self.variable(operand), comparison.literal
        if isinstance(literal, bytes):
            negation = "not " if comparison.how == "isNot" else ""
            literal = literal.rstrip(b" \0")
            if found.text_size <= 8:
                return f"{negation}{variable} == {word_of(literal)}"
            assert isinstance(operand, SourceField)
            at = self._data.literal(literal)
            text = f"{self.place(operand)}, {self.size(operand)}"
            return f"{negation}is_text(datagram, {text}, tables, {at}, {len(literal)})"
        if comparison.how == "isNull":
            return f"{variable} {'==' if literal else '!='} NULL"
        assert isinstance(literal, int)
        sign = {"is": "==", "isNot": "!=", "above": ">", "below": "<", "atLeast": ">=", "atMost": "<="}[comparison.how]
        text = f"{variable} {sign} {int(literal)}"
        return (
            f"({variable} != NULL and {text})" if found.is_nullable and comparison.how not in ("is", "isNot") else text
        )

    def write(self, target: Column, operand: Operand, constants: ConstantBytes, base: int = PREFIX_SIZE) -> list[str]:
        """Write a value into its output field, whose block begins `base` bytes after `cursor`.

        Args:
            constants: gets the bytes that are the same in every message.
        """
        at, found = base + target.offset, type_of(operand)
        if isinstance(operand, Literal):
            constants.put(at, _bytes_of(operand.value, target))
            return []
        if found.bits is not None:
            return [f"store_{8 * target.size}(out, cursor + {at}, {self.variable(operand)})  # {shown(target.name)}"]
        if not found.text_size:
            return [
                f"store_{8 * target.size}(out, cursor + {at}, {self._stored(target, operand)})  # {shown(target.name)}"
            ]
        if isinstance(operand, SourceField):
            if operand.is_variable:
                return [
                    f"fill = copy_text(out, cursor + {at}, datagram, {self.place(operand)}, {self.size(operand)})"
                    f"  # {shown(target.name)}",
                    f"zero_rest(out, fill, cursor + {at + target.size})",
                ]
            constants.put(at + operand.size, bytes(target.size - operand.size))
            return [f"# {shown(target.name)}", *self._copy(at, self.place(operand), operand.size)]
        assert isinstance(operand, Operation)
        if (word := self._short_text(operand)) is not None:
            size = min(target.size, WORD_SIZE)
            constants.put(at + size, bytes(target.size - size))
            return [f"# {shown(target.name)}", *self._store_word(at, word, size)]
        return [
            f"fill = cursor + {at}  # {shown(target.name)}",
            *self.append(operand),
            f"zero_rest(out, fill, cursor + {at + target.size})",
        ]

    def _stored(self, target: Column, operand: Operand) -> str:
        variable = self.variable(operand)
        null = null_of(target)
        if not type_of(operand).is_nullable or null is None or signed(null) == NULL:
            return variable
        return f"{signed(null)} if {variable} == NULL else {variable}"

    def write_constants(self, constants: ConstantBytes) -> list[str]:
        """Lines that write the bytes that are the same in every message; they come before all others of the output."""
        return constants.lines(self._data)

    @staticmethod
    def write_null(target: Column, constants: ConstantBytes, base: int = PREFIX_SIZE) -> None:
        """Write the null value of the message model; a text becomes zeros."""
        null = b"\0" if target.kind.name == "char" else null_bits(target).to_bytes(target.kind.size, "little")
        constants.put(base + target.offset, null * target.length)

    def _short_text(self, operation: Operation) -> str | None:
        """The word of a text that is the beginning of a field of at most 8 bytes; None for any other text."""
        of = operation.operands.get("of")
        if operation.function.name not in ("text", "cut") or not isinstance(of, SourceField):
            return None
        if of.is_variable or of.size > WORD_SIZE:
            return None
        mask = (1 << (8 * operation.type.text_size)) - 1
        return self.variable(of) if operation.type.text_size == of.size else f"({self.variable(of)} & {signed(mask)})"

    @staticmethod
    def _store_word(at: int, word: str, size: int) -> list[str]:
        """Write the first `size` bytes of a word."""
        return [
            f"store_{8 * chunk}(out, cursor + {at + place}, {f'{word} >> {8 * place}' if place else word})"
            for place, chunk in chunks(0, size)
        ]

    @staticmethod
    def _copy(at: int, source: str, size: int) -> list[str]:
        """Copy bytes in words."""
        return [
            f"store_{8 * chunk}(out, cursor + {at + place}, load_u{8 * chunk}(datagram, {source} + {place}))"
            for place, chunk in chunks(0, size)
        ]

    def append(self, operand: Operand) -> list[str]:
        """Write a value as text at `fill`."""
        found, variable = type_of(operand), self.variable(operand)
        if isinstance(operand, SourceField) and found.text_size:
            size = self.size(operand)
            return [f"fill = append_text(out, fill, datagram, {self.place(operand)}, {size}, {size})"]
        if isinstance(operand, Literal) and isinstance(operand.value, bytes):
            return self._append_bytes(operand.value)
        if not found.text_size:
            return [f"fill = append_number(out, fill, {variable}, 0)"]
        assert isinstance(operand, Operation)
        of, keeper = operand.operands.get("of"), operand.peeks or operand
        if keeper.function.shape == "kept text":
            return [f"fill = append_table_text(out, fill, arena, {variable}, {keeper.constants['words']})"]
        if operand.function.name == "order_by":
            words = -(-found.text_size // WORD_SIZE)
            if words > 1:
                return [f"fill = append_table_text(out, fill, arena, {variable}, {words})"]
            return [f"fill = append_word(out, fill, {variable})"]
        if operand.function.name in ("text", "cut"):
            assert isinstance(of, SourceField)
            length = operand.constants["length"]
            return [f"fill = append_text(out, fill, datagram, {self.place(of)}, {self.size(of)}, {length})"]
        if operand.function.name == "digits":
            assert of is not None
            return [f"fill = append_number(out, fill, {self.variable(of)}, {-(type_of(of).exponent or 0)})"]
        if operand.function.name == "map":
            value_map = operand.constants["map"]
            assert isinstance(value_map, ValueMap)
            assert of is not None
            words = value_words(value_map)
            at = self._data.map(value_map, is_word=type_of(of).text_size <= WORD_SIZE).values_at
            return [f"fill = append_table_text(out, fill, tables, {at} + {variable} * {words}, {words})"]
        separator = operand.constants["separator"]
        assert isinstance(separator, bytes)
        lines: list[str] = []
        for place, each in enumerate(operand.operands.values()):
            lines += self._append_bytes(separator) if place else []
            lines += self.append(each)
        return lines

    @staticmethod
    def _append_bytes(text: bytes) -> list[str]:
        lines = [f"store_8(out, fill + {place}, {byte})" for place, byte in enumerate(text)]
        return [*lines, f"fill += {len(text)}"] if text else []
