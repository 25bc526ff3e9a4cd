"""What the loader knows about a value: its range, its decimal exponent, whether it may be null, or its text's size.
The loader uses this to prove that an output field loses nothing."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from tandemfeed.feedcore.documents.primitive_types import Primitive
from tandemfeed.feedcore.documents.source_layout import SourceField
from tandemfeed.feedcore.sbe.messages import Column, VarData

NULL = (1 << 63) - 1  # null inside the engine, whatever the source and the model use for null
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a value.

    Attributes:
        minimum, maximum: the range of a number.
        exponent: the number stands for `value * 10**exponent`; None: the exponent is unknown and is not checked.
        is_nullable: the value may be null.
        text_size: the largest size of a text in bytes; 0 for a number.
        bits: a floating-point type; such values are copied, never calculated with.
    """

    minimum: int = 0
    maximum: int = 0
    exponent: int | None = 0
    is_nullable: bool = False
    text_size: int = 0
    bits: Primitive | None = None

    @property
    def is_number(self) -> bool:
        """True for an integer that can be calculated with: it fits in 63 bits and a sign."""
        return not self.text_size and self.bits is None and self.maximum <= INT64_MAX

    @property
    def is_integer(self) -> bool:
        """True for an integer of any size."""
        return not self.text_size and self.bits is None

    def within(self, minimum: int, maximum: int) -> ValueType:
        """The same type with another range."""
        return replace(self, minimum=minimum, maximum=maximum)

    def nullable(self, is_nullable: bool = True) -> ValueType:
        """The same type, with null allowed or not."""
        return replace(self, is_nullable=is_nullable)

    def __str__(self) -> str:
        if self.text_size:
            return f"text of {self.text_size}"
        if self.bits is not None:
            return self.bits.name
        exponent = f", exponent {self.exponent}" if self.exponent else ""
        return f"{self.minimum} … {self.maximum}{exponent}{', or null' if self.is_nullable else ''}"


def type_of_field(field: SourceField) -> ValueType:
    """The type of a source field's value."""
    if field.is_text:
        return ValueType(text_size=field.length)
    if field.kind.is_float:
        return ValueType(bits=field.kind)
    if field.constant is not None:
        return ValueType(field.constant, field.constant, field.exponent)
    return ValueType(field.kind.minimum, field.kind.maximum, field.exponent, field.is_nullable)


def why_not_fit(value: ValueType, target: Column) -> str | None:
    """Why a value cannot be written into an output field without loss; None if it can."""
    kind = target.kind
    if value.text_size:
        if kind.name != "char":
            return f"a text cannot be written into {target.name} ({kind.name}); use number"
        if value.text_size > target.length:
            return (
                f"{value} can lose data in {target.name} (char, length {target.length}); use text with a length, or cut"
            )
        return None
    if value.bits is not None:
        return None if value.bits.name == kind.name else f"{value.bits.name} is not {target.name}'s {kind.name}"
    if target.length > 1 or kind.name in ("float", "double"):
        return f"a number cannot be written into {target.name} ({kind.name}, length {target.length}); use digits"
    if value.minimum < kind.minimum or value.maximum > kind.maximum:
        return f"{value} can lose data in {target.name} ({kind.name}); choose a wider field, or cast"
    if kind.name != "char" and value.exponent is not None and value.exponent != target.exponent:
        return f"the value has the exponent {value.exponent}, but {target.name} has {target.exponent}; use scale"
    if value.is_nullable and null_of(target) is None:
        return f"the value may be null, but {target.name} ({kind.name}) may not; use default"
    return None


def why_not_data(value: ValueType, target: VarData, *, is_copy: bool) -> str | None:
    """Why a value cannot be written as variable data without loss; None if it can.

    Args:
        is_copy: the value is variable text of the source; its bytes are copied unchanged.
    """
    if not value.text_size:
        return f"a number cannot be written into {target.name}, which is variable data; use digits"
    if value.text_size > target.maximum:
        return f"{value} can lose data in {target.name} (at most {target.maximum}); use text with a length, or cut"
    if not is_copy and target.character_encoding and "A0".encode(target.character_encoding) != b"A0":
        return f"{target.name} is {target.character_encoding}; it accepts only a source's <data>, copied byte by byte"
    return None


def null_of(target: Column) -> int | None:
    """The value that stands for null. An int64 field that declares none uses the engine's, as SBE mantissas do."""
    if target.null is None:
        return NULL if target.kind.name == "int64" else None
    return null_bits(target)


def null_bits(target: Column) -> int:
    """The null value of a numeric field, as the unsigned integer of its bytes."""
    null, size = target.null, target.kind.size
    assert null is not None
    if isinstance(null, float):
        return int.from_bytes(struct.pack("<f" if size == 4 else "<d", null), "little")
    return null & ((1 << (8 * size)) - 1)
