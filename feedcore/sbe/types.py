"""The encodings of a message schema: the layout of one value on the wire. Immutable; `type_loading` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tandemfeed.feedcore.documents.primitive_types import Number, Primitive


class Presence(Enum):
    """Whether a value must be set, may be null, or is not on the wire at all."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Encoding:
    """What all encodings have. The semantic type is the meaning of such a field; it is empty if the schema has none."""

    name: str
    semantic_type: str
    presence: Presence


@dataclass(frozen=True, slots=True)
class Scalar(Encoding):
    """One primitive on the wire, or an array of them."""

    primitive: Primitive

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return self.primitive.size


@dataclass(frozen=True, slots=True)
class SimpleType(Scalar):
    """A primitive or an array of them.

    Attributes:
        null: the value on the wire of an optional value that is not set.
        length: elements; 0 means variable, only inside a variable-data composite.
        minimum, maximum: None if the schema sets no limit.
        constant: the value if presence is constant: text for char, otherwise a number.
        character_encoding: Python's codec name; empty for octets.
    """

    null: Number
    length: int = 1
    minimum: Number | None = None
    maximum: Number | None = None
    constant: str | Number | None = None
    character_encoding: str = ""

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return 0 if self.presence is Presence.CONSTANT else self.primitive.size * self.length


@dataclass(frozen=True, slots=True)
class EnumType(Scalar):
    """One of several named values. Its encoding type determines whether it is optional, and its null."""

    null: Number
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SetType(Scalar):
    """Any of several choices, one bit each. Without a choice all bits are 0, so there is no null."""

    choices: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Member:
    """A part of a composite.

    Attributes:
        offset: bytes from the composite's start.
        is_first: the first member on the wire; the composite is null if it is null.
    """

    name: str
    type: EncodingType
    offset: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class CompositeType(Encoding):
    """Several encodings under one name."""

    members: Mapping[str, Member]
    size: int


EncodingType: TypeAlias = SimpleType | EnumType | SetType | CompositeType


def may_be_null(kind: EncodingType, is_optional: bool) -> bool:
    """True if a value may be null, by its encoding or because the enclosing field or composite is optional."""
    return kind.presence is Presence.OPTIONAL or (is_optional and not isinstance(kind, SetType))


# By semantic type (FIX), in lower case.
_TIME_UNITS = {"utctimestamp": "ns", "localmktdate": "D", "utcdateonly": "D"}


def time_unit(kind: EncodingType, semantic_type: str) -> str | None:
    """The numpy unit of an integer that is a time; None if it is something else."""
    is_integer = isinstance(kind, SimpleType) and kind.primitive.is_integer and kind.length == 1
    return _TIME_UNITS.get(semantic_type.lower()) if is_integer else None
