"""Decoding by the message model. It is parsed at first use, because many applications only forward payloads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib.messages.message import MessageClasses, load_messages
from tandemfeed.client_lib.messages.sbe_reading import SbeMessage, SbeReader
from tandemfeed.feedcore.documents.message_model import (
    PREFIX_SIZE,
    SHAPES_MAX,
    MessageModel,
    Span,
    frame_dtype,
    is_array,
    load_message_model,
)
from tandemfeed.feedcore.sbe.messages import MessageType
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME_SIZE
from tandemfeed.feedcore.wire.sbe_header import EQUAL_PARTS, EQUAL_PARTS_LAYOUT


class _UniformFrames(NamedTuple):
    """Frames of one message and size that fill a packet, as most packets have them.

    Attributes:
        equal_parts: reads the equal parts of all frames.
        expected: what it reads.
    """

    equal_parts: Struct
    expected: tuple[int, ...]
    message: MessageType
    rows: np.dtype[np.void]
    frame_count: int


class Decoder:
    """Decodes the feed's output messages.

    Args:
        message_model: the SBE message schema (XML) that the administration server granted.
        document: its name in error messages.
    """

    def __init__(self, message_model: bytes, document: str = "message model") -> None:
        self._xml = message_model
        self._document = document
        self._uniform: dict[tuple[tuple[int, ...], int], _UniformFrames] = {}  # by the first frame, and all bytes

    @cached_property
    def model(self) -> MessageModel:
        """The parsed message model."""
        return load_message_model(self._xml, self._document)

    @cached_property
    def classes(self) -> MessageClasses:
        """The classes of the messages."""
        return load_messages(self._xml)

    def arrays(self, frames: memoryview) -> Iterator[tuple[MessageType, NDArray[np.void]]]:
        """Structured views in stream order, each of consecutive messages with the same template."""
        size = len(frames)
        if size >= PREFIX_SIZE:
            known = self._uniform.get((EQUAL_PARTS.unpack_from(frames), size))
            if known is not None and known.equal_parts.unpack(frames) == known.expected:
                yield known.message, np.ndarray((known.frame_count,), known.rows, frames)
                return
        spans = self.model.spans(frames)
        if len(spans) == 1:
            self._remember(frames, *spans)
        for (message, rows), start, end, length in spans:
            if message is not None and rows is not None:
                yield message, np.ndarray(((end - start) // length,), rows, frames, start)

    def _remember(self, frames: memoryview, span: Span) -> None:
        """Note what one span has that is all of a packet."""
        (message, rows), _, end, length = span
        if message is None or rows is None:
            return
        if len(self._uniform) >= SHAPES_MAX:
            self._uniform.clear()
        count, first = end // length, EQUAL_PARTS.unpack_from(frames)
        equal_parts = EQUAL_PARTS_LAYOUT.repeated(count, stride=length)
        self._uniform[first, end] = _UniformFrames(equal_parts, first * count, message, rows, count)

    def messages(self, frames: bytes | memoryview) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each message as (name, field values). Slow, because it decodes message by message; for output and tests.

        Values are as on the wire: a decimal is its mantissa, an enumeration its integer or character. Only messages
        that `arrays` skips have values as `read` returns them.
        """
        for message, length, run in self.model.runs(frames):
            if is_array(message, length):
                for row in np.frombuffer(run, dtype=frame_dtype(message, length)):
                    yield message.name, {name: row[name].tolist() for name in message.columns}
            else:
                for start in range(0, len(run), length):
                    yield message.name, self.read(run[start : start + length]).fields

    def read(self, frame: bytes | memoryview) -> SbeMessage:
        """One framed message, with all SBE features: names of enumeration values, None for nulls, groups, text.

        Raises:
            SbeReadError: the message is truncated or has another schema.
        """
        return self._reader.read(frame, OUTPUT_FRAME_SIZE)

    @cached_property
    def _reader(self) -> SbeReader:
        return SbeReader(self.model.schema)
