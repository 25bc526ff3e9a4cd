"""An SBE message schema as a source format: a venue's own schema, read unchanged.

Each message of the schema becomes a source message of its name: a field per value of its block (a composite of several
values gives `field_member`, an array of numbers `field_0` …; a decimal with a constant exponent is its mantissa), its
groups and variable data (an entry's field that the message, or the entry around it, has too is `group_field`). Left
out are messages whose entries a later version gave groups or data.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from dataclasses import replace

from feedcore.documents.primitive_types import PrimitiveType
from feedcore.documents.source_layout import (
    DATA_SIZE_MAX,
    SOURCE_TYPES,
    Framing,
    SourceData,
    SourceField,
    SourceGroup,
    SourceMessageType,
)
from feedcore.documents.xml_document import Node
from feedcore.sbe import Schema
from feedcore.sbe.layout import Column, columns
from feedcore.sbe.types import Block, EnumType, Field, Group, Presence, SimpleType, VarData


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
        block = message.block
        if any(_is_grown(group.block) for group in block.groups.values()):
            continue
        if message.template_id > framing.type.maximum:
            raise root.error(f"message id {message.template_id} does not fit in the framing's {framing.type.name}")
        fields = _fields(block, schema, root, "")
        parts = _parts(block, fields, schema, root)
        found[message.name] = SourceMessageType(
            message.name, message.template_id, fields, block.block_length, message.line, True, parts, framing
        )
    return found


def _is_grown(block: Block) -> bool:
    """True if a later version gave an entry groups or data: nothing in a frame says in which entries they are."""
    parts: list[Group | VarData] = [*block.groups.values(), *block.data.values()]
    return any(part.notes.since_version > 0 for part in parts) or any(
        _is_grown(group.block) for group in block.groups.values()
    )


def _parts(
    block: Block, taken: Collection[str], schema: Schema, root: Node, group: str = ""
) -> tuple[SourceGroup | SourceData, ...]:
    """Groups, then data, of a message or of a group's entry.

    Args:
        taken: names of what stands around them.
        group: whose entry it is.
    """
    parts: list[SourceGroup | SourceData] = [_group(each, taken, schema, root) for each in block.groups.values()]
    for data in block.data.values():
        kind = _kind(data.length_primitive.name)
        is_later = data.notes.since_version > 0
        name = f"{group}_{data.name}" if group and data.name in taken else data.name
        most = min(data.maximum, DATA_SIZE_MAX)
        parts.append(SourceData(name, kind, kind.size, schema.is_big_endian, data.line, is_later, most))
    return tuple(parts)


def _kind(name: str) -> PrimitiveType:
    return SOURCE_TYPES[name]


def _fields(block: Block, schema: Schema, root: Node, group: str, taken: Container[str] = ()) -> dict[str, SourceField]:
    """Fields by name; of a group's, those that the message has too are named `group_field`."""
    fields: dict[str, SourceField] = {}
    for field in (*_constants(block), *(each for column in columns(block) for each in _values(column, schema))):
        if field.name in taken:
            field = replace(field, name=f"{group}_{field.name}")
        if field.name in fields:
            raise root.error(f"{schema.document}:{field.line}: two values would be called {field.name!r}")
        fields[field.name] = field
    return fields


def _values(column: Column, schema: Schema) -> Iterator[SourceField]:
    """A column as one field; an array of numbers as one each."""
    name, primitive = column.name.replace(".", "_"), column.primitive
    null = column.null if isinstance(column.null, int) and primitive.is_integer else None
    line, order = column.field.line, schema.is_big_endian
    is_octets = primitive.name == "uint8" and column.length > 1
    if primitive.name == "char" or is_octets:
        yield SourceField(name, _kind("char"), column.offset, column.length, 0, None, line, order)
    elif column.length == 1:
        yield SourceField(name, _kind(primitive.name), column.offset, 1, column.exponent, null, line, order)
    else:
        for place in range(column.length):
            offset = column.offset + place * primitive.size
            yield SourceField(f"{name}_{place}", _kind(primitive.name), offset, 1, column.exponent, null, line, order)


def _constants(block: Block) -> Iterator[SourceField]:
    """Constants that are numbers or single characters; a longer text nobody can calculate with."""
    for field in block.fields.values():
        if field.presence is Presence.CONSTANT:
            value = _constant(field)
            if value is not None:
                yield SourceField(field.name, _kind("int64"), 0, 1, 0, None, field.line, constant=value)


def _constant(field: Field) -> int | None:
    if isinstance(field.type, EnumType) and isinstance(field.constant, str):
        return field.type.values[field.constant].value
    if isinstance(field.constant, str) and len(field.constant) == 1:
        return ord(field.constant)
    return field.constant if isinstance(field.constant, int) else None


def _group(group: Group, taken: Collection[str], schema: Schema, root: Node) -> SourceGroup:
    count, size = group.dimension.members["numInGroup"], group.dimension.members["blockLength"]
    assert isinstance(count.type, SimpleType)
    assert isinstance(size.type, SimpleType), "the schema's loader takes nothing else"
    fields = _fields(group.block, schema, root, group.name, taken)
    return SourceGroup(
        group.name,
        fields,
        group.block.block_length,
        None,
        group.dimension.size,
        _kind(count.type.primitive.name),
        count.offset,
        _kind(size.type.primitive.name),
        size.offset,
        schema.is_big_endian,
        group.line,
        group.notes.since_version > 0,
        _parts(group.block, {*fields, *taken}, schema, root, group.name),
    )
