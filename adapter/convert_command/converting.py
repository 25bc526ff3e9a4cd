"""Converts the messages of input files: from a reader, through the converter, to an output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.dead_letters import DeadLetter
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input
from tandemfeed.adapter.convert_command.input.reading import READERS
from tandemfeed.adapter.convert_command.output.outputs import Output

OUT_SIZE = (
    2 << 20
)  # output space, in bytes; small, so that messages are in the processor's caches when they are written
OUT_WRITTEN = 1 << 20  # written when it has this many, because each write has a fixed cost
REFUSED_SHOWN = 5


@dataclass(slots=True)
class Result:
    """What was converted.

    Attributes:
        read, written: messages.
        refused: the first refused messages, each with its name in the venue's stream.
    """

    read: int = 0
    written: int = 0
    refused: list[tuple[str, DeadLetter]] = field(default_factory=list)


def convert_all(
    converter: CompiledConverter,
    given: Input,
    reader: str,
    output: Output,
    findings: Findings,
    *,
    session: int = 0,
    is_strict: bool = False,
    on_chunk: Callable[[FrameChunk, Result], None] = lambda chunk, result: None,
) -> Result:
    """Convert everything, and close the output.

    Args:
        reader: one of the READERS.
        session: trading day, YYYYMMDD.
        is_strict: stop when anything is found wrong.
        on_chunk: called after each chunk.

    Raises:
        FormatError: an input cannot be read at all.
    """
    try:
        result = _converted(converter, given, reader, output, findings, session, is_strict, on_chunk)
        output.close()
    except BaseException:  # also a signal
        output.abandon()
        raise
    return result


def _converted(
    converter: CompiledConverter, given: Input, reader: str, output: Output, findings: Findings, session: int,
    is_strict: bool, on_chunk: Callable[[FrameChunk, Result], None],
) -> Result:  # fmt: skip
    result, streams, room = Result(), dict[bytes, int](), _Room(output)
    for chunk in READERS[reader](given, findings):
        if is_strict and (findings.is_incomplete or result.refused):
            break
        stream = streams.setdefault(chunk.session, len(streams))
        packet = chunk.source_packet(feed_id=0, source_stream_id=stream, session=session)
        result.written += room.convert(converter, packet, chunk.message_count)
        result.read += chunk.message_count
        for letter in converter.take_dead_letters()[: REFUSED_SHOWN - len(result.refused)]:
            result.refused.append((findings.origin(letter.source_seq), letter))
        on_chunk(chunk, result)
    room.write()
    return result


class _Room:
    """The space for output messages, which are written when there are enough of them."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._out: NDArray[np.uint8] = np.empty(OUT_SIZE, np.uint8)
        self._size = 0

    def convert(self, converter: CompiledConverter, packet: bytes, count: int) -> int:
        """Convert a packet's messages; returns how many were made of them."""
        done = written = 0
        while done < count:
            result = converter.convert(packet, done, count - done, self._out, self._size, OUT_SIZE)
            self._size = result.end
            done += result.source_count
            written += result.message_count
            if done < count or self._size >= OUT_WRITTEN:
                self.write()
        return written

    def write(self) -> None:
        """Write what is in the room."""
        self._output.write(self._out[: self._size])
        self._size = 0
