"""What a source format consists of: framing, message types, fields, groups, variable data.

A message type is fixed fields, one behind the other or at offsets, then groups and variable data; frames are as the
document's <framing> says (docs/source-format.md). `feedcore.documents.source_format` loads the document.
Invariant: equal documents give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedcore.documents.primitive_types import PRIMITIVES, Place, Primitive
from feedcore.sbe.messages import Column
from feedcore.wire.source_packet import SOURCE_FRAME_LAYOUT, SOURCE_FRAME_SIZE

PLACED_SIZE_MAX = 65_535  # bytes of a frame and of everything in it: a datagram holds no more
DATA_SIZE_MAX = 65_534  # bytes of a variable text, unless less is told: what a length of 16 bits says in SBE


@dataclass(frozen=True, slots=True)
class Framing:
    """How one message of a source packet is framed; the default is the feed source's own (docs/protocol.md, clause 2).

    Attributes:
        header_size: bytes before offset 0 of the body.
        length: where it says how long it is: the frame takes `length * length_unit + length_adds` bytes in all.
        type: where it tells the message type, from the frame's start.
        block_length: where it says how long the fixed part is; None: as the message type has it.
    """

    header_size: int
    length: Place
    type: Place
    length_unit: int = 1
    length_adds: int = 0
    block_length: Place | None = None
    is_big_endian: bool = False

    @property
    def size_min(self) -> int:
        """Bytes that every frame has: what must be read to know its length, type and block length."""
        return max(self.header_size, *(place.end for place in (self.length, self.type, self.block_length) if place))


FRAMING_DEFAULT = Framing(
    SOURCE_FRAME_SIZE,
    Place(PRIMITIVES["uint16"], SOURCE_FRAME_LAYOUT.offsets["frame_length"]),
    Place(PRIMITIVES["uint16"], SOURCE_FRAME_LAYOUT.offsets["message_type"]),
)


@dataclass(frozen=True, slots=True)
class SourceField(Column):
    """One field of a message's body or of a group's entry.

    Attributes:
        constant: a value that is not in the message at all (SBE's presence="constant").
        is_variable: the text of a <data>: the message says where it lies and how long it is, `length` is the most.
    """

    null: int | None
    is_big_endian: bool = False
    constant: int | None = None
    is_variable: bool = False

    @property
    def size(self) -> int:
        """Bytes in the message."""
        return 0 if self.constant is not None else self.kind.size * self.length

    @property
    def is_text(self) -> bool:
        """Characters, not a number."""
        return self.kind.name == "char"


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """What a message and an entry of a group have in common: fixed fields, then groups and variable texts.

    Attributes:
        size: bytes of the fixed fields.
        parts: groups and variable texts, in their order.
    """

    name: str
    fields: dict[str, SourceField]
    size: int
    parts: tuple[SourcePart, ...]

    @property
    def groups(self) -> dict[str, SourceGroup]:
        """The groups by name."""
        return {part.name: part for part in self.parts if isinstance(part, SourceGroup)}

    @property
    def data(self) -> dict[str, SourceData]:
        """The variable texts by name."""
        return {part.name: part for part in self.parts if isinstance(part, SourceData)}


@dataclass(frozen=True, slots=True)
class SourceGroup(SourceBlock):
    """A repeating group; if its entries have parts they differ in length.

    Attributes:
        header_size: bytes of the header, 0 with a fixed count.
        count: entries, or where the header says how many they are.
        entry_size: where the header says how long each is; None: entries have `size` bytes.
        is_later: a later version of the format added it: a frame may end before it.
    """

    is_big_endian: bool
    header_size: int
    count: int | Place
    entry_size: Place | None
    is_later: bool = False


@dataclass(frozen=True)
class SourceData:
    """Variable text: `header_size` bytes that begin with its length, then as many bytes.

    Attributes:
        maximum: bytes of the text at most, told of a reader of it.
        is_later: as of a group.
    """

    name: str
    length_kind: Primitive
    header_size: int
    maximum: int
    is_big_endian: bool
    is_later: bool = False

    @cached_property
    def text(self) -> SourceField:
        """The text as a field that a table reads."""
        return SourceField(self.name, PRIMITIVES["char"], 0, self.maximum, 0, None, is_variable=True)


SourcePart: TypeAlias = SourceGroup | SourceData
BlockParts: TypeAlias = tuple[str, dict[str, SourceField], int, tuple[SourcePart, ...]]  # what a SourceBlock is made of


@dataclass(frozen=True, slots=True)
class SourceMessageType(SourceBlock):
    """One message type.

    Attributes:
        type_id: as in the message's frame.
        longer: newer versions may append fields: a longer fixed part is no error.
    """

    type_id: int
    longer: bool
    framing: Framing

    @property
    def frame_size(self) -> int:
        """Bytes with the frame header, of a message without groups and data."""
        return self.framing.header_size + self.size

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Framed message of the feed source's own framing as a numpy structure: frame_length, message_type, fields."""
        frame, fields = SOURCE_FRAME_LAYOUT, self.fields.values()
        codes = [frame.dtype()[name].str for name in frame.offsets]
        codes += [field.numpy_code(">" if field.is_big_endian else "<") for field in fields]
        offsets = [*frame.offsets.values(), *(frame.size + field.offset for field in fields)]
        names = [*frame.offsets, *self.fields]
        return np.dtype({"names": names, "formats": codes, "offsets": offsets, "itemsize": self.frame_size})

    def encode(self, columns: dict[str, NDArray[np.generic]], count: int) -> NDArray[np.void]:
        """So many framed messages, of `dtype`, from columns by field; a column that is not given stays zero.

        Raises:
            ValueError: the format has another framing, or groups or data.
        """
        if self.framing != FRAMING_DEFAULT or self.parts:
            raise ValueError(f"{self.name}: only fixed messages in the feed source's own framing come from columns")
        rows = np.zeros(count, dtype=self.dtype)
        rows["frame_length"] = self.frame_size
        rows["message_type"] = self.type_id
        for name in self.fields.keys() & columns.keys():
            rows[name] = columns[name]
        return rows


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """All message types of a feed source."""

    name: str
    messages: dict[str, SourceMessageType]
    document: str
    framing: Framing = FRAMING_DEFAULT
