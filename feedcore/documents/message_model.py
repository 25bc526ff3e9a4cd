"""The message model: the schema of the output, an SBE message schema (FIX Simple Binary Encoding 1.0, XML).

A thin view of `feedcore.sbe` for code that handles output frames: their messages, and numpy arrays of those of fixed
size. `client_lib.messages.decoding` turns any of them into plain values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.sbe import Schema, load_schema
from tandemfeed.feedcore.sbe.messages import MessageType
from tandemfeed.feedcore.wire.output_packet import FRAME_LAYOUT, OUTPUT_FRAME_SIZE
from tandemfeed.feedcore.wire.sbe_header import EQUAL_PARTS, SBE_HEADER_LAYOUT, SBE_HEADER_SIZE, SBE_MESSAGE_HEADER

PREFIX_SIZE = OUTPUT_FRAME_SIZE + SBE_HEADER_SIZE  # of a frame, before the message's block
assert EQUAL_PARTS.size == PREFIX_SIZE
_HEADER_PARTS = list(SBE_HEADER_LAYOUT.offsets)
_PREFIX = [*FRAME_LAYOUT.offsets, *_HEADER_PARTS]  # each a uint16
_WHOLE_HEADER = np.dtype(f"<u{SBE_HEADER_SIZE}")  # all of a header as one integer, to compare it at once
_LENGTH = np.dtype("<u2")
COMPARED_COUNT = 4  # fewer frames are compared one by one, because numpy would be slower
SHAPES_MAX = 1_024  # the shapes of a model's messages that are remembered; a feed has a few


class FrameShape(NamedTuple):
    """What the length and the SBE header of a frame say.

    Attributes:
        message: None: of another schema.
        rows: the numpy structure of such frames; None: they fit no array.
    """

    message: MessageType | None
    rows: np.dtype[np.void] | None


Span: TypeAlias = tuple[FrameShape, int, int, int]  # of frames: their shape, the first byte, the end, bytes of each
OTHER_SCHEMA = FrameShape(None, None)


def frame_size(message: MessageType) -> int:
    """The bytes of an output frame without groups and variable data."""
    return PREFIX_SIZE + message.block_length


@lru_cache(512)  # all messages of a process's models, in all versions of a stream
def frame_dtype(message: MessageType, size: int) -> np.dtype[np.void]:
    """A framed message of fixed size as a numpy structure; the SBE header's fields have the standard's names.

    Args:
        size: bytes of the frame; a newer version of the schema may have made it longer.
    """
    columns = message.columns.values()
    codes = ["<u2"] * len(_PREFIX) + [column.numpy_code("<") for column in columns]
    offsets = [*range(0, PREFIX_SIZE, 2), *(PREFIX_SIZE + column.offset for column in columns)]
    return np.dtype({"names": [*_PREFIX, *message.columns], "formats": codes, "offsets": offsets, "itemsize": size})


@dataclass(frozen=True)
class MessageModel:
    """A whole schema, whose messages are little-endian and have the output's message header."""

    schema: Schema
    _shapes: dict[tuple[int, int], FrameShape] = field(default_factory=dict, init=False, repr=False, compare=False)

    def arrays(self, frames: bytes | memoryview) -> Iterator[tuple[MessageType, NDArray[np.void]]]:
        """Structured views, without copying, of consecutive frames; each view has messages of one template.

        Skips messages of other schemas (tandemfeed's own control messages), messages with groups or variable data, and
        messages of an older schema that are shorter than this schema's.
        """
        for (message, rows), start, end, length in self.spans(frames):
            if message is not None and rows is not None:
                yield message, np.ndarray((end - start) // length, rows, frames, start)

    def runs(self, frames: bytes | memoryview) -> Iterator[tuple[MessageType, int, memoryview]]:
        """(message, bytes of each frame, the frames) of consecutive messages with one size and equal headers.

        Skips messages of other schemas.
        """
        for message, length, run in self.stretches(frames):
            if message is not None:
                yield message, length, run

    def stretches(self, frames: bytes | memoryview) -> Iterator[tuple[MessageType | None, int, memoryview]]:
        """As `runs`, with the messages of other schemas too, one at a time, for which the message is None."""
        view = memoryview(frames)
        for shape, start, end, length in self.spans(frames):
            yield shape.message, length, view[start:end]

    def spans(self, frames: bytes | memoryview, start: int = 0) -> list[Span]:
        """The longest spans of frames with one size and equal headers, from a place on, in order. Frames of other
        schemas, and one that the end cuts off, are spans of their own."""
        unpack, shapes, size = EQUAL_PARTS.unpack_from, self._shapes, len(frames)
        found: list[Span] = []
        while size - start >= PREFIX_SIZE:
            head = unpack(frames, start)
            shape, length = shapes.get(head) or self._learn(frames, start), head[0]
            end = start + length
            if shape is OTHER_SCHEMA or end > size:
                end = start + max(length, OUTPUT_FRAME_SIZE)
                shape = OTHER_SCHEMA
            elif not found and self._fill_rest(frames, start, length):
                end = size
            else:
                while size - end >= length and unpack(frames, end) == head:
                    end += length
            found.append((shape, start, end, length))
            start = end
        if size - start >= OUTPUT_FRAME_SIZE:  # fewer bytes are not a frame
            found.append((OTHER_SCHEMA, start, size, size - start))
        return found

    def shape_at(self, frames: bytes | memoryview, start: int) -> FrameShape:
        """The shape of the frame that begins here."""
        return self._shapes.get(EQUAL_PARTS.unpack_from(frames, start)) or self._learn(frames, start)

    def _learn(self, frames: bytes | memoryview, start: int) -> FrameShape:
        """The shape of a frame that is seen for the first time."""
        length, _ = key = EQUAL_PARTS.unpack_from(frames, start)
        _, template, schema, _ = SBE_MESSAGE_HEADER.unpack_from(frames, start + OUTPUT_FRAME_SIZE)
        message = self.schema.by_template.get(template) if schema == self.schema.schema_id else None
        shape = OTHER_SCHEMA
        if message is not None and length >= PREFIX_SIZE:
            shape = FrameShape(message, frame_dtype(message, length) if is_array(message, length) else None)
        if len(self._shapes) >= SHAPES_MAX:
            self._shapes.clear()
        self._shapes[key] = shape
        return shape

    @staticmethod
    def _fill_rest(frames: bytes | memoryview, start: int, length: int) -> bool:
        """True if all the rest has frames like the one at `start`, as most packets have; False if it has others, or so
        few that comparing them one by one is faster."""
        rest = len(frames) - start
        count = rest // length
        unpack = EQUAL_PARTS.unpack_from
        if count < COMPARED_COUNT or rest % length or unpack(frames, start + rest - length) != unpack(frames, start):
            return False
        headers = np.ndarray((count,), _WHOLE_HEADER, frames, start + OUTPUT_FRAME_SIZE, (length,)).tobytes()
        lengths = np.ndarray((count,), _LENGTH, frames, start, (length,)).tobytes()
        return headers == headers[:SBE_HEADER_SIZE] * count and lengths == lengths[:2] * count


def is_array(message: MessageType, size: int) -> bool:
    """True if frames of this size fit a numpy array: no groups or variable data, and no missing field."""
    return message.is_fixed and size >= frame_size(message)


def load_message_model(source: Path | bytes, document: str = "message model") -> MessageModel:
    """Load an SBE message schema.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the file cannot be read.
    """
    schema = load_schema(source, document)
    if schema.is_big_endian:
        raise DocumentError(schema.document, 1, "byteOrder: only littleEndian output is written")
    header = [(name, part.offset, part.kind.size) for name, part in schema.header.parts.items()]
    expected = [(name, 2 * place, 2) for place, name in enumerate(_HEADER_PARTS)]
    if header != expected or schema.header.size != SBE_HEADER_SIZE:
        wanted = f"the message header of an output is {', '.join(_HEADER_PARTS)}: uint16"
        raise DocumentError(schema.document, 1, wanted)
    return MessageModel(schema)
