"""An SBE message schema as a source format: a venue's own schema, loaded unchanged.

Each message of the schema becomes a source message of the same name, with one field per value of its block, its groups
and its variable data. A composite of several values becomes `field_member`, an array of numbers `field_0` …, a decimal
with a constant exponent its mantissa. A field of an entry is named `group_field` if the message, or the enclosing
entry, has a field of that name. What a later version added is null or empty in messages of earlier versions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from tandemfeed.feedcore.documents.primitive_types import PRIMITIVES
from tandemfeed.feedcore.documents.source_layout import (
    DATA_SIZE_MAX,
    BlockParts,
    Framing,
    SourceData,
    SourceField,
    SourceGroup,
    SourceMessageType,
    SourcePart,
)
from tandemfeed.feedcore.documents.xml_document import DocumentError, Node
from tandemfeed.feedcore.sbe import Schema
from tandemfeed.feedcore.sbe.messages import Block, Column, Element, Field, Group
from tandemfeed.feedcore.sbe.types import EnumType, SimpleType, time_unit

NS_SIZE = 8  # bytes of a time in nanoseconds


def messages_of_schema(schema: Schema, framing: Framing, root: Node) -> dict[str, SourceMessageType]:
    """The schema's messages as source messages.

    Args:
        root: the element to name in an error about the framing.

    Raises:
        DocumentError: the framing does not fit the messages, or names collide.
    """
    if framing.block_length is None:
        raise root.error(
            "the messages of an SBE schema need a <framing> with blockLength, because it differs between versions"
        )
    found: dict[str, SourceMessageType] = {}
    for message in schema.messages.values():
        if framing.version is None and _is_grown(message, message.since_version):
            raise root.error(f"later versions extended {message.name!r}: give <framing> version and versionOffset")
        kind = framing.type.kind
        if message.template_id > kind.maximum:
            raise root.error(f"message id {message.template_id} does not fit in the framing's {kind.name}")
        block = _block(message, schema, (), message.since_version)
        found[message.name] = SourceMessageType(*block, message.template_id, True, framing)
    return found


def _is_grown(block: Block, version: int) -> bool:
    """True if versions after `version` added anything to a message or entry."""
    parts = (*block.fields.values(), *block.groups.values(), *block.data.values())
    return any(part.since_version > version for part in parts) or any(
        _is_grown(group, version) for group in block.groups.values()
    )


def _since(part: Element, version: int) -> int:
    """The version that added a part; 0 if all that have the enclosing block, since `version`, also have the part."""
    return part.since_version if part.since_version > version else 0


def _block(block: Block, schema: Schema, around: Collection[str], version: int) -> BlockParts:
    """The parts of a `SourceBlock`.

    Args:
        around: the names of the enclosing fields.
        version: the version that added the block.
    """
    fields = _fields(block, schema, around, version)
    taken = {*fields, *around}
    parts: list[SourcePart] = [_group(group, schema, taken, version) for group in block.groups.values()]
    for data in block.data.values():
        name = f"{block.name}_{data.name}" if isinstance(block, Group) and data.name in taken else data.name
        kind, most = data.length_kind, min(data.maximum, DATA_SIZE_MAX)
        parts.append(SourceData(name, kind, kind.size, most, schema.is_big_endian, _since(data, version)))
    return block.name, fields, block.block_length, tuple(parts)


def _group(group: Group, schema: Schema, around: Collection[str], version: int) -> SourceGroup:
    block = _block(group, schema, around, max(group.since_version, version))
    length = None if group.length.constant is not None else group.length
    dimension = schema.is_big_endian, group.dimension.size, group.count, length
    return SourceGroup(*block, *dimension, _since(group, version))


def _fields(block: Block, schema: Schema, around: Collection[str], version: int) -> dict[str, SourceField]:
    """Fields by name, constants first. A group's field with the name of an enclosing field becomes `group_field`."""
    found: dict[str, SourceField] = {}
    fields = list(block.fields.values())
    constants = [(field, value) for field in fields for value in _constant(field)]
    values = [
        (field, value)
        for field in fields
        for column in field.columns()
        for value in _values(column, schema, _since(field, version), is_time=_is_time(field))
    ]
    for field, value in constants + values:
        if value.name in around:
            value = replace(value, name=f"{block.name}_{value.name}")
        if value.name in found:
            raise DocumentError(schema.document, field.line, f"two values would have the name {value.name!r}")
        found[value.name] = value
    return found


def _is_time(field: Field) -> bool:
    """True for nanoseconds since 1970."""
    meaning = field.semantic_type or (field.type.semantic_type if isinstance(field.type, SimpleType) else "")
    return time_unit(field.type, meaning) == "ns" and field.type.size == NS_SIZE


def _values(column: Column, schema: Schema, since_version: int, *, is_time: bool) -> Iterator[SourceField]:
    """A column as one field; an array of numbers as one field per number."""
    name, kind, length = column.name.replace(".", "_"), column.kind, column.length
    null = column.null if isinstance(column.null, int) and kind.is_integer else None
    if kind.name == "uint8" and length > 1:
        kind, null = PRIMITIVES["char"], None
    is_variable = kind.name == "char" and since_version > 0  # of no length in messages of earlier versions
    whole = SourceField(
        *(name, kind, column.offset, length, column.exponent, null, schema.is_big_endian),
        is_variable=is_variable,
        since_version=since_version,
        is_time=is_time,
    )
    if length == 1 or kind.name == "char":
        yield whole
        return
    for place in range(length):
        yield replace(whole, name=f"{name}_{place}", offset=column.offset + place * kind.size, length=1)


def _constant(field: Field) -> Iterator[SourceField]:
    """A constant number or single character; tables cannot use a longer text."""
    value = field.constant
    if isinstance(field.type, EnumType) and isinstance(value, str):
        value = field.type.values[value]
    elif isinstance(value, str) and len(value) == 1:
        value = ord(value)
    if isinstance(value, int):
        yield SourceField(field.name, PRIMITIVES["int64"], 0, 1, 0, None, constant=value)
