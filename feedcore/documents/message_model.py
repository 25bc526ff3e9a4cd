"""The message model: the schema of the output, an SBE message schema (FIX Simple Binary Encoding 1.0, XML).

A thin view of `feedcore.sbe` for code that handles output frames: their messages, and numpy arrays of those of fixed
size. `client_lib.messages.decoding` turns any of them into plain values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.sbe import Schema, load_schema
from tandemfeed.feedcore.sbe.messages import MessageType
from tandemfeed.feedcore.wire.output_packet import FRAME_LAYOUT, OUTPUT_FRAME, OUTPUT_FRAME_SIZE
from tandemfeed.feedcore.wire.sbe_header import EQUAL_PARTS, SBE_HEADER_LAYOUT, SBE_HEADER_SIZE, SBE_MESSAGE_HEADER

PREFIX_SIZE = OUTPUT_FRAME_SIZE + SBE_HEADER_SIZE
_HEADER_PARTS = list(SBE_HEADER_LAYOUT.offsets)
_PREFIX = [*FRAME_LAYOUT.offsets, *_HEADER_PARTS]  # each a uint16
_WHOLE_HEADER = f"<u{SBE_HEADER_SIZE}"  # all of a header as one integer, to compare it at once
PROBED_COUNT = 4  # frames compared one by one: where types alternate, runs are short, and numpy would be slower


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

    def arrays(self, frames: bytes | memoryview) -> Iterator[tuple[MessageType, NDArray[np.void]]]:
        """Structured views, without copying, of consecutive frames; each view has messages of one template.

        Skips messages of other schemas (tandemfeed's own control messages), messages with groups or variable data, and
        messages of an older schema that are shorter than this schema's.
        """
        for message, length, run in self.runs(frames):
            if is_array(message, length):
                yield message, np.frombuffer(run, dtype=frame_dtype(message, length))

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
        offset = 0
        while offset + OUTPUT_FRAME_SIZE <= len(view):  # fewer bytes are not a frame
            length, template, end = self._stretch(view, offset)
            yield self.schema.by_template.get(template), length, view[offset:end]
            offset = end

    def _stretch(self, view: memoryview, offset: int) -> tuple[int, int, int]:
        """(frame length, template, end) of the longest run of equal frames from `offset` on."""
        length = OUTPUT_FRAME.unpack_from(view, offset)[0]
        if min(length, len(view) - offset) < PREFIX_SIZE:
            return length, -1, offset + max(length, OUTPUT_FRAME_SIZE)
        _, template, schema, _ = SBE_MESSAGE_HEADER.unpack_from(view, offset + OUTPUT_FRAME_SIZE)
        if schema != self.schema.schema_id:
            return length, -1, offset + length
        first = EQUAL_PARTS.unpack_from(view, offset)
        for end in range(offset + length, offset + (PROBED_COUNT + 1) * length, length):
            if end + length > len(view) or EQUAL_PARTS.unpack_from(view, end) != first:
                return length, template, end
        count = (len(view) - offset) // length
        headers = np.ndarray((count,), _WHOLE_HEADER, view, offset + OUTPUT_FRAME_SIZE, (length,))
        lengths = np.ndarray((count,), "<u2", view, offset, (length,))
        # Nearly always, all are equal; bytes compare fastest.
        if headers.tobytes() == first[1] * count and lengths.tobytes() == first[0] * count:
            return length, template, offset + count * length
        same = (lengths == length) & (headers == headers[0])
        first_other = int(same.argmin())  # 0 if there is none, because the first is the same
        return length, template, offset + (first_other or count) * length


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
