"""The parts of a source format: framing, message types, fields, groups, variable data.

A message type has fixed fields, consecutive or at offsets, then groups and variable data. The document's <framing>
defines the frames (docs/source-format.md). `feedcore.documents.source_format` loads the document.
Invariant: equal documents give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.primitive_types import PRIMITIVES, Place, Primitive
from tandemfeed.feedcore.sbe.messages import Column
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME_LAYOUT, SOURCE_FRAME_SIZE

PLACED_SIZE_MAX = 65_535  # bytes of a frame and of all its parts; a datagram is no longer
DATA_SIZE_MAX = 65_534  # bytes of a variable text, unless the document sets less: SBE's maximum for a 16-bit length


@dataclass(frozen=True, slots=True)
class Framing:
    """How one message of a source packet is framed; the default is the feed source's own (docs/protocol.md, clause 2).

    Attributes:
        header_size: bytes before offset 0 of the body.
        length: place of the length; the whole frame has `length * length_unit + length_adds` bytes.
        type: place of the message type, from the frame's start.
        block_length: place of the fixed part's length; None: the message type defines it.
        version: place of the version of the schema that the message follows.
        is_measured: the venue's messages do not contain their length; readers put it before each (`length` says where).
    """

    header_size: int
    length: Place
    type: Place
    length_unit: int = 1
    length_adds: int = 0
    block_length: Place | None = None
    version: Place | None = None
    is_big_endian: bool = False
    is_measured: bool = False

    @property
    def size_min(self) -> int:
        """The minimum bytes of a frame: those that contain its length, type, block length and version."""
        places = (self.length, self.type, self.block_length, self.version)
        return max(self.header_size, *(place.end for place in places if place))


@dataclass(frozen=True, slots=True)
class HeaderPart(Place):
    """An integer of the venue's packet header.

    Attributes:
        unit_ns: of a time, the nanoseconds of its unit.
    """

    is_big_endian: bool
    unit_ns: int = 1

    def read(self, datagram: bytes) -> int:
        """Its value, in nanoseconds if it is a time."""
        value = int.from_bytes(datagram[self.offset : self.end], "big" if self.is_big_endian else "little")
        return value * self.unit_ns

    def write(self, value: int, datagram: bytearray) -> None:
        """Put a value into a header."""
        datagram[self.offset : self.end] = value.to_bytes(self.size, "big" if self.is_big_endian else "little")


@dataclass(frozen=True, slots=True)
class SessionPart:
    """The venue's name of its session in the packet header. Attributes: number: to read it by; None: it is a text."""

    offset: int
    end: int
    number: HeaderPart | None

    def read(self, datagram: bytes) -> bytes:
        """The name, as printable text."""
        if self.number is not None:
            return b"%d" % self.number.read(datagram)
        return datagram[self.offset : self.end]

    def write(self, name: bytes, datagram: bytearray) -> None:
        """Put a name that was read into a header."""
        if self.number is not None:
            self.number.write(int(name), datagram)
        else:
            datagram[self.offset : self.end] = name


@dataclass(frozen=True, slots=True)
class PacketHeader:
    """The venue's packet header, which precedes the frames in a datagram.

    Attributes:
        sequence: the number of the first message; in a packet without messages, of the next message. None: packets are
            not numbered.
        counts_packets: `sequence` is the number of the packet instead.
        messages_max: the message numbers that each packet number stands for (`packet_numbers`).
        count: the number of messages.
        end_of_session: the value of `count` that ends a session; such a packet has no messages.
        length: the bytes of the packet, less `length_adds`.
        channel: identifies the stream that the numbers belong to.
        session: the numbers restart with each session.
        sent_at: its parts together are the venue's time in nanoseconds since 1970.
        is_request: this header alone, with the number and count of missing messages, requests them from the venue.
        has_unnumbered: packets with the number 0 are not part of the sequence.
    """

    name: str
    size: int
    sequence: HeaderPart | None = None
    counts_packets: bool = False
    count: HeaderPart | None = None
    end_of_session: int | None = None
    length: HeaderPart | None = None
    length_adds: int = 0
    channel: HeaderPart | None = None
    session: SessionPart | None = None
    sent_at: tuple[HeaderPart, ...] = ()
    is_request: bool = False
    messages_max: int = 1
    has_unnumbered: bool = False


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
        is_variable: a text whose place and length depend on the message; `length` is the maximum.
        since_version: messages of earlier versions do not have the field; it is null, or an empty text.
        is_time: nanoseconds since 1970.
    """

    null: int | None
    is_big_endian: bool = False
    constant: int | None = None
    is_variable: bool = False
    since_version: int = 0
    is_time: bool = False

    @property
    def is_nullable(self) -> bool:
        """True if the value may be null."""
        return self.null is not None or self.since_version > 0

    @property
    def size(self) -> int:
        """Bytes in the message."""
        return 0 if self.constant is not None else self.kind.size * self.length

    @property
    def is_text(self) -> bool:
        """True for characters, false for a number."""
        return self.kind.name == "char"


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """The common part of a message and a group's entry: fixed fields, then groups and variable texts.

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
    """A repeating group. If its entries have groups or texts, their lengths differ.

    Attributes:
        header_size: bytes of the header, 0 with a fixed count.
        count: the number of entries, or its place in the header.
        entry_size: the place of the entries' length in the header; None: entries have `size` bytes.
        since_version: messages of earlier versions do not have the group.
    """

    is_big_endian: bool
    header_size: int
    count: int | Place
    entry_size: Place | None
    since_version: int = 0


@dataclass(frozen=True)
class SourceData:
    """Variable text: `header_size` bytes that begin with its length, then the text.

    Attributes:
        maximum: the text's maximum bytes.
        since_version: as for a group.
    """

    name: str
    length_kind: Primitive
    header_size: int
    maximum: int
    is_big_endian: bool
    since_version: int = 0

    @cached_property
    def text(self) -> SourceField:
        """The text as a field for tables."""
        return SourceField(self.name, PRIMITIVES["char"], 0, self.maximum, 0, None, is_variable=True)


SourcePart: TypeAlias = SourceGroup | SourceData
BlockParts: TypeAlias = tuple[str, dict[str, SourceField], int, tuple[SourcePart, ...]]  # the parts of a SourceBlock


@dataclass(frozen=True, slots=True)
class SourceMessageType(SourceBlock):
    """One message type.

    Attributes:
        type_id: the number in the message's frame.
        longer: newer versions may append fields, so a longer fixed part is allowed.
    """

    type_id: int
    longer: bool
    framing: Framing

    @property
    def frame_size(self) -> int:
        """Bytes of a message without groups and data, including the frame header."""
        return self.framing.header_size + self.size

    @property
    def dtype(self) -> np.dtype[np.void]:
        """A message in the feed source's own framing as a numpy structure: frame_length, message_type, fields."""
        frame, fields = SOURCE_FRAME_LAYOUT, self.fields.values()
        codes = [frame.dtype()[name].str for name in frame.offsets]
        codes += [field.numpy_code(">" if field.is_big_endian else "<") for field in fields]
        offsets = [*frame.offsets.values(), *(frame.size + field.offset for field in fields)]
        names = [*frame.offsets, *self.fields]
        return np.dtype({"names": names, "formats": codes, "offsets": offsets, "itemsize": self.frame_size})

    def encode(self, columns: dict[str, NDArray[np.generic]], count: int) -> NDArray[np.void]:
        """Make this many framed messages of `dtype` from columns by field; a missing column stays zero.

        Raises:
            ValueError: the format has a different framing, or groups or data.
        """
        if self.framing != FRAMING_DEFAULT or self.parts:
            raise ValueError(f"{self.name}: columns can only make fixed messages in the feed source's own framing")
        rows = np.zeros(count, dtype=self.dtype)
        rows["frame_length"] = self.frame_size
        rows["message_type"] = self.type_id
        for name in self.fields.keys() & columns.keys():
            rows[name] = columns[name]
        return rows


class SymbolSource(NamedTuple):
    """A message that says which symbol an instrument has. Attributes: by, text: the fields that number and name it."""

    message: str
    by: str
    text: str


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """All message types of a feed source.

    Attributes:
        warnings: what is unusual in the venue's SBE schema, with file and line.
        packet: the venue's packet header; None: the document does not describe it.
        symbols: the messages that name instruments.
    """

    name: str
    messages: dict[str, SourceMessageType]
    document: str
    framing: Framing = FRAMING_DEFAULT
    warnings: tuple[str, ...] = ()
    packet: PacketHeader | None = None
    symbols: tuple[SymbolSource, ...] = ()
