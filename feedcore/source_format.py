"""The source format: what the feed source's messages look like, as a document both sides load.

Little-endian, fixed layout: a message type is its fields one behind the other. The feed source encodes by it, the
adapters' converter decodes by it. Invariant: equal documents give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedcore.documents import Node, parse_document
from feedcore.primitive_types import PRIMITIVES, PrimitiveType
from feedcore.source_packet import SOURCE_FRAME_SIZE


@dataclass(frozen=True, slots=True)
class SourceField:
    """One field.

    Attributes:
        offset: in the message body, bytes.
        length: elements; more than 1 only for char.
        exponent: decimal exponent of a scaled integer; 0 for plain ones.
        null: the value that means "none", if the format has one.
    """

    name: str
    kind: PrimitiveType
    offset: int
    length: int
    exponent: int
    null: int | None
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
class SourceMessageType:
    """One message type.

    Attributes:
        type_id: as in the message's frame.
        size: bytes of the body.
    """

    name: str
    type_id: int
    fields: dict[str, SourceField]
    size: int
    line: int

    @property
    def frame_size(self) -> int:
        """Bytes with the frame header."""
        return SOURCE_FRAME_SIZE + self.size

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Framed message as a numpy structure: frame_length, message_type, then the fields."""
        names = ["frame_length", "message_type", *self.fields]
        codes = ["<u2", "<u2", *(field.numpy_code for field in self.fields.values())]
        offsets = [0, 2, *(SOURCE_FRAME_SIZE + field.offset for field in self.fields.values())]
        return np.dtype({"names": names, "formats": codes, "offsets": offsets, "itemsize": self.frame_size})

    def encode(self, columns: dict[str, NDArray[np.generic]], count: int) -> NDArray[np.void]:
        """Framed messages from columns; a column that is not given stays zero.

        Args:
            columns: per field an array of shape (count,).

        Returns:
            Shape (count,), of `dtype`.
        """
        rows = np.zeros(count, dtype=self.dtype)
        rows["frame_length"] = self.frame_size
        rows["message_type"] = self.type_id
        for name in self.fields:
            if name in columns:
                rows[name] = columns[name]
        return rows


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """All message types of a feed source."""

    name: str
    messages: dict[str, SourceMessageType]
    document: str


def load_source_format(path: Path) -> SourceFormat:
    """Load a source-format document.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the file cannot be read.
    """
    root = parse_document(path.read_bytes(), str(path))
    if root.tag != "sourceFormat":
        raise root.error(f"<{root.tag}> is no <sourceFormat>")
    messages: dict[str, SourceMessageType] = {}
    for node in root.all("message"):
        node.only("name", "type")
        name, type_id = node.need("name"), node.need_int("type")
        if name in messages or any(type_id == other.type_id for other in messages.values()):
            raise node.error(f"message {name!r} (type {type_id}) is defined twice")
        fields = _load_fields(node)
        size = sum(field.size for field in fields.values())
        messages[name] = SourceMessageType(name, type_id, fields, size, node.line)
    if not messages:
        raise root.error("a source format has at least one <message>")
    return SourceFormat(root.need("name"), messages, str(path))


def _load_fields(message: Node) -> dict[str, SourceField]:
    fields: dict[str, SourceField] = {}
    offset = 0
    for node in message.all("field"):
        node.only("name", "type", "length", "exponent", "null")
        name, kind = node.need("name"), PRIMITIVES.get(node.need("type"))
        if kind is None:
            raise node.error(f"unknown type {node.need('type')!r}; known are {', '.join(PRIMITIVES)}")
        if name in fields:
            raise node.error(f"field {name!r} is defined twice")
        length = node.get_int("length", 1)
        if length < 1 or (length > 1 and kind.name != "char"):
            raise node.error(f"length {length}: only char fields have a length above 1")
        null = node.need_int("null") if "null" in node.attributes else None
        fields[name] = SourceField(name, kind, offset, length, node.get_int("exponent", 0), null, node.line)
        offset += kind.size * length
    return fields
