"""The readers of `convert file`: from input files to frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, TypeAlias

import numpy as np

from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.files.binary_file import read_binary_file
from tandemfeed.adapter.conversion.formats.files.dbn import DbnStream
from tandemfeed.adapter.conversion.formats.files.dbn_symbols import parts_by_day
from tandemfeed.adapter.conversion.formats.files.lobster import read_lobster
from tandemfeed.adapter.conversion.formats.files.tick_table import read_tick_file
from tandemfeed.adapter.conversion.formats.frames.frame_walk import FrameWalk
from tandemfeed.adapter.convert_command.captures.capture_reading import read_captures
from tandemfeed.adapter.convert_command.captures.protocols import PROTOCOLS
from tandemfeed.adapter.convert_command.captures.stream_merge import MESSAGES_MAX
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input, note_damage, require_content, until_damage
from tandemfeed.feedcore.documents.source_layout import SourceFormat


def _binary_file(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    for path in given.paths:
        with DecompressedFile(path) as file:
            chunks = read_binary_file(file, given.source_format, MESSAGES_MAX)
            yield from until_damage(chunks, path, findings)
            note_damage(file, path, findings)


def _dbn(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    for path in given.paths:
        with DecompressedFile(path) as file:
            yield from until_damage(dbn_chunks(file, given.source_format), path, findings)
            note_damage(file, path, findings)


def dbn_chunks(file: BinaryIO, source_format: SourceFormat) -> Iterator[FrameChunk]:
    """The records of a DBN file, decompressed, and among them the symbols of its metadata as messages."""
    stream, sequence = DbnStream(file), 1
    for part in parts_by_day(stream.blocks(), stream.metadata, source_format):
        if isinstance(part, FrameChunk):
            yield part
            continue
        for chunk in _whole_frames(part, source_format, sequence):
            sequence += chunk.message_count
            yield chunk


def _whole_frames(data: bytes, source_format: SourceFormat, sequence: int) -> Iterator[FrameChunk]:
    """The frames that fill some bytes, in chunks, numbered from `sequence` on.

    Raises:
        FormatError: after those that are whole, with the offset.
    """
    walk, view, start = FrameWalk(source_format.framing), np.frombuffer(data, np.uint8), 0
    while start < len(data):
        end, count = walk.skip(view, start, MESSAGES_MAX)
        if not count:
            raise FormatError(f"offset {start}: no whole record begins here, but {len(data) - start} bytes are left")
        yield FrameChunk(data[start:end], count, sequence)
        start, sequence = end, sequence + count


def _lobster(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    for path in given.paths:
        yield from until_damage(read_lobster(path, given.source_format, given.options.symbol), path, findings)


def _ticks(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    name = given.source_format.name
    if name != "tick-table":
        raise FormatError(f"the reader of tables needs the source format 'tick-table', not {name!r}")
    for path in given.paths:
        yield from until_damage(read_tick_file(path, given.source_format, given.options), path, findings)


Reader: TypeAlias = Callable[[Input, Findings], Iterator[FrameChunk]]


def _with_content(reader: Reader) -> Reader:
    """A reader that refuses empty files."""

    def read(given: Input, findings: Findings) -> Iterator[FrameChunk]:
        require_content(given.paths)
        yield from reader(given, findings)

    return read


_READERS: dict[str, Reader] = {
    "binary-file": _binary_file,
    "dbn": _dbn,
    "lobster": _lobster,
    "tick-table": _ticks,
    **{name: partial(read_captures, protocol) for name, protocol in PROTOCOLS.items()},
}
READERS = {name: _with_content(reader) for name, reader in _READERS.items()}
CAPTURE_READERS = tuple(PROTOCOLS)
READER_OF_FORMAT = {
    "itch50": "binary-file",
    "dbn": "dbn",
    "iex": "iex-tp",
    "lobster": "lobster",
    "mdp3": "mdp3",
    "tick-table": "tick-table",
}


def default_reader(source_format: SourceFormat) -> str | None:
    """The reader for a source format: that of a shipped one, or of captures if the document describes its packets."""
    numbered = source_format.packet is not None and source_format.packet.sequence is not None
    return READER_OF_FORMAT.get(source_format.name, "packets" if numbered else None)
