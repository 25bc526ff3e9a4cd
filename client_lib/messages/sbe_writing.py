"""Writes a message of a schema from plain Python values (docs/sbe.md lists them).

The writer guesses nothing: a missing required value, a value out of range or an unknown name raises an `SbeWriteError`
that names the field. Padding is zero. Invariant: reading a written message returns its values.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, TypeAlias

from tandemfeed.client_lib.messages.sbe_reading import EMPTY_ENTRIES_MAX, Unlisted
from tandemfeed.feedcore.documents.primitive_types import Number, Primitive
from tandemfeed.feedcore.sbe import Schema
from tandemfeed.feedcore.sbe.messages import Block, Frame, Group, VarData, constant_exponent
from tandemfeed.feedcore.sbe.types import (
    CompositeType,
    EncodingType,
    EnumType,
    Presence,
    SetType,
    SimpleType,
    may_be_null,
)

WriteValue: TypeAlias = Callable[[bytearray, int, Any, str], None]


class SbeWriteError(ValueError):
    """A value that is missing, of the wrong type or out of range; the text names the field."""


class SbeWriter:
    """Writes messages of one schema, in the schema's version."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._header = _FrameWriter(schema.header, schema.byte_order)
        self._blocks = {name: _BlockWriter(message, schema) for name, message in schema.messages.items()}

    def write(self, name: str, values: Mapping[str, Any], header: Mapping[str, int] | None = None) -> bytes:
        """A message with its header.

        Args:
            name: the message's name in the schema.
            values: fields, groups and variable data by name; optional ones may be missing.
            header: values of header members that are not in the standard; by default 0.

        Raises:
            SbeWriteError: names the field and the error.
        """
        message = self.schema.messages.get(name)
        if message is None:
            raise SbeWriteError(f"{self.schema.document} has no message {name!r}")
        parts = {
            **(header or {}),
            "blockLength": message.block_length,
            "templateId": message.template_id,
            "schemaId": self.schema.schema_id,
            "version": self.schema.version,
            "numGroups": len(message.groups),
            "numVarDataFields": len(message.data),
        }
        out = _Output(self._header.pack(parts, name))
        self._blocks[name].write(out, values, name)
        return bytes(out)


class _Output(bytearray):
    """The part of a message that is written already."""

    empty_entries = 0

    def end_entry(self, start: int, path: str) -> None:
        """Count a group's entry, which began at `start`, if it took no bytes, because readers limit their number."""
        if len(self) == start:
            self.empty_entries += 1
            if self.empty_entries > EMPTY_ENTRIES_MAX:
                raise SbeWriteError(f"{path}: more than {EMPTY_ENTRIES_MAX} empty entries in a message")


class _FrameWriter:
    """The message header or a group's dimensions; unknown parts are zero."""

    def __init__(self, frame: Frame, order: str) -> None:
        self._size = frame.size
        self._parts = [
            (name, part, struct.Struct(order + part.kind.struct_code))
            for name, part in frame.parts.items()
            if part.constant is None
        ]

    def pack(self, values: Mapping[str, int], path: str) -> bytes:
        out = bytearray(self._size)
        for name, part, packed in self._parts:
            value = values.get(name, 0)
            if not part.minimum <= value <= part.maximum:
                raise SbeWriteError(f"{path}: {name} {value} is not in {part.minimum} … {part.maximum}")
            packed.pack_into(out, part.offset, value)
        return bytes(out)


class _BlockWriter:
    """Writes the root of a message or an entry of a group."""

    def __init__(self, block: Block, schema: Schema) -> None:
        order = schema.byte_order
        self._block = block
        self._fields = [
            (field, _value_writer(field.type, order, field.presence is Presence.OPTIONAL))
            for field in block.fields.values()
            if field.presence is not Presence.CONSTANT
        ]
        self._groups = [
            (group, _FrameWriter(group.dimension, order), _BlockWriter(group, schema))
            for group in block.groups.values()
        ]
        self._data = [(data, struct.Struct(order + data.length_kind.struct_code)) for data in block.data.values()]
        self._known = {*block.fields, *block.groups, *block.data}

    def write(self, out: _Output, values: Mapping[str, Any], path: str) -> None:
        unknown = sorted(map(str, values.keys() - self._known))
        if unknown:
            raise SbeWriteError(f"{path} has no field {unknown[0]!r}")
        start = len(out)
        out += bytes(self._block.block_length)
        for field, write in self._fields:
            write(out, start + field.offset, values.get(field.name), f"{path}.{field.name}")
        for group, frame, entry in self._groups:
            _write_group(out, group, frame, entry, values.get(group.name) or (), f"{path}.{group.name}")
        for data, length in self._data:
            _write_data(out, data, length, values.get(data.name), f"{path}.{data.name}")


def _write_group(
    out: _Output, group: Group, frame: _FrameWriter, entry: _BlockWriter, rows: Sequence[Mapping[str, Any]], path: str
) -> None:
    dimension = {
        "blockLength": group.block_length,
        "numInGroup": len(rows),
        "numGroups": len(group.groups),
        "numVarDataFields": len(group.data),
    }
    out += frame.pack(dimension, path)
    for place, row in enumerate(rows):
        start = len(out)
        entry.write(out, row, f"{path}[{place}]")
        out.end_entry(start, f"{path}[{place}]")


def _write_data(out: bytearray, var: VarData, length: struct.Struct, value: bytes | str | None, path: str) -> None:
    octets = b"" if value is None else _octets(value, var.character_encoding, path)
    if not var.minimum <= len(octets) <= var.maximum:
        raise SbeWriteError(f"{path}: {len(octets)} octets, it takes {var.minimum} … {var.maximum}")
    out += length.pack(len(octets)) + octets


def _octets(value: bytes | str, encoding: str, path: str) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str) or not encoding:
        raise SbeWriteError(f"{path}: {value!r} is not {'text' if encoding else 'bytes'}")
    try:
        return value.encode(encoding, "surrogateescape")
    except UnicodeEncodeError as wrong:
        raise SbeWriteError(f"{path}: {value!r} cannot be written in {encoding}: {wrong.reason}") from None


def _value_writer(kind: EncodingType, order: str, is_optional: bool) -> WriteValue:
    if isinstance(kind, SimpleType):
        return _simple_writer(kind, order, is_optional)
    if isinstance(kind, EnumType):
        return _enum_writer(kind, order, is_optional)
    if isinstance(kind, SetType):
        return _set_writer(kind, order)
    return _composite_writer(kind, order, is_optional)


def _simple_writer(kind: SimpleType, order: str, is_optional: bool) -> WriteValue:
    if kind.presence is Presence.CONSTANT:
        return lambda _out, _offset, _value, _path: None
    if kind.primitive.name == "char":
        return _text_writer(kind, is_optional)
    if kind.length == 1:
        return _number_writer(kind, order, is_optional)
    return _array_writer(kind, order)


def _pack(part: struct.Struct, out: bytearray, offset: int, value: object, path: str) -> None:
    try:
        part.pack_into(out, offset, value)
    except (struct.error, OverflowError, TypeError) as wrong:
        raise SbeWriteError(f"{path}: {value!r} cannot be written: {wrong}") from None


def _number_writer(kind: SimpleType, order: str, is_optional: bool) -> WriteValue:
    primitive, null = kind.primitive, kind.null
    part = struct.Struct(order + primitive.struct_code)
    low = (-math.inf if primitive.is_float else primitive.minimum) if kind.minimum is None else kind.minimum
    high = (math.inf if primitive.is_float else primitive.maximum) if kind.maximum is None else kind.maximum
    bounds_null = not primitive.is_float

    def write(out: bytearray, offset: int, value: Any, path: str) -> None:
        if value is None:
            if not is_optional:
                raise SbeWriteError(f"{path} is required")
            _pack(part, out, offset, null, path)
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SbeWriteError(f"{path}: {value!r} is not a number")
        if value < low or value > high:
            raise SbeWriteError(f"{path}: {value} is not in {low} … {high}")
        if bounds_null and value == null:
            raise SbeWriteError(f"{path}: {value} is its null; write None where it is optional")
        _pack(part, out, offset, value, path)

    return write


def _text_writer(kind: SimpleType, is_optional: bool) -> WriteValue:
    size, encoding = kind.length, kind.character_encoding

    def write(out: bytearray, offset: int, value: Any, path: str) -> None:
        if value is None:
            if not is_optional:
                raise SbeWriteError(f"{path} is required")
            value = chr(int(kind.null)) if size == 1 else ""
        octets = _octets(value, encoding, path)
        if len(octets) > size:
            raise SbeWriteError(f"{path}: {value!r} takes {len(octets)} octets, it has {size}")
        out[offset : offset + size] = octets.ljust(size, b"\0")

    return write


def _array_writer(kind: SimpleType, order: str) -> WriteValue:
    part = struct.Struct(f"{order}{kind.length}{kind.primitive.struct_code}")

    def write(out: bytearray, offset: int, value: Any, path: str) -> None:
        if value is None or len(value) != kind.length:
            raise SbeWriteError(f"{path}: {value!r} does not have {kind.length} elements")
        try:
            part.pack_into(out, offset, *value)
        except (struct.error, OverflowError, TypeError) as wrong:
            raise SbeWriteError(f"{path}: {value!r} cannot be written: {wrong}") from None

    return write


def _enum_writer(kind: EnumType, order: str, is_optional: bool) -> WriteValue:
    part = struct.Struct(order + kind.primitive.struct_code)

    def write(out: bytearray, offset: int, value: Any, path: str) -> None:
        if value is None and is_optional:
            raw = int(kind.null)
        elif isinstance(value, Unlisted):
            raw = value.value
        elif isinstance(value, str) and value in kind.values:
            raw = kind.values[value]
        else:
            raise SbeWriteError(f"{path}: {value!r} is none of {', '.join(kind.values)}")
        _pack(part, out, offset, raw, path)

    return write


def _set_writer(kind: SetType, order: str) -> WriteValue:
    part = struct.Struct(order + kind.primitive.struct_code)

    def write(out: bytearray, offset: int, value: Iterable[str | int] | None, path: str) -> None:
        bits = 0
        for choice in value or ():
            if isinstance(choice, str) and choice not in kind.choices:
                raise SbeWriteError(f"{path}: {choice!r} is none of {', '.join(kind.choices)}")
            bits |= 1 << (kind.choices[choice] if isinstance(choice, str) else choice)
        _pack(part, out, offset, bits, path)

    return write


def _composite_writer(kind: CompositeType, order: str, is_optional: bool) -> WriteValue:
    members = []
    is_nullable = False
    for member in kind.members.values():
        member_optional = may_be_null(member.type, is_optional and member.is_first)
        members.append((member, _value_writer(member.type, order, member_optional)))
        is_nullable = is_nullable or (member.is_first and member_optional)
    is_decimal, exponent = kind.members.keys() == {"mantissa", "exponent"}, constant_exponent(kind)

    def write(out: bytearray, offset: int, value: Any, path: str) -> None:
        if is_decimal and isinstance(value, Decimal | int) and not isinstance(value, bool):
            try:
                value = decimal_parts(value, exponent)
            except ValueError as wrong:
                raise SbeWriteError(f"{path}: {wrong}") from None
        if value is None:
            if not is_nullable:
                raise SbeWriteError(f"{path} is required")
            _write_null(kind, out, offset, order)
            return
        if not isinstance(value, Mapping):
            wanted = "a Decimal or an int" if is_decimal else f"a dict of {', '.join(kind.members)}"
            raise SbeWriteError(f"{path}: {value!r} is not {wanted}")
        unknown = sorted(map(str, value.keys() - kind.members.keys()))
        if unknown:
            raise SbeWriteError(f"{path} has no member {unknown[0]!r}")
        for member, write_member in members:
            write_member(out, offset + member.offset, value.get(member.name), f"{path}.{member.name}")

    return write


def decimal_parts(value: Decimal | int, exponent: int | None) -> dict[str, int]:
    """Mantissa and exponent of a number.

    Args:
        exponent: the constant exponent; None: the number's own.

    Raises:
        ValueError: the number is not finite or needs more places than the exponent has.
    """
    number = Decimal(value)
    if not number.is_finite():
        raise ValueError(f"{value} is not a finite number")
    if exponent is None:
        exponent = int(number.as_tuple().exponent)
    mantissa = number.scaleb(-exponent, Context(prec=200))
    if mantissa != mantissa.to_integral_value():
        raise ValueError(f"{value} has more places than the exponent {exponent} keeps")
    return {"mantissa": int(mantissa), "exponent": exponent}


def _write_null(kind: CompositeType, out: bytearray, offset: int, order: str) -> None:
    """Write every member's null; the first member's null means that the whole composite is null."""
    for member in kind.members.values():
        place, part = offset + member.offset, member.type
        if isinstance(part, CompositeType):
            _write_null(part, out, place, order)
        elif isinstance(part, SimpleType | EnumType) and part.size:
            _fill(part.primitive, part.null, part.size // part.primitive.size, out, place, order)


def _fill(primitive: Primitive, value: Number, count: int, out: bytearray, offset: int, order: str) -> None:
    struct.pack_into(f"{order}{count}{primitive.struct_code}", out, offset, *[value] * count)
