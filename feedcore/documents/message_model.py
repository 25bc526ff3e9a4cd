"""The message model: the schema of the output, an SBE message schema (FIX Simple Binary Encoding 1.0, XML).

A thin view of `feedcore.sbe` for those who handle output frames: whole packets as numpy arrays of the messages of fixed
size, single messages, also those with groups and variable data, as dicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedcore.documents.primitive_types import PRIMITIVES, PrimitiveType
from feedcore.documents.xml_document import DocumentError
from feedcore.sbe import SbeMessage, SbeReader, Schema, load_schema
from feedcore.sbe.layout import Column, block_dtype, columns
from feedcore.sbe.primitives import Number
from feedcore.sbe.types import Block, EncodingType, Group, Member, MessageType, SimpleType
from feedcore.wire.output_packet import FRAME_LAYOUT, OUTPUT_FRAME, OUTPUT_FRAME_SIZE
from feedcore.wire.sbe_header import SBE_HEADER_LAYOUT, SBE_HEADER_SIZE, SBE_MESSAGE_HEADER

PREFIX_SIZE = OUTPUT_FRAME_SIZE + SBE_HEADER_SIZE
_HEADER_PARTS = list(SBE_HEADER_LAYOUT.offsets)
_PREFIX = [(name, "<u2") for name in (*FRAME_LAYOUT.offsets, *_HEADER_PARTS)]
_KINDS = SBE_HEADER_LAYOUT.dtype(("templateId", "schemaId"))
# No integer fits in them without a cast, so the ranges are empty.
_FLOATS = {
    "float": PrimitiveType("float", 4, "<f4", 0, 0),
    "double": PrimitiveType("double", 8, "<f8", 0, 0),
}


@dataclass(frozen=True, slots=True)
class ModelField:
    """One value of an output message; a composite of several values gives one each, named `field.member`.

    Attributes:
        offset: in the block, bytes.
        length: elements.
        exponent: of a decimal with a constant one; otherwise 0.
        null: what means "not set" on the wire; None where it must be set.
        encoding: simple type, enumeration or set of the schema.
    """

    name: str
    field_id: int
    kind: PrimitiveType
    offset: int
    length: int
    exponent: int
    line: int
    null: Number | None
    encoding: EncodingType

    @property
    def size(self) -> int:
        """Bytes."""
        return self.kind.size * self.length

    @property
    def numpy_code(self) -> str:
        """The field's numpy type."""
        if self.kind.name == "char":
            return f"S{self.length}"
        return self.kind.numpy_code if self.length == 1 else f"({self.length},){self.kind.numpy_code}"


@dataclass(frozen=True, slots=True)
class ModelGroup:
    """A repeating group of an output message.

    Attributes:
        block_length: bytes of an entry.
        dimension: the bytes before the entries, with the entry's length, and the count 0.
        length_kind: type of the entry's length.
        count_offset, count_kind: where the count stands in the dimension.
        count_minimum, count_maximum: what the schema allows it to be.
        groups, data: inside an entry.
    """

    name: str
    fields: dict[str, ModelField]
    block_length: int
    dimension: bytes
    length_kind: PrimitiveType
    count_offset: int
    count_kind: PrimitiveType
    count_minimum: int
    count_maximum: int
    groups: tuple[ModelGroup, ...]
    data: tuple[ModelData, ...]


@dataclass(frozen=True, slots=True)
class ModelData:
    """Variable data of an output message: a length, then the octets.

    Attributes:
        minimum, maximum: bytes.
        encoding: Python's codec name; empty for octets.
    """

    name: str
    length_kind: PrimitiveType
    minimum: int
    maximum: int
    encoding: str


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """One output message.

    Attributes:
        fields: what the fixed part holds; constants are not on the wire and not here.
        block: the message as the schema has it.
    """

    name: str
    template_id: int
    fields: dict[str, ModelField]
    block_length: int
    groups: tuple[ModelGroup, ...]
    data: tuple[ModelData, ...]
    block: Block
    _cache: dict[int, np.dtype[np.void]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_fixed(self) -> bool:
        """True if every such message has the same size: only then can `arrays` show it."""
        return self.block.is_fixed

    @property
    def frame_size(self) -> int:
        """Bytes with frame and SBE header, without groups and variable data."""
        return PREFIX_SIZE + self.block_length

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Framed message as a numpy structure; the SBE header's fields are named as in the standard."""
        return self.dtype_of(self.frame_size)

    def dtype_of(self, frame_size: int) -> np.dtype[np.void]:
        """`dtype` for frames that a newer version of the schema made longer."""
        if frame_size not in self._cache:
            if len(self._cache) >= 8:  # versions in one stream; more is somebody's nonsense
                self._cache.clear()
            self._cache[frame_size] = block_dtype(self.block, "<", _PREFIX, frame_size - PREFIX_SIZE)
        return self._cache[frame_size]


@dataclass(frozen=True)
class MessageModel:
    """The whole schema."""

    schema_id: int
    version: int
    messages: dict[str, ModelMessage]
    by_template: dict[int, ModelMessage]
    document: str
    schema: Schema

    @cached_property
    def reader(self) -> SbeReader:
        """Reads single messages as the standard has them: names of enumerations, None for nulls, groups, text."""
        return SbeReader(self.schema)

    def arrays(self, frames: bytes | memoryview) -> Iterator[tuple[ModelMessage, NDArray[np.void]]]:
        """Structured views, without copying, of consecutive messages of one template each.

        Passed over: messages of other schemas (tandemfeed's own control messages), those with groups or variable data
        (`read` reads them), and those that an older schema made shorter than this one's.

        Args:
            frames: message frames, one behind the other.
        """
        for message, length, run in self.runs(frames):
            if message.is_fixed and length >= message.frame_size:
                yield message, np.frombuffer(run, dtype=message.dtype_of(length))

    def runs(self, frames: bytes | memoryview) -> Iterator[tuple[ModelMessage, int, memoryview]]:
        """(message, bytes of each frame, the frames) of consecutive messages of one template and one size.

        Passed over: messages of other schemas.
        """
        view = memoryview(frames)
        offset = 0
        while offset < len(view):
            length, template, end = self._stretch(view, offset)
            message = self.by_template.get(template)
            if message is not None:
                yield message, length, view[offset:end]
            offset = end

    def decode(self, frames: bytes | memoryview) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each message as (name, field values); work per message, for people and tests.

        Values are those on the wire: a decimal is its mantissa, an enumeration its integer or character. Only of a
        message that `arrays` passes over they are as `read` gives them.
        """
        view = memoryview(frames)
        offset = 0
        while offset < len(view):
            length, template, end = self._stretch(view, offset)
            message = self.by_template.get(template)
            if message is not None and message.is_fixed and length >= message.frame_size:
                for row in np.frombuffer(view[offset:end], dtype=message.dtype_of(length)):
                    yield message.name, {name: row[name].tolist() for name in message.fields}
            elif message is not None:
                for start in range(offset, end, length):
                    read = self.read(view[start : start + length])
                    yield read.name, read.fields
            offset = end

    def read(self, frame: bytes | memoryview) -> SbeMessage:
        """One framed message as the standard has it.

        Raises:
            SbeReadError: truncated, or of another schema.
        """
        return self.reader.read(frame, OUTPUT_FRAME_SIZE)

    def _stretch(self, view: memoryview, offset: int) -> tuple[int, int, int]:
        """(frame length, template, end) of the longest run of equal frames from `offset` on."""
        length = OUTPUT_FRAME.unpack_from(view, offset)[0]
        if min(length, len(view) - offset) < PREFIX_SIZE:
            return length, -1, offset + max(length, OUTPUT_FRAME_SIZE)
        _, template, schema, _ = SBE_MESSAGE_HEADER.unpack_from(view, offset + OUTPUT_FRAME_SIZE)
        if schema != self.schema_id:
            return length, -1, offset + length
        count = (len(view) - offset) // length
        kinds = np.ndarray((count,), _KINDS, view, offset + OUTPUT_FRAME_SIZE, (length,))
        lengths = np.ndarray((count,), "<u2", view, offset, (length,))
        same = (lengths == length) & (kinds["templateId"] == template) & (kinds["schemaId"] == schema)
        breaks = np.flatnonzero(~same)
        stretch = int(breaks[0]) if len(breaks) else count
        return length, template, offset + max(stretch, 1) * length


def load_message_model(source: Path | bytes, document: str = "message model") -> MessageModel:
    """Load an SBE message schema.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the file cannot be read.
    """
    schema = load_schema(source, document)
    if schema.is_big_endian:
        raise DocumentError(schema.document, 1, "byteOrder: only littleEndian output is written")
    header = [(member.name, member.offset, member.type.size) for member in schema.header.members.values()]
    if header != [(name, 2 * place, 2) for place, name in enumerate(_HEADER_PARTS)]:
        raise DocumentError(
            schema.document, 1, f"the message header of an output is {', '.join(_HEADER_PARTS)}: uint16"
        )
    messages = {name: _model_message(message) for name, message in schema.messages.items()}
    by_template = {message.template_id: message for message in messages.values()}
    return MessageModel(schema.schema_id, schema.version, messages, by_template, schema.document, schema)


def _model_message(message: MessageType) -> ModelMessage:
    block = message.block
    groups = tuple(_model_group(group) for group in block.groups.values())
    fields = _model_fields(block)
    return ModelMessage(
        message.name, message.template_id, fields, block.block_length, groups, _model_data(block), block
    )


def _model_group(group: Group) -> ModelGroup:
    block, parts = group.block, group.dimension.members
    length, count = parts["blockLength"], parts["numInGroup"]
    dimension = bytearray(group.dimension.size)
    told = {"blockLength": block.block_length, "numGroups": len(block.groups), "numVarDataFields": len(block.data)}
    for name, value in told.items():
        if name in parts:
            at, size = parts[name].offset, _unsigned(parts[name]).size
            dimension[at : at + size] = (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
    kind = count.type
    assert isinstance(kind, SimpleType), "the loader takes nothing else"
    return ModelGroup(
        group.name,
        _model_fields(block),
        block.block_length,
        bytes(dimension),
        _unsigned(length),
        count.offset,
        _unsigned(count),
        int(kind.primitive.minimum if kind.minimum is None else kind.minimum),
        int(kind.primitive.maximum if kind.maximum is None else kind.maximum),
        tuple(_model_group(inner) for inner in block.groups.values()),
        _model_data(block),
    )


def _unsigned(member: Member) -> PrimitiveType:
    assert isinstance(member.type, SimpleType), "the loader takes nothing else"
    return PRIMITIVES[member.type.primitive.name]


def _model_fields(block: Block) -> dict[str, ModelField]:
    return {column.name: _model_field(column) for column in columns(block)}


def _model_data(block: Block) -> tuple[ModelData, ...]:
    return tuple(
        ModelData(
            data.name, PRIMITIVES[data.length_primitive.name], data.minimum, data.maximum, data.character_encoding
        )
        for data in block.data.values()
    )


def _model_field(column: Column) -> ModelField:
    name = column.primitive.name
    kind = PRIMITIVES[name] if name in PRIMITIVES else _FLOATS[name]
    owner = column.field
    return ModelField(
        column.name,
        owner.field_id,
        kind,
        column.offset,
        column.length,
        column.exponent,
        owner.line,
        column.null,
        column.kind,
    )
