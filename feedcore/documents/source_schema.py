"""An SBE message schema as a source format: a venue's own schema, loaded unchanged.

Each message of the schema becomes a source message of the same name, with one field per value of its block, its groups
and its variable data. A composite of several values becomes `field_member`, an array of numbers `field_0` …, a decimal
with a constant exponent its mantissa. A field of an entry is named `group_field` if the message, or the enclosing
entry, has a field of that name. Messages are left out if a later version added groups or data to their entries.
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
from tandemfeed.feedcore.sbe.messages import Block, Column, Field, Group
from tandemfeed.feedcore.sbe.types import EnumType


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
        if any(_is_grown(group) for group in message.groups.values()):
            continue
        kind = framing.type.kind
        if message.template_id > kind.maximum:
            raise root.error(f"message id {message.template_id} does not fit in the framing's {kind.name}")
        block = _block(message, schema, ())
        found[message.name] = SourceMessageType(*block, message.template_id, True, framing)
    return found


def _is_grown(entry: Block) -> bool:
    """True if a later version added groups or data to an entry: a frame does not show which entries have them."""
    groups = entry.groups.values()
    return any(part.since_version > 0 for part in (*groups, *entry.data.values())) or any(map(_is_grown, groups))


def _block(block: Block, schema: Schema, around: Collection[str]) -> BlockParts:
    """The parts of a `SourceBlock`; `around` has the names of the enclosing fields."""
    fields = _fields(block, schema, around)
    taken = {*fields, *around}
    parts: list[SourcePart] = [_group(group, schema, taken) for group in block.groups.values()]
    for data in block.data.values():
        name = f"{block.name}_{data.name}" if isinstance(block, Group) and data.name in taken else data.name
        kind, most = data.length_kind, min(data.maximum, DATA_SIZE_MAX)
        parts.append(SourceData(name, kind, kind.size, most, schema.is_big_endian, data.since_version > 0))
    return block.name, fields, block.block_length, tuple(parts)


def _group(group: Group, schema: Schema, around: Collection[str]) -> SourceGroup:
    block, header_size = _block(group, schema, around), group.dimension.size
    is_later = group.since_version > 0
    length = None if group.length.constant is not None else group.length
    return SourceGroup(*block, schema.is_big_endian, header_size, group.count, length, is_later)


def _fields(block: Block, schema: Schema, around: Collection[str]) -> dict[str, SourceField]:
    """Fields by name, constants first. A group's field with the name of an enclosing field becomes `group_field`."""
    found: dict[str, SourceField] = {}
    fields = list(block.fields.values())
    constants = [(field, value) for field in fields for value in _constant(field)]
    values = [(field, value) for field in fields for column in field.columns() for value in _values(column, schema)]
    for field, value in constants + values:
        if value.name in around:
            value = replace(value, name=f"{block.name}_{value.name}")
        if value.name in found:
            raise DocumentError(schema.document, field.line, f"two values would have the name {value.name!r}")
        found[value.name] = value
    return found


def _values(column: Column, schema: Schema) -> Iterator[SourceField]:
    """A column as one field; an array of numbers as one field per number."""
    name, kind, length = column.name.replace(".", "_"), column.kind, column.length
    null = column.null if isinstance(column.null, int) and kind.is_integer else None
    if kind.name == "uint8" and length > 1:
        kind, null = PRIMITIVES["char"], None
    whole = SourceField(name, kind, column.offset, length, column.exponent, null, schema.is_big_endian)
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
