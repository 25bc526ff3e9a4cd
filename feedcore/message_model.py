"""The message model: the schema of the output, an SBE message schema (FIX Simple Binary Encoding 1.0, XML).

Of SBE it reads what fixed-layout messages need: types, composites with constant members, messages with fields; sets,
groups and variable data are refused by name rather than misread. Clients decode by it, converters encode by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedcore.documents import Node, parse_document
from feedcore.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE
from feedcore.primitive_types import PRIMITIVES, PrimitiveType

SBE_HEADER_SIZE = 8  # blockLength, templateId, schemaId, version, each u16
PREFIX_SIZE = OUTPUT_FRAME_SIZE + SBE_HEADER_SIZE
INT64_NULL = (1 << 63) - 1  # null of a mantissa, as the source's price fields have it


@dataclass(frozen=True, slots=True)
class ModelField:
    """One field of an output message: offset in the block, type, length, and the exponent of a decimal."""

    name: str
    field_id: int
    kind: PrimitiveType
    offset: int
    length: int
    exponent: int
    line: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.kind.size * self.length

    @property
    def numpy_code(self) -> str:
        """The field's numpy type."""
        return f"S{self.length}" if self.kind.name == "char" else self.kind.numpy_code


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """One output message."""

    name: str
    template_id: int
    fields: dict[str, ModelField]
    block_length: int
    _cache: list[np.dtype[np.void]] = field(default_factory=list, compare=False, repr=False)

    @property
    def frame_size(self) -> int:
        """Bytes with frame and SBE header."""
        return PREFIX_SIZE + self.block_length

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Framed message as a numpy structure; the SBE header's fields are named as in the standard."""
        if not self._cache:
            self._cache.append(self._make_dtype())
        return self._cache[0]

    def _make_dtype(self) -> np.dtype[np.void]:
        prefix = ["frame_length", "source_offset", "blockLength", "templateId", "schemaId", "version"]
        return np.dtype(
            {
                "names": [*prefix, *self.fields],
                "formats": ["<u2"] * 6 + [field.numpy_code for field in self.fields.values()],
                "offsets": [0, 2, 4, 6, 8, 10, *(PREFIX_SIZE + field.offset for field in self.fields.values())],
                "itemsize": self.frame_size,
            }
        )


@dataclass(frozen=True, slots=True)
class MessageModel:
    """The whole schema."""

    schema_id: int
    version: int
    messages: dict[str, ModelMessage]
    by_template: dict[int, ModelMessage]
    document: str

    def arrays(self, frames: bytes | memoryview) -> Iterator[tuple[ModelMessage, NDArray[np.void]]]:
        """Structured views, without copying, of consecutive messages of one template each.

        Messages of other schemas (tandemfeed's own control messages) are passed over.

        Args:
            frames: message frames, one behind the other.
        """
        view = memoryview(frames)
        offset = 0
        while offset < len(view):
            length, template, end = self._stretch(view, offset)
            message = self.by_template.get(template)
            if message is not None and length == message.frame_size:
                yield message, np.frombuffer(view[offset:end], dtype=message.dtype)
            offset = end

    def decode(self, frames: bytes | memoryview) -> Iterator[tuple[str, dict[str, object]]]:
        """Each message as (name, field values); work per message, for people and tests."""
        for message, rows in self.arrays(frames):
            for row in rows:
                yield message.name, {name: row[name].item() for name in message.fields}

    def _stretch(self, view: memoryview, offset: int) -> tuple[int, int, int]:
        """(frame length, template, end) of the longest run of equal frames from `offset` on."""
        length = OUTPUT_FRAME.unpack_from(view, offset)[0]
        template = int.from_bytes(view[offset + 6 : offset + 8], "little")
        schema = int.from_bytes(view[offset + 8 : offset + 10], "little")
        if length < PREFIX_SIZE or schema != self.schema_id:
            return length, -1, offset + max(length, OUTPUT_FRAME_SIZE)
        count = (len(view) - offset) // length
        kinds = np.ndarray((count, 3), "<u2", view, offset + 4, (length, 2)) if count else np.empty((0, 3), "<u2")
        lengths = np.ndarray((count,), "<u2", view, offset, (length,))
        same = (lengths == length) & (kinds[:, 1] == template) & (kinds[:, 2] == schema)
        breaks = np.flatnonzero(~same)
        stretch = int(breaks[0]) if len(breaks) else count
        return length, template, offset + max(stretch, 1) * length


def load_message_model(source: Path | bytes, document: str = "message model") -> MessageModel:
    """Load an SBE message schema.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the file cannot be read.
    """
    data, name = (source.read_bytes(), str(source)) if isinstance(source, Path) else (source, document)
    root = parse_document(data, name)
    if root.tag != "messageSchema":
        raise root.error(f"<{root.tag}> is no SBE <messageSchema>")
    if root.attributes.get("byteOrder", "littleEndian") != "littleEndian":
        raise root.error("byteOrder: only littleEndian output is written")
    types = {kind: (primitive, 1, 0) for kind, primitive in PRIMITIVES.items()}
    for group in root.all("types"):
        for node in group.children:
            _load_type(node, types)
    messages: dict[str, ModelMessage] = {}
    for node in root.all("message"):
        message = _load_message(node, types)
        if message.name in messages or any(message.template_id == m.template_id for m in messages.values()):
            raise node.error(f"message {message.name!r} (id {message.template_id}) is defined twice")
        messages[message.name] = message
    by_template = {message.template_id: message for message in messages.values()}
    return MessageModel(root.need_int("id"), root.get_int("version", 0), messages, by_template, name)


TypeTable = dict[str, tuple[PrimitiveType, int, int]]  # name -> (primitive, length, exponent)


def _load_type(node: Node, types: TypeTable) -> None:
    name = node.need("name")
    if node.tag == "type":
        types[name] = (_primitive(node, types), node.get_int("length", 1), 0)
    elif node.tag == "composite" and name != "messageHeader":
        types[name] = _load_decimal(node, types)
    elif node.tag != "composite":
        raise node.error(f"<{node.tag}> types are not written by this converter; use <type> or a decimal <composite>")


def _load_decimal(node: Node, types: TypeTable) -> tuple[PrimitiveType, int, int]:
    """A composite of a mantissa and a constant exponent: SBE's fixed-point decimal."""
    members = {child.need("name"): child for child in node.all("type")}
    exponent = members.get("exponent")
    if (
        set(members) != {"mantissa", "exponent"}
        or exponent is None
        or exponent.attributes.get("presence") != "constant"
    ):
        raise node.error("a composite is a decimal here: a mantissa and an exponent with presence='constant'")
    try:
        power = int(exponent.text)
    except ValueError:
        raise exponent.error(f"exponent {exponent.text!r} is not an integer") from None
    return _primitive(members["mantissa"], types), 1, power


def _primitive(node: Node, types: TypeTable) -> PrimitiveType:
    wanted = node.need("primitiveType")
    if wanted not in PRIMITIVES:
        raise node.error(f"unknown primitiveType {wanted!r}; known are {', '.join(PRIMITIVES)}")
    return types[wanted][0]


def _load_message(node: Node, types: TypeTable) -> ModelMessage:
    fields: dict[str, ModelField] = {}
    offset = 0
    for child in node.children:
        if child.tag != "field":
            raise child.error(f"<{child.tag}> in message {node.need('name')!r}: only fixed fields are written")
        name, wanted = child.need("name"), child.need("type")
        if wanted not in types:
            raise child.error(f"unknown type {wanted!r}")
        if name in fields:
            raise child.error(f"field {name!r} is defined twice")
        kind, length, exponent = types[wanted]
        offset = child.get_int("offset", offset)
        fields[name] = ModelField(name, child.need_int("id"), kind, offset, length, exponent, child.line)
        offset += kind.size * length
    return ModelMessage(node.need("name"), node.need_int("id"), fields, max(node.get_int("blockLength", 0), offset))
