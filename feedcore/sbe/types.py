"""What a message schema defines: encodings, fields, groups, variable data, messages. Immutable; `loading` makes them.

Invariant: every reference is resolved and every offset final, so that reading and writing look nothing up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from feedcore.sbe.primitives import Number, Primitive


class Presence(Enum):
    """Whether a field must be set, may be null, or is not on the wire at all."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Notes:
    """What documents an element and changes no byte.

    Attributes:
        since_version: the schema version that added the element.
        deprecated: the schema version that deprecated it.
        extra: attributes of other namespaces, by name with prefix.
    """

    description: str = ""
    semantic_type: str = ""
    since_version: int = 0
    deprecated: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SimpleType:
    """A primitive or an array of them.

    Attributes:
        length: elements; 0 means variable, inside a variable-data composite only.
        null: what an optional value is on the wire when it is not set.
        minimum, maximum: None where the schema narrows nothing.
        constant: the value where presence is constant: text for char, otherwise a number.
        character_encoding: Python's codec name; empty for octets.
    """

    name: str
    primitive: Primitive
    length: int
    presence: Presence
    null: Number
    minimum: Number | None
    maximum: Number | None
    constant: str | Number | None
    character_encoding: str
    notes: Notes

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return 0 if self.presence is Presence.CONSTANT else self.primitive.size * self.length


@dataclass(frozen=True, slots=True)
class ValidValue:
    """One value of an enumeration, or one choice (a bit number) of a set."""

    name: str
    value: int
    notes: Notes


@dataclass(frozen=True, slots=True)
class EnumType:
    """One choice of several.

    Attributes:
        presence: optional where its encoding type is.
        null: what an optional field of it is when it is not set.
    """

    name: str
    primitive: Primitive
    values: Mapping[str, ValidValue]
    by_value: Mapping[int, ValidValue]
    presence: Presence
    null: Number
    notes: Notes

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return self.primitive.size


@dataclass(frozen=True, slots=True)
class SetType:
    """Any of several choices, a bit each."""

    name: str
    primitive: Primitive
    choices: Mapping[str, ValidValue]
    by_bit: Mapping[int, ValidValue]
    notes: Notes

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return self.primitive.size


@dataclass(frozen=True, slots=True)
class Member:
    """A part of a composite; `offset` from the composite's start, bytes."""

    name: str
    type: EncodingType
    offset: int
    notes: Notes


@dataclass(frozen=True, slots=True)
class CompositeType:
    """Several encodings under one name. It is null when its first member is."""

    name: str
    members: Mapping[str, Member]
    size: int
    notes: Notes

    @property
    def is_decimal(self) -> bool:
        """True for a mantissa and an exponent."""
        return set(self.members) == {"mantissa", "exponent"}


EncodingType: TypeAlias = SimpleType | EnumType | SetType | CompositeType


@dataclass(frozen=True, slots=True)
class Field:
    """A field of fixed size.

    Attributes:
        offset: from the start of its block, bytes.
        null: for a simple type or enumeration, what it is on the wire when an optional field is not set.
        constant: where presence is constant: the value as reading gives it.
    """

    name: str
    field_id: int
    type: EncodingType
    offset: int
    presence: Presence
    null: Number | None
    constant: object
    notes: Notes
    line: int

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return 0 if self.presence is Presence.CONSTANT else self.type.size


@dataclass(frozen=True, slots=True)
class VarData:
    """A field of variable length: `length_primitive` length, then the octets.

    Attributes:
        minimum, maximum: of the length, octets.
        character_encoding: Python's codec name; empty for octets.
    """

    name: str
    field_id: int
    length_primitive: Primitive
    minimum: int
    maximum: int
    character_encoding: str
    notes: Notes
    line: int


@dataclass(frozen=True, slots=True)
class Block:
    """What a message's root and a group's entry have in common: fields, then groups, then variable data.

    Attributes:
        block_length: bytes of the fixed fields with their padding.
    """

    fields: Mapping[str, Field]
    groups: Mapping[str, Group]
    data: Mapping[str, VarData]
    block_length: int

    @property
    def is_fixed(self) -> bool:
        """True if every message of it has the same size."""
        return not self.groups and not self.data


@dataclass(frozen=True, slots=True)
class Group:
    """A repeating group; `dimension` is the composite before its entries."""

    name: str
    group_id: int
    dimension: CompositeType
    block: Block
    notes: Notes
    line: int


@dataclass(frozen=True, slots=True)
class MessageType:
    """One message template."""

    name: str
    template_id: int
    block: Block
    notes: Notes
    line: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A whole message schema.

    Attributes:
        is_big_endian: of every integer and float, those of the header included.
        header: the composite before every message.
        types: the encodings by name.
    """

    package: str
    schema_id: int
    version: int
    semantic_version: str
    description: str
    is_big_endian: bool
    header: CompositeType
    types: Mapping[str, EncodingType]
    messages: Mapping[str, MessageType]
    by_template: Mapping[int, MessageType]
    document: str

    @property
    def byte_order(self) -> str:
        """As `struct` and numpy write it."""
        return ">" if self.is_big_endian else "<"
