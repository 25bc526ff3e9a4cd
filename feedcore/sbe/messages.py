"""The contents of a message schema: messages, fields, groups and variable data. Immutable; `loading` makes them.

The fixed part of a message or of a group's entry also has columns for numpy, one per value. A composite with only one
member on the wire (a decimal with a constant exponent) is one column with the field's name; for other composites, each
member is a column `field.member`. Enumerations and sets are their integers (or the character); nulls keep their value
on the wire.

Invariant: every reference is resolved and every offset final, so that readers and writers look nothing up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tandemfeed.feedcore.documents.primitive_types import Number, Place, Primitive
from tandemfeed.feedcore.sbe.types import (
    CompositeType,
    EncodingType,
    Member,
    Presence,
    SetType,
    SimpleType,
    may_be_null,
)


@dataclass(frozen=True, slots=True)
class Column:
    """One value of a fixed part.

    Attributes:
        offset: bytes from the start of the fixed part.
        length: elements; more than 1 only for char and for an SBE array of numbers.
        exponent: the number means `value * 10**exponent`.
        null: the value on the wire that means "not set"; None if the field must be set.
    """

    name: str
    kind: Primitive
    offset: int
    length: int
    exponent: int
    null: Number | None

    @property
    def size(self) -> int:
        """Bytes."""
        return self.kind.size * self.length

    def numpy_code(self, byte_order: str) -> str:
        """The column's numpy type."""
        if self.kind.name == "char":
            return f"S{self.length}"
        code = byte_order + self.kind.numpy_code
        return code if self.length == 1 else f"({self.length},){code}"


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """What fields, groups, variable data and messages have: a name, and the schema version that added them."""

    name: str
    since_version: int


@dataclass(frozen=True, slots=True)
class Field(Element):
    """A field of fixed size.

    Attributes:
        offset: bytes from the start of its block.
        constant: if presence is constant, the value that readers return.
        line: the line in the document.
        semantic_type: the field's own, or that of its type; empty if the schema has none.
    """

    type: EncodingType
    offset: int
    presence: Presence
    constant: object
    line: int
    semantic_type: str = ""

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return 0 if self.presence is Presence.CONSTANT else self.type.size

    def columns(self) -> Iterator[Column]:
        """The field's values in wire order; a constant has none."""
        if self.presence is not Presence.CONSTANT:
            yield from self._columns(self.name, self.type, self.offset, self.presence is Presence.OPTIONAL, 0)

    def _columns(self, name: str, kind: EncodingType, offset: int, is_optional: bool, power: int) -> Iterator[Column]:
        if isinstance(kind, CompositeType):
            on_wire = [member for member in kind.members.values() if member.type.size]
            for member in on_wire:
                inner = name if len(on_wire) == 1 else f"{name}.{member.name}"
                exponent = (constant_exponent(kind) or 0) if member.name == "mantissa" else 0
                optional = is_optional and member.is_first
                yield from self._columns(inner, member.type, offset + member.offset, optional, exponent)
        else:
            length = kind.length if isinstance(kind, SimpleType) else 1
            null = kind.null if not isinstance(kind, SetType) and may_be_null(kind, is_optional) else None
            yield Column(name, kind.primitive, offset, length, power, null)


def constant_exponent(kind: CompositeType) -> int | None:
    """A decimal's exponent, if the schema defines it so that only the mantissa is on the wire."""
    part = kind.members["exponent"].type if kind.members.keys() == {"mantissa", "exponent"} else None
    return part.constant if isinstance(part, SimpleType) and isinstance(part.constant, int) else None


@dataclass(frozen=True, slots=True)
class VarData(Element):
    """A field of variable length: its length, then the octets.

    Attributes:
        minimum, maximum: of the length in octets.
        character_encoding: Python's codec name; empty for octets.
    """

    length_kind: Primitive
    minimum: int
    maximum: int
    character_encoding: str


@dataclass(frozen=True, eq=False)
class Block(Element):
    """The common part of a message's root and a group's entry: fields, then groups, then variable data.

    Attributes:
        block_length: bytes of the fixed fields, including padding.
    """

    fields: Mapping[str, Field]
    groups: Mapping[str, Group]
    data: Mapping[str, VarData]
    block_length: int

    @property
    def is_fixed(self) -> bool:
        """True if all of its messages have the same size."""
        return not self.groups and not self.data

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """The values of the fixed part by name, in wire order."""
        return {column.name: column for field in self.fields.values() for column in field.columns()}

    def dtype(self, byte_order: str) -> np.dtype[np.void]:
        """The fixed part as a numpy structure; the byte order is "<" or ">"."""
        names, columns = list(self.columns), self.columns.values()
        codes, offsets = [column.numpy_code(byte_order) for column in columns], [column.offset for column in columns]
        return np.dtype({"names": names, "formats": codes, "offsets": offsets, "itemsize": self.block_length})


@dataclass(frozen=True, slots=True)
class FramePart(Place):
    """An integer of a frame, and the range that the schema allows.

    Attributes:
        constant: the value, if the schema defines it and messages do not contain it.
    """

    minimum: int
    maximum: int
    constant: int | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """A composite that precedes data: the message header, or the dimensions of a group.

    Attributes:
        parts: its integers.
        others: members that are not integers; no framing depends on them.
    """

    size: int
    parts: Mapping[str, FramePart]
    others: Mapping[str, Member]


@dataclass(frozen=True, eq=False)
class Group(Block):
    """A repeating group; `dimension` precedes its entries and gives their number and length."""

    dimension: Frame

    @property
    def count(self) -> FramePart:
        """Entries."""
        return self.dimension.parts["numInGroup"]

    @property
    def length(self) -> FramePart:
        """Bytes of each entry's fixed part."""
        return self.dimension.parts["blockLength"]


@dataclass(frozen=True, eq=False)
class MessageType(Block):
    """One message template."""

    template_id: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A whole message schema.

    Attributes:
        byte_order: of every integer and float, including the header's, as `struct` and numpy write it.
        header: precedes every message.
        default_dimension: for groups without a dimensionType; None if the schema lacks it.
        warnings: what the standard does not permit, but whose meaning is clear, with file and line.
    """

    schema_id: int
    version: int
    byte_order: str
    header: Frame
    default_dimension: Frame | None
    messages: Mapping[str, MessageType]
    by_template: Mapping[int, MessageType]
    document: str
    warnings: tuple[str, ...]

    @property
    def is_big_endian(self) -> bool:
        """True for big-endian, false for little-endian."""
        return self.byte_order == ">"
