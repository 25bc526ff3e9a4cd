"""Reading a message of a schema into plain Python values (`feedcore.sbe.values` says which).

A reader is made once from the schema: a function per field, so that reading looks nothing up. Never reads beyond the
buffer: what is too short is an `SbeReadError` that names the field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from feedcore.sbe.errors import SbeReadError
from feedcore.sbe.primitives import Number, Primitive
from feedcore.sbe.types import (
    Block,
    CompositeType,
    EncodingType,
    EnumType,
    Field,
    MessageType,
    Presence,
    Schema,
    SetType,
    SimpleType,
    VarData,
)
from feedcore.sbe.values import EMPTY_ENTRIES_MAX, SbeMessage, Unlisted

Buffer: TypeAlias = bytes | bytearray | memoryview
ReadValue: TypeAlias = Callable[[Buffer, int], Any]


class SbeReader:
    """Reads messages of one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._order = schema.byte_order
        self._header = _Frame(schema.header, self._order)
        self._blocks = {template: _BlockReader(message.block, schema) for template, message in self._messages()}

    def _messages(self) -> list[tuple[int, MessageType]]:
        return list(self.schema.by_template.items())

    def header(self, data: Buffer, offset: int = 0) -> dict[str, int]:
        """The message header's members."""
        return self._header.read(data, offset, "message header")

    def read(self, data: Buffer, offset: int = 0) -> SbeMessage:
        """Read the message that begins at `offset` with its header.

        Raises:
            SbeReadError: truncated, of another schema or an unknown template, or lengths that do not add up.
        """
        header = self.header(data, offset)
        schema = self.schema
        if header["schemaId"] != schema.schema_id:
            raise SbeReadError(f"the message is of schema {header['schemaId']}, not {schema.schema_id}")
        message = schema.by_template.get(header["templateId"])
        if message is None:
            raise SbeReadError(f"{schema.document} has no message with id {header['templateId']}")
        start = offset + self._header.size
        walk = _Walk(data, start, header["version"], message.name)
        extra = header.get("numGroups"), header.get("numVarDataFields")
        fields = self._blocks[message.template_id].read(walk, header["blockLength"], *extra)
        return SbeMessage(message.name, header, fields, walk.position - offset)


class _Walk:
    """Where reading is in a message, and in which version the message was written."""

    __slots__ = ("_empty_entries", "data", "path", "position", "version")

    def __init__(self, data: Buffer, position: int, version: int, path: str) -> None:
        self.data = data
        self.position = position
        self.version = version
        self.path = path
        self._empty_entries = 0

    def end_entry(self, start: int) -> None:
        """Count a group's entry, which began at `start`, if it took no bytes."""
        if self.position == start:
            self._empty_entries += 1
            if self._empty_entries > EMPTY_ENTRIES_MAX:
                raise SbeReadError(f"{self.path}: more than {EMPTY_ENTRIES_MAX} entries of no bytes in a message")

    def take(self, size: int, what: str) -> int:
        """The position of the next `size` bytes, which are consumed."""
        start = self.position
        if start + size > len(self.data):
            left = len(self.data) - start
            raise SbeReadError(f"{self.path}: {what} needs {size} bytes, {left} are left")
        self.position = start + size
        return start


class _Frame:
    """A composite of unsigned integers: the message header or a group's dimensions."""

    def __init__(self, kind: CompositeType, order: str) -> None:
        self.size = kind.size
        self._parts = [
            (member.name, struct.Struct(order + member.type.primitive.struct_code), member.offset)
            for member in kind.members.values()
            if isinstance(member.type, SimpleType)
        ]

    def read(self, data: Buffer, offset: int, what: str) -> dict[str, int]:
        if offset + self.size > len(data):
            raise SbeReadError(f"{what}: needs {self.size} bytes, {len(data) - offset} are left")
        return {name: part.unpack_from(data, offset + place)[0] for name, part, place in self._parts}


class _BlockReader:
    """Reads the root of a message or an entry of a group."""

    def __init__(self, block: Block, schema: Schema) -> None:
        order = schema.byte_order
        self._fields = [(field, field_reader(field, order)) for field in block.fields.values()]
        self._groups = [
            (group, _Frame(group.dimension, order), _BlockReader(group.block, schema))
            for group in block.groups.values()
        ]
        self._data = [(data, struct.Struct(order + data.length_primitive.struct_code)) for data in block.data.values()]
        found = schema.types.get("groupSizeEncoding")
        self._default_frame = _Frame(found, order) if isinstance(found, CompositeType) else None

    def read(self, walk: _Walk, block_length: int, group_count: int | None, data_count: int | None) -> dict[str, Any]:
        values: dict[str, Any] = {}
        start = walk.take(block_length, "the block")
        data, version = walk.data, walk.version
        for field, read in self._fields:
            if field.notes.since_version > version and field.presence is not Presence.CONSTANT:
                values[field.name] = None
            elif field.offset + field.size > block_length:
                end = field.offset + field.size
                raise SbeReadError(f"{walk.path}.{field.name} ends at {end}, the block has {block_length} bytes")
            else:
                values[field.name] = read(data, start + field.offset)
        for place, (group, frame, entry) in enumerate(self._groups):
            is_there = group.notes.since_version <= version if group_count is None else place < group_count
            values[group.name] = _read_group(walk, group.name, frame, entry) if is_there else []
        for _ in range(len(self._groups), group_count or 0):
            self._skip_group(walk)
        for place, (var, length) in enumerate(self._data):
            is_there = var.notes.since_version <= version if data_count is None else place < data_count
            values[var.name] = _read_data(walk, var, length) if is_there else None
        for _ in range(len(self._data), data_count or 0):
            self._skip_data(walk)
        return values

    def _skip_group(self, walk: _Walk) -> None:
        """A group that the writer's newer schema has and ours has not: walked over by the counts it carries."""
        frame = self._groups[-1][1] if self._groups else self._default_frame
        if frame is None:
            raise SbeReadError(f"{walk.path}: a group of a newer schema, and none of ours shows how groups begin")
        dimension = frame.read(walk.data, walk.take(frame.size, "a group's dimensions"), walk.path)
        for _ in range(dimension["numInGroup"]):
            start = walk.take(dimension["blockLength"], "an entry")
            for _ in range(dimension.get("numGroups", 0)):
                self._skip_group(walk)
            for _ in range(dimension.get("numVarDataFields", 0)):
                self._skip_data(walk)
            walk.end_entry(start)

    def _skip_data(self, walk: _Walk) -> None:
        if not self._data:
            raise SbeReadError(f"{walk.path}: data of a newer schema, and none of ours shows how data begins")
        length = self._data[-1][1]
        walk.take(length.unpack_from(walk.data, walk.take(length.size, "a length"))[0], "data")


def _read_group(walk: _Walk, name: str, frame: _Frame, entry: _BlockReader) -> list[dict[str, Any]]:
    outer = walk.path
    walk.path = f"{outer}.{name}"
    start = walk.take(frame.size, "its dimensions")
    dimension = frame.read(walk.data, start, walk.path)
    length, extra = dimension["blockLength"], (dimension.get("numGroups"), dimension.get("numVarDataFields"))
    entries = []
    for place in range(dimension["numInGroup"]):
        walk.path, start = f"{outer}.{name}[{place}]", walk.position
        entries.append(entry.read(walk, length, *extra))
        walk.end_entry(start)
    walk.path = outer
    return entries


def _read_data(walk: _Walk, var: VarData, length: struct.Struct) -> bytes | str:
    size = length.unpack_from(walk.data, walk.take(length.size, f"the length of {var.name}"))[0]
    start = walk.take(size, var.name)
    octets = bytes(walk.data[start : start + size])
    if not var.character_encoding:
        return octets
    return _text(octets, var.character_encoding, f"{walk.path}.{var.name}")


def _text(octets: bytes, encoding: str, path: str) -> str:
    """Text; octets that the encoding does not have are kept as lone surrogates where it is built on ASCII."""
    try:
        return octets.decode(encoding, "surrogateescape")
    except UnicodeDecodeError as wrong:
        raise SbeReadError(f"{path}: no {encoding} text: {wrong.reason} at byte {wrong.start}") from None


def field_reader(field: Field, order: str) -> ReadValue:
    """The function that reads a field; its arguments are the buffer and the field's place in it."""
    if field.presence is Presence.CONSTANT:
        return _constant_reader(field.constant)
    return value_reader(field.type, order, field.presence is Presence.OPTIONAL)


def value_reader(kind: EncodingType, order: str, is_optional: bool) -> ReadValue:
    """The function that reads an encoding."""
    if isinstance(kind, SimpleType):
        return _simple_reader(kind, order, is_optional)
    if isinstance(kind, EnumType):
        return _enum_reader(kind, order, is_optional)
    if isinstance(kind, SetType):
        return _set_reader(kind, order)
    return _composite_reader(kind, order, is_optional)


def _constant_reader(value: object) -> ReadValue:
    return lambda _data, _offset: value


def _number_reader(primitive: Primitive, order: str) -> Callable[[Buffer, int], Number]:
    unpack = struct.Struct(order + primitive.struct_code).unpack_from
    return lambda data, offset: unpack(data, offset)[0]


def _simple_reader(kind: SimpleType, order: str, is_optional: bool) -> ReadValue:
    if kind.presence is Presence.CONSTANT:
        return _constant_reader(kind.constant)
    primitive, length, null = kind.primitive, kind.length, kind.null
    if primitive.name == "char":
        return _text_reader(kind, is_optional)
    if length != 1:
        return _array_reader(kind, order)
    read = _number_reader(primitive, order)
    if not is_optional:
        return read

    def read_optional(data: Buffer, offset: int) -> Number | None:
        raw = read(data, offset)
        return None if primitive.is_null(raw, null) else raw

    return read_optional


def _text_reader(kind: SimpleType, is_optional: bool) -> ReadValue:
    size, encoding, null = kind.length, kind.character_encoding or "latin-1", chr(int(kind.null))

    def read(data: Buffer, offset: int) -> str | None:
        text = _text(bytes(data[offset : offset + size]).rstrip(b"\0"), encoding, kind.name)
        if is_optional and (not text or (size == 1 and text == null)):
            return None
        return text

    return read


def _array_reader(kind: SimpleType, order: str) -> ReadValue:
    size = kind.size
    if kind.primitive.name == "uint8":
        return lambda data, offset: bytes(data[offset : offset + size])
    unpack = struct.Struct(f"{order}{kind.length}{kind.primitive.struct_code}").unpack_from
    return lambda data, offset: list(unpack(data, offset))


def _enum_reader(kind: EnumType, order: str, is_optional: bool) -> ReadValue:
    read = _number_reader(kind.primitive, order)
    null = int(kind.null)
    names = {value: valid.name for value, valid in kind.by_value.items()}

    def read_name(data: Buffer, offset: int) -> str | Unlisted | None:
        raw = int(read(data, offset))
        if is_optional and raw == null:
            return None
        return names[raw] if raw in names else Unlisted(raw)

    return read_name


def _set_reader(kind: SetType, order: str) -> ReadValue:
    read = _number_reader(kind.primitive, order)
    names: Mapping[int, str | int] = {
        bit: kind.by_bit[bit].name if bit in kind.by_bit else bit for bit in range(8 * kind.primitive.size)
    }
    return lambda data, offset: frozenset(name for bit, name in names.items() if int(read(data, offset)) >> bit & 1)


def _composite_reader(kind: CompositeType, order: str, is_optional: bool) -> ReadValue:
    """Null if its first member is; an optional field makes the first member optional."""
    members: list[tuple[str, ReadValue, int]] = []
    first: str | None = None
    for member in kind.members.values():
        is_first = first is None and member.type.size > 0
        member_optional = (is_optional and is_first) or is_optional_type(member.type)
        members.append((member.name, value_reader(member.type, order, member_optional), member.offset))
        if is_first:
            first = member.name

    def read(data: Buffer, offset: int) -> dict[str, Any] | None:
        values = {name: read_member(data, offset + place) for name, read_member, place in members}
        return None if first is not None and values[first] is None else values

    return read


def is_optional_type(kind: EncodingType) -> bool:
    """True if the encoding itself may be null."""
    return isinstance(kind, SimpleType | EnumType) and kind.presence is Presence.OPTIONAL
