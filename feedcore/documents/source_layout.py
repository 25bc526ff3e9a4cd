"""What a source format consists of: framing, message types, fields, groups, variable data.

A message type is fixed fields, one behind the other or at offsets, then groups and variable data; frames are as the
document's <framing> says (docs/source-format.md). `feedcore.documents.source_format` loads the document.
Invariant: equal documents give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from feedcore.documents.primitive_types import PRIMITIVES, PrimitiveType
from feedcore.wire.source_packet import SOURCE_FRAME_LAYOUT, SOURCE_FRAME_SIZE

PLACED_SIZE_MAX = 65_535  # bytes of a frame and of everything in it: a datagram holds no more
DATA_SIZE_MAX = 65_534  # bytes of a variable text, unless less is told: what a length of 16 bits says in SBE


def _odd_width(bits: int, signed: bool) -> PrimitiveType:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return PrimitiveType(f"{'' if signed else 'u'}int{bits}", bits // 8, f"V{bits // 8}", low, high)


# Beyond a message model's types: integers of odd widths, and floating point numbers, which are copied and never
# calculated with.
SOURCE_TYPES: dict[str, PrimitiveType] = {
    **PRIMITIVES,
    **{kind.name: kind for bits in (24, 40, 48, 56) for kind in (_odd_width(bits, True), _odd_width(bits, False))},
    "float": PrimitiveType("float", 4, "<f4", 0, 0),
    "double": PrimitiveType("double", 8, "<f8", 0, 0),
}


@dataclass(frozen=True, slots=True)
class Framing:
    """How one message of a source packet is framed; the default is the feed source's own (docs/protocol.md, clause 2).

    Attributes:
        header_size: bytes before offset 0 of the body.
        length: type of the length field; the frame takes `length * length_unit + length_adds` bytes in all.
        type: type of the field that tells the message type, `type_offset` bytes from the frame's start.
        block_length: type of the field that says how long the fixed part is; None: as the message type has it.
    """

    header_size: int = SOURCE_FRAME_SIZE
    length: PrimitiveType = PRIMITIVES["uint16"]
    length_offset: int = SOURCE_FRAME_LAYOUT.offsets["frame_length"]
    length_unit: int = 1
    length_adds: int = 0
    type: PrimitiveType = PRIMITIVES["uint16"]
    type_offset: int = SOURCE_FRAME_LAYOUT.offsets["message_type"]
    block_length: PrimitiveType | None = None
    block_length_offset: int = 0
    is_big_endian: bool = False

    @property
    def size_min(self) -> int:
        """Bytes that every frame has: what must be read to know its length, type and block length."""
        ends = [self.header_size, self.length_offset + self.length.size, self.type_offset + self.type.size]
        if self.block_length is not None:
            ends.append(self.block_length_offset + self.block_length.size)
        return max(ends)


FRAMING_DEFAULT = Framing()


@dataclass(frozen=True, slots=True)
class SourceField:
    """One field.

    Attributes:
        offset: in the message body or the group's entry, bytes.
        length: elements; more than 1 only for char.
        exponent: decimal exponent of a scaled integer; 0 for plain ones.
        null: the value that means "none", if the format has one.
        constant: a value that is not in the message at all (SBE's presence="constant").
        is_variable: the text of a <data>: the message says where it lies and how long it is, `length` is the most.
    """

    name: str
    kind: PrimitiveType
    offset: int
    length: int
    exponent: int
    null: int | None
    line: int
    is_big_endian: bool = False
    constant: int | None = None
    is_variable: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return 0 if self.constant is not None else self.kind.size * self.length

    @property
    def is_text(self) -> bool:
        """Characters, not a number."""
        return self.kind.name == "char"

    @property
    def is_float(self) -> bool:
        """A floating point number."""
        return self.kind.name in ("float", "double")

    @property
    def numpy_code(self) -> str:
        """The field's numpy type; odd widths are plain bytes."""
        code = f"S{self.length}" if self.is_text else self.kind.numpy_code
        return code.replace("<", ">") if self.is_big_endian else code


class _HasParts:
    """What has groups and variable texts behind its fields: a message, and an entry of a group."""

    __slots__ = ()
    parts: tuple[SourceGroup | SourceData, ...]

    @property
    def groups(self) -> dict[str, SourceGroup]:
        """The groups by name."""
        return {part.name: part for part in self.parts if isinstance(part, SourceGroup)}

    @property
    def data(self) -> dict[str, SourceData]:
        """The variable texts by name."""
        return {part.name: part for part in self.parts if isinstance(part, SourceData)}


@dataclass(frozen=True, slots=True)
class SourceGroup(_HasParts):
    """A repeating group.

    Attributes:
        count: entries of a group of fixed count; None: the header says it.
        header_size: bytes of the header, 0 with a fixed count.
        count_kind: type of the header's count, `count_offset` bytes from its start.
        entry_size_kind: type of the header's entry size; None: entries have `size` bytes.
        size: bytes of an entry's fields.
        is_later: a later version of the format added it: a frame may end before it.
        parts: groups and data that stand behind each entry's fields, so that entries differ in length.
    """

    name: str
    fields: dict[str, SourceField]
    size: int
    count: int | None
    header_size: int
    count_kind: PrimitiveType
    count_offset: int
    entry_size_kind: PrimitiveType | None
    entry_size_offset: int
    is_big_endian: bool
    line: int
    is_later: bool = False
    parts: tuple[SourceGroup | SourceData, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceData:
    """Variable text: `header_size` bytes that begin with its length, then as many bytes.

    Attributes:
        is_later: as of a group.
        maximum: bytes of the text at most, told of a reader of it.
        text: the text as a field that a table reads.
    """

    name: str
    length_kind: PrimitiveType
    header_size: int
    is_big_endian: bool
    line: int
    is_later: bool = False
    maximum: int = DATA_SIZE_MAX
    text: SourceField = field(init=False)

    def __post_init__(self) -> None:
        """The text has the name and the place in the document."""
        most = min(self.maximum, self.length_kind.maximum)
        text = SourceField(self.name, SOURCE_TYPES["char"], 0, most, 0, None, self.line, is_variable=True)
        object.__setattr__(self, "maximum", most)
        object.__setattr__(self, "text", text)


@dataclass(frozen=True, slots=True)
class SourceMessageType(_HasParts):
    """One message type.

    Attributes:
        type_id: as in the message's frame.
        size: bytes of the fixed part of the body.
        longer: newer versions may append fields: a longer fixed part is no error.
        parts: groups and data behind the fixed part, in their order.
    """

    name: str
    type_id: int
    fields: dict[str, SourceField]
    size: int
    line: int
    longer: bool = False
    parts: tuple[SourceGroup | SourceData, ...] = ()
    framing: Framing = field(default=FRAMING_DEFAULT)

    @property
    def frame_size(self) -> int:
        """Bytes with the frame header, of a message without groups and data."""
        return self.framing.header_size + self.size

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Framed message of the feed source's own framing as a numpy structure: frame_length, message_type, fields."""
        frame, fields = SOURCE_FRAME_LAYOUT, self.fields.values()
        names = [*frame.offsets, *self.fields]
        codes = [*(frame.dtype()[name].str for name in frame.offsets), *(each.numpy_code for each in fields)]
        offsets = [*frame.offsets.values(), *(frame.size + each.offset for each in fields)]
        return np.dtype({"names": names, "formats": codes, "offsets": offsets, "itemsize": self.frame_size})

    def encode(self, columns: dict[str, NDArray[np.generic]], count: int) -> NDArray[np.void]:
        """Framed messages from columns; a column that is not given stays zero.

        Args:
            columns: per field an array of shape (count,).

        Returns:
            Shape (count,), of `dtype`.

        Raises:
            ValueError: the format has another framing, or groups or data.
        """
        if self.framing != FRAMING_DEFAULT or self.parts:
            raise ValueError(
                f"{self.name}: only fixed messages in the feed source's own framing are encoded from columns"
            )
        rows = np.zeros(count, dtype=self.dtype)
        rows["frame_length"] = self.frame_size
        rows["message_type"] = self.type_id
        for name in self.fields:
            if name in columns:
                rows[name] = columns[name]
        return rows


@dataclass(frozen=True, slots=True)
class VenuePacket:
    """The venue's packet header, for readers that put a source packet's header in its place.

    Attributes:
        header_size: bytes before the first frame.
        sequence, count, sent_at: where the header has them; None: it has not.
    """

    name: str
    header_size: int
    sequence: SourceField | None
    count: SourceField | None
    sent_at: SourceField | None


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """All message types of a feed source."""

    name: str
    messages: dict[str, SourceMessageType]
    document: str
    framing: Framing = FRAMING_DEFAULT
    packet: VenuePacket | None = None
