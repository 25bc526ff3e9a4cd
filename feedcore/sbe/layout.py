"""The fixed part of a message as numpy sees it: one column per value, composites flattened.

A composite of which only one member is on the wire (a decimal with a constant exponent) is one column under the
field's name; of another composite each member is a column `field.member`. Enumerations and sets are their integers (or
the character), nulls stay what they are on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from feedcore.sbe.primitives import Number, Primitive
from feedcore.sbe.types import Block, CompositeType, EncodingType, EnumType, Field, Presence, SetType, SimpleType


@dataclass(frozen=True, slots=True)
class Column:
    """One value of a block.

    Attributes:
        offset: from the start of the block, bytes.
        length: elements.
        exponent: of a decimal with a constant one; otherwise 0.
        null: what means "not set" on the wire; None where it must be set.
    """

    name: str
    field: Field
    kind: EncodingType
    primitive: Primitive
    offset: int
    length: int
    exponent: int
    null: Number | None

    @property
    def size(self) -> int:
        """Bytes."""
        return self.primitive.size * self.length

    def numpy_code(self, byte_order: str) -> str:
        """The column's numpy type."""
        if self.primitive.name == "char":
            return f"S{self.length}"
        code = byte_order + self.primitive.numpy_code
        return code if self.length == 1 else f"({self.length},){code}"


def columns(block: Block) -> Iterator[Column]:
    """The columns of a block, in the order of the wire; constants have none."""
    for field in block.fields.values():
        if field.presence is not Presence.CONSTANT:
            is_optional = field.presence is Presence.OPTIONAL
            yield from _columns_of(field.name, field, field.type, field.offset, is_optional)


def _columns_of(name: str, field: Field, kind: EncodingType, offset: int, is_optional: bool) -> Iterator[Column]:
    if isinstance(kind, CompositeType):
        on_wire = [member for member in kind.members.values() if member.type.size]
        exponent = kind.members["exponent"].type if kind.is_decimal else None
        power = exponent.constant if isinstance(exponent, SimpleType) else None
        for place, member in enumerate(on_wire):
            inner = name if len(on_wire) == 1 else f"{name}.{member.name}"
            for column in _columns_of(inner, field, member.type, offset + member.offset, is_optional and place == 0):
                if member.name == "mantissa" and isinstance(power, int):
                    column = Column(
                        column.name, field, column.kind, column.primitive, column.offset, 1, power, column.null
                    )
                yield column
        return
    length = kind.length if isinstance(kind, SimpleType) else 1
    null: Number | None = None
    if not isinstance(kind, SetType) and (is_optional or kind.presence is Presence.OPTIONAL):
        null = kind.null
    assert isinstance(kind, SimpleType | EnumType | SetType)
    yield Column(name, field, kind, kind.primitive, offset, length, 0, null)


def block_dtype(
    block: Block, byte_order: str, prefix: list[tuple[str, str]] | None = None, block_length: int | None = None
) -> np.dtype[np.void]:
    """A block as a numpy structure.

    Args:
        byte_order: "<" or ">".
        prefix: (name, numpy type) of what stands before the block, such as a header, packed.
        block_length: bytes of the block on the wire, if a newer schema made it longer.
    """
    names, codes, offsets, start = [], [], [], 0
    for name, code in prefix or []:
        names.append(name)
        codes.append(code)
        offsets.append(start)
        start += np.dtype(code).itemsize
    for column in columns(block):
        names.append(column.name)
        codes.append(column.numpy_code(byte_order))
        offsets.append(start + column.offset)
    size = start + (block.block_length if block_length is None else block_length)
    return np.dtype({"names": names, "formats": codes, "offsets": offsets, "itemsize": size})
