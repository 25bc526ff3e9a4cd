"""Reads a message of an SBE schema into plain Python values, which docs/sbe.md lists.

A reader is built once from the schema, with a function for each field, so that reading needs no look-ups. It never
reads beyond the buffer: a message that is too short raises an `SbeReadError` that names the field.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from typing import Any, TypeAlias

from tandemfeed.feedcore.sbe.messages import Block, Frame, Group, Schema, VarData
from tandemfeed.feedcore.sbe.types import (
    CompositeType,
    EncodingType,
    EnumType,
    Presence,
    SetType,
    SimpleType,
    may_be_null,
)

Buffer: TypeAlias = bytes | bytearray | memoryview
ReadValue: TypeAlias = Callable[[Buffer, int], Any]
ReadFrame: TypeAlias = Callable[["_Walk", str], dict[str, Any]]

# The limit of empty group entries in a message: those with only constants, or of a version without any of the fields.
# The largest datagram has this many bytes. Without a limit, the few bytes of a count could create billions of entries.
EMPTY_ENTRIES_MAX = 8_192


class SbeReadError(ValueError):
    """A message is truncated, has an unknown template or inconsistent lengths; the text names the field."""


@dataclass(frozen=True, slots=True)
class Unlisted:
    """A value that the enumeration does not list: from a newer schema, or invalid."""

    value: int


@dataclass(frozen=True, slots=True)
class SbeMessage:
    """A decoded message.

    Attributes:
        fields: fields, groups and variable data by name.
        header: the message header's members.
        size: the bytes of header and body.
    """

    name: str
    header: Mapping[str, Any]
    fields: dict[str, Any]
    size: int


EXACT = Context(prec=60, traps=[Inexact])


def as_decimal(value: Mapping[str, int] | None) -> Decimal | None:
    """The number that a composite of mantissa and exponent represents."""
    return None if value is None else EXACT.scaleb(Decimal(value["mantissa"]), value["exponent"])


class SbeReader:
    """Reads messages of one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._header = _frame_reader(schema.header, schema.byte_order)
        self._blocks = {template: _BlockReader(message, schema) for template, message in schema.by_template.items()}

    def read(self, data: Buffer, offset: int = 0) -> SbeMessage:
        """Read the message whose header begins at `offset`.

        Raises:
            SbeReadError: the message is truncated, has another schema, an unknown template or inconsistent lengths.
        """
        walk, schema = _Walk(data, offset), self.schema
        header = self._header(walk, "the header")
        is_constant = schema.header.parts["schemaId"].constant is not None
        if not is_constant and header["schemaId"] != schema.schema_id:
            raise SbeReadError(f"the message has schema id {header['schemaId']}; expected {schema.schema_id}")
        message = schema.by_template.get(header["templateId"])
        if message is None:
            raise SbeReadError(f"{schema.document} has no message with id {header['templateId']}")
        walk.version, walk.path = header["version"], message.name
        fields = self._blocks[message.template_id].read(walk, header)
        return SbeMessage(message.name, header, fields, walk.position - offset)


class _Walk:
    """The read position in a message, and the schema version that the message was written with."""

    def __init__(self, data: Buffer, position: int) -> None:
        self.data = data
        self.position = position
        self.version = 0
        self.path = "message"
        self._empty_entries = 0

    def take(self, size: int, what: str) -> int:
        """Consume the next `size` bytes; return their position."""
        start = self.position
        if start + size > len(self.data):
            left = len(self.data) - start
            raise SbeReadError(f"{self.path}: {what} needs {size} bytes, {left} are left")
        self.position = start + size
        return start

    def octets(self, length: struct.Struct, what: str) -> bytes:
        """Consume and return the next variable data, which begins with its length."""
        (size,) = length.unpack_from(self.data, self.take(length.size, f"the length of {what}"))
        start = self.take(size, what)
        return bytes(self.data[start : start + size])

    def end_entry(self, start: int) -> None:
        """Count a group entry that began at `start` if it is empty."""
        if self.position == start:
            self._empty_entries += 1
            if self._empty_entries > EMPTY_ENTRIES_MAX:
                raise SbeReadError(f"{self.path}: more than {EMPTY_ENTRIES_MAX} empty entries in a message")


def _frame_reader(frame: Frame, order: str) -> ReadFrame:
    """A function that reads the message header or a group's dimensions."""
    constants = {name: part.constant for name, part in frame.parts.items() if part.constant is not None}
    parts = [
        (name, struct.Struct(order + part.kind.struct_code), part.offset)
        for name, part in frame.parts.items()
        if part.constant is None
    ]
    others = [(name, value_reader(member.type, order, False), member.offset) for name, member in frame.others.items()]

    def read(walk: _Walk, what: str) -> dict[str, Any]:
        start = walk.take(frame.size, what)
        values: dict[str, Any] = {name: part.unpack_from(walk.data, start + place)[0] for name, part, place in parts}
        values |= constants
        for name, read_value, place in others:
            values[name] = read_value(walk.data, start + place)
        return values

    return read


class _BlockReader:
    """Reads the root of a message or an entry of a group."""

    def __init__(self, block: Block, schema: Schema) -> None:
        order = schema.byte_order
        fields = block.fields.values()
        self._fields = [(each, value_reader(each.type, order, each.presence is Presence.OPTIONAL)) for each in fields]
        groups = block.groups.values()
        self._groups = [(each, _frame_reader(each.dimension, order), _BlockReader(each, schema)) for each in groups]
        self._data = [(data, struct.Struct(order + data.length_kind.struct_code)) for data in block.data.values()]
        default = schema.default_dimension
        self._default_frame = None if default is None else _frame_reader(default, order)

    def read(self, walk: _Walk, frame: dict[str, Any]) -> dict[str, Any]:
        """The values of the block that this frame describes.

        A frame may count the groups and data of the writer's schema, which may have more or fewer of them than ours.
        """
        values: dict[str, Any] = {}
        block_length = frame["blockLength"]
        start = walk.take(block_length, "the block")
        for field, read in self._fields:
            end = field.offset + field.size
            if field.presence is Presence.CONSTANT:
                values[field.name] = field.constant
            elif field.since_version > walk.version:
                values[field.name] = None
            elif end > block_length:
                raise SbeReadError(f"{walk.path}.{field.name} ends at {end}, the block has {block_length} bytes")
            else:
                values[field.name] = read(walk.data, start + field.offset)
        count = frame.get("numGroups")
        for place, (group, dimension, entry) in enumerate(self._groups):
            is_there = group.since_version <= walk.version if count is None else place < count
            values[group.name] = _read_group(walk, group, dimension, entry) if is_there else []
        for _ in range(len(self._groups), count or 0):
            self._skip_group(walk)
        count = frame.get("numVarDataFields")
        for place, (var, length) in enumerate(self._data):
            is_there = var.since_version <= walk.version if count is None else place < count
            values[var.name] = _read_data(walk, var, length) if is_there else None
        for _ in range(len(self._data), count or 0):
            self._skip_data(walk)
        return values

    def _skip_group(self, walk: _Walk) -> None:
        """Skip a group that only the writer's newer schema has, by the counts that it carries."""
        dimension = self._groups[-1][1] if self._groups else self._default_frame
        if dimension is None:
            raise SbeReadError(
                f"{walk.path}: cannot skip a group of a newer schema: this schema has no group dimensions"
            )
        frame = dimension(walk, "a group's dimensions")
        for _ in range(frame["numInGroup"]):
            start = walk.take(frame["blockLength"], "an entry")
            for _ in range(frame.get("numGroups", 0)):
                self._skip_group(walk)
            for _ in range(frame.get("numVarDataFields", 0)):
                self._skip_data(walk)
            walk.end_entry(start)

    def _skip_data(self, walk: _Walk) -> None:
        if not self._data:
            raise SbeReadError(f"{walk.path}: cannot skip data of a newer schema: this schema has no data length")
        walk.octets(self._data[-1][1], "data")


def _read_group(walk: _Walk, group: Group, dimension: ReadFrame, entry: _BlockReader) -> list[dict[str, Any]]:
    outer = walk.path
    walk.path = f"{outer}.{group.name}"
    frame = dimension(walk, "its dimensions")
    entries = []
    for place in range(frame["numInGroup"]):
        walk.path, start = f"{outer}.{group.name}[{place}]", walk.position
        entries.append(entry.read(walk, frame))
        walk.end_entry(start)
    walk.path = outer
    return entries


def _read_data(walk: _Walk, var: VarData, length: struct.Struct) -> bytes | str:
    octets = walk.octets(length, var.name)
    if not var.character_encoding:
        return octets
    return _text(octets, var.character_encoding, f"{walk.path}.{var.name}")


def _text(octets: bytes, encoding: str, path: str) -> str:
    """Decode text. In encodings based on ASCII, invalid octets are kept as lone surrogates."""
    try:
        return octets.decode(encoding, "surrogateescape")
    except UnicodeDecodeError as wrong:
        raise SbeReadError(f"{path}: not valid {encoding}: {wrong.reason} at byte {wrong.start}") from None


def value_reader(kind: EncodingType, order: str, is_optional: bool) -> ReadValue:
    """A function that reads an encoding; its arguments are the buffer and the value's position in it."""
    if isinstance(kind, CompositeType):
        return _composite_reader(kind, order, is_optional)
    if isinstance(kind, SimpleType) and kind.presence is Presence.CONSTANT:
        return lambda _data, _offset: kind.constant
    code, value_of = value_maker(kind, may_be_null(kind, is_optional))
    unpack = struct.Struct(order + code).unpack_from
    return lambda data, offset: value_of(*unpack(data, offset))


def value_maker(kind: SimpleType | EnumType | SetType, is_nullable: bool) -> tuple[str, Callable[..., Any]]:
    """(code for `struct`, function that converts the unpacked value)."""
    code = kind.primitive.struct_code
    if isinstance(kind, SetType):
        names = {bit: name for name, bit in kind.choices.items()}
        choices = [(bit, names.get(bit, bit)) for bit in range(8 * kind.size)]
        return code, lambda raw: frozenset(choice for bit, choice in choices if raw >> bit & 1)
    null = kind.null if is_nullable else None
    if isinstance(kind, EnumType):
        listed = {value: name for name, value in kind.values.items()}
        return code, lambda raw: None if raw == null else listed.get(raw) or Unlisted(raw)
    if kind.primitive.name == "char":
        return f"{kind.length}s", _text_maker(kind, is_nullable)
    if kind.length != 1 and kind.primitive.name == "uint8":
        return f"{kind.length}s", lambda octets: octets
    if kind.length != 1:
        return f"{kind.length}{code}", lambda *raw: list(raw)
    if null is not None and math.isnan(null):
        return code, lambda raw: None if math.isnan(raw) else raw
    return code, lambda raw: None if raw == null else raw


def _text_maker(kind: SimpleType, is_nullable: bool) -> Callable[[bytes], str | None]:
    encoding, nulls = kind.character_encoding or "latin-1", {""}
    if kind.length == 1:
        nulls.add(chr(int(kind.null)))

    def text_of(octets: bytes) -> str | None:
        text = _text(octets.rstrip(b"\0"), encoding, kind.name)
        return None if is_nullable and text in nulls else text

    return text_of


def _composite_reader(kind: CompositeType, order: str, is_optional: bool) -> ReadValue:
    """A function that reads a composite. It is null if its first member is; an optional field makes that optional."""
    parts = kind.members.values()
    members = [(part, value_reader(part.type, order, is_optional and part.is_first)) for part in parts]

    def read(data: Buffer, offset: int) -> dict[str, Any] | None:
        values: dict[str, Any] = {}
        for member, read_member in members:
            values[member.name] = value = read_member(data, offset + member.offset)
            if member.is_first and value is None:
                return None
        return values

    return read
