"""A contributed message as a frame of the feed's source format. Pure.

A contributor sends SBE messages: header and body. In the source stream each has its frame's length before it, two
bytes. The source format must describe just these frames; a message that does not fit it is refused here, so that the
contributor learns it, although adapters would skip it.
"""

from __future__ import annotations

from dataclasses import replace

from tandemfeed.feedcore.documents.primitive_types import PRIMITIVES, Place
from tandemfeed.feedcore.documents.source_layout import (
    Framing,
    SourceData,
    SourceFormat,
    SourceGroup,
    SourceMessageType,
    SourcePart,
)
from tandemfeed.feedcore.wire.sbe_header import SBE_HEADER_SIZE

LENGTH_SIZE = 2
_UINT16 = PRIMITIVES["uint16"]
FRAMING = Framing(
    header_size=LENGTH_SIZE + SBE_HEADER_SIZE,
    length=Place(_UINT16, 0),
    type=Place(_UINT16, LENGTH_SIZE + 2),
    block_length=Place(_UINT16, LENGTH_SIZE),
    version=Place(_UINT16, LENGTH_SIZE + 6),
)


class MessageRefused(ValueError):
    """A message does not fit the source format; the text says why."""


class WrongFormat(ValueError):
    """The source format does not describe contributed messages."""


class FrameMaker:
    """Makes frames of messages.

    Args:
        source_format: the feed's.
        message_size_max: of a message, in bytes.

    Raises:
        WrongFormat: its frames are not those of contributions.
    """

    def __init__(self, source_format: SourceFormat, message_size_max: int) -> None:
        if replace(source_format.framing, is_big_endian=False) != FRAMING or source_format.framing.is_big_endian:
            raise WrongFormat(
                f"{source_format.document}: its framing is not that of contributed messages, which is a length of two "
                "bytes and an SBE header; copy the <framing> of contribution.xml"
            )
        self._types = {each.type_id: each for each in source_format.messages.values()}
        self._name, self._message_size_max = source_format.name, message_size_max

    def frame(self, message: bytes) -> bytes:
        """The frame of an SBE message.

        Raises:
            MessageRefused
        """
        if len(message) > self._message_size_max:
            raise MessageRefused(f"it has {len(message)} bytes; at most {self._message_size_max} fit in a packet")
        if len(message) < SBE_HEADER_SIZE:
            raise MessageRefused(f"it has {len(message)} bytes; its SBE header alone has {SBE_HEADER_SIZE}")
        frame = (len(message) + LENGTH_SIZE).to_bytes(LENGTH_SIZE, "little") + message
        type_id = _read(frame, FRAMING.type)
        kind = self._types.get(type_id)
        if kind is None:
            known = ", ".join(f"{each.name} ({number})" for number, each in sorted(self._types.items()))
            raise MessageRefused(f"its template {type_id} is not in the source format {self._name}, which has {known}")
        end = _end_of_message(frame, kind)
        if end != len(frame):
            raise MessageRefused(
                f"as {kind.name} it must have {end - LENGTH_SIZE} bytes; it has {len(message)}, so it was built by "
                "another schema or is damaged"
            )
        return frame


def _end_of_message(frame: bytes, kind: SourceMessageType) -> int:
    assert FRAMING.block_length is not None
    block_size = _read(frame, FRAMING.block_length)
    if block_size < kind.size:
        raise MessageRefused(f"its block has {block_size} bytes; {kind.name} needs {kind.size}")
    return _end_of_parts(frame, FRAMING.header_size + block_size, kind.parts)


def _end_of_parts(frame: bytes, at: int, parts: tuple[SourcePart, ...]) -> int:
    for part in parts:
        at = _end_of_data(frame, at, part) if isinstance(part, SourceData) else _end_of_group(frame, at, part)
        if at > len(frame):
            raise MessageRefused(f"its {part.name} ends after the message")
    return at


def _end_of_data(frame: bytes, at: int, data: SourceData) -> int:
    length = _read(frame, Place(data.length_kind, 0), at, is_big_endian=data.is_big_endian)
    if length > data.maximum:
        raise MessageRefused(f"its {data.name} has {length} bytes; at most {data.maximum} are allowed")
    return at + data.header_size + length


def _end_of_group(frame: bytes, at: int, group: SourceGroup) -> int:
    big, size = group.is_big_endian, group.size
    count = group.count if isinstance(group.count, int) else _read(frame, group.count, at, is_big_endian=big)
    if group.entry_size is not None:
        size = _read(frame, group.entry_size, at, is_big_endian=big)
        if count and size < group.size:
            raise MessageRefused(f"an entry of its {group.name} has {size} bytes; it needs {group.size}")
    at += group.header_size
    for _ in range(count):
        at = _end_of_parts(frame, at + size, group.parts)
        if at > len(frame):  # also bounds the loop, whatever the count
            raise MessageRefused(f"its {group.name} ends after the message")
    return at


def _read(frame: bytes, place: Place, at: int = 0, *, is_big_endian: bool = False) -> int:
    if at + place.end > len(frame):
        raise MessageRefused("it ends within a group or text")
    return int.from_bytes(frame[at + place.offset : at + place.end], "big" if is_big_endian else "little")
