"""An SBE message schema as a source format: a venue's own schema, read unchanged.

Each message of the schema becomes a source message of its name: a field per value of its block (a composite of several
values gives `field_member`, an array of numbers `field_0` …; a decimal with a constant exponent is its mantissa), its
groups and variable data (an entry's field that the message, or the entry around it, has too is `group_field`). Left
out are messages whose entries a later version gave groups or data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from feedcore.documents.primitive_types import PRIMITIVES
from feedcore.documents.source_layout import (
    DATA_SIZE_MAX,
    Framing,
    SourceData,
    SourceField,
    SourceGroup,
    SourceMessageType,
)
from feedcore.documents.xml_document import Node
from feedcore.sbe import Schema
from feedcore.sbe.messages import Block, Column, Field, Group
from feedcore.sbe.types import EnumType


def messages_of_schema(schema: Schema, framing: Framing, root: Node) -> dict[str, SourceMessageType]:
    """The schema's messages as source messages.

    Args:
        root: blamed where the framing does not suit the schema.

    Raises:
        DocumentError: the framing cannot tell the messages, or names collide.
    """
    if framing.block_length is None:
        raise root.error("the messages of an SBE schema need a <framing> with blockLength: versions differ in it")
    found: dict[str, SourceMessageType] = {}
    for message in schema.messages.values():
        if any(_is_grown(group) for group in message.groups.values()):
            continue
        if message.template_id > framing.type.maximum:
            raise root.error(f"message id {message.template_id} does not fit in the framing's {framing.type.name}")
        fields = _fields(message, schema, root, ())
        parts = _parts(message, fields, schema, root)
        found[message.name] = SourceMessageType(
            message.name, fields, message.block_length, parts, message.line, message.template_id, True, framing
        )
    return found


def _is_grown(entry: Block) -> bool:
    """True if a later version gave an entry groups or data: nothing in a frame says in which entries they are."""
    return any(part.since_version > 0 for part in (*entry.groups.values(), *entry.data.values())) or any(
        _is_grown(group) for group in entry.groups.values()
    )


def _parts(block: Block, taken: Collection[str], schema: Schema, root: Node) -> tuple[SourceGroup | SourceData, ...]:
    """Groups, then data, of a message or of a group's entry.

    Args:
        taken: names of what stands in it and around it.
    """
    parts: list[SourceGroup | SourceData] = [_group(group, taken, schema, root) for group in block.groups.values()]
    for data in block.data.values():
        name = f"{block.name}_{data.name}" if isinstance(block, Group) and data.name in taken else data.name
        kind, most = data.length_kind, min(data.maximum, DATA_SIZE_MAX)
        is_later = data.since_version > 0
        parts.append(SourceData(name, kind, kind.size, most, schema.is_big_endian, data.line, is_later))
    return tuple(parts)


def _group(group: Group, around: Collection[str], schema: Schema, root: Node) -> SourceGroup:
    fields = _fields(group, schema, root, around)
    return SourceGroup(
        group.name,
        fields,
        group.block_length,
        _parts(group, {*fields, *around}, schema, root),
        group.line,
        schema.is_big_endian,
        header_size=group.dimension.size,
        count_kind=group.count.kind,
        count_offset=group.count.offset,
        entry_size_kind=group.length.kind,
        entry_size_offset=group.length.offset,
        is_later=group.since_version > 0,
    )


def _fields(block: Block, schema: Schema, root: Node, around: Collection[str]) -> dict[str, SourceField]:
    """Fields by name; of a group's, those that stand around it too are named `group_field`."""
    fields: dict[str, SourceField] = {}
    constants = (field for field in map(_constant, block.fields.values()) if field is not None)
    for field in (*constants, *(each for column in block.columns.values() for each in _values(column, schema))):
        if field.name in around:
            field = replace(field, name=f"{block.name}_{field.name}")
        if field.name in fields:
            raise root.error(f"{schema.document}:{field.line}: two values would be called {field.name!r}")
        fields[field.name] = field
    return fields


def _values(column: Column, schema: Schema) -> Iterator[SourceField]:
    """A column as one field; an array of numbers as one each."""
    name, kind, length = column.name.replace(".", "_"), column.kind, column.length
    null = column.null if isinstance(column.null, int) and kind.is_integer else None
    if kind.name == "uint8" and length > 1:
        kind, null = PRIMITIVES["char"], None
    whole = SourceField(name, kind, column.offset, length, column.exponent, null, column.line, schema.is_big_endian)
    if length == 1 or kind.name == "char":
        yield whole
        return
    for place in range(length):
        yield replace(whole, name=f"{name}_{place}", offset=column.offset + place * kind.size, length=1)


def _constant(field: Field) -> SourceField | None:
    """A constant that is a number or a single character; nobody can calculate with a longer text."""
    value = field.constant
    if isinstance(field.type, EnumType) and isinstance(value, str):
        value = field.type.values[value]
    elif isinstance(value, str) and len(value) == 1:
        value = ord(value)
    if not isinstance(value, int):
        return None
    return SourceField(field.name, PRIMITIVES["int64"], 0, 1, 0, None, field.line, constant=value)
