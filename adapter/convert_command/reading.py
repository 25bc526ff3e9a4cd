"""Input files of `convert file`: the readers that turn them into frames."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

from tandemfeed.adapter.conversion.formats.binary_file import read_binary_file
from tandemfeed.adapter.conversion.formats.capture import CaptureReader
from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.dbn import read_dbn
from tandemfeed.adapter.conversion.formats.iex_tp import decode_iex_segment
from tandemfeed.adapter.conversion.formats.lobster import read_lobster
from tandemfeed.adapter.conversion.formats.mdp3 import MdpDeliver, MdpNumbering
from tandemfeed.adapter.conversion.formats.moldudp64 import decode_mold_packet
from tandemfeed.adapter.conversion.formats.tick_table import TableOptions, read_tick_file
from tandemfeed.feedcore.documents.source_layout import SourceFormat

CHUNK_MESSAGES = 20_000  # the progress bar moves after this many messages


def _data(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def _binary_file(path: Path, source_format: SourceFormat, _: TableOptions) -> Iterator[FrameChunk]:
    return read_binary_file(_data(path), source_format, CHUNK_MESSAGES)


def _dbn(path: Path, _: SourceFormat, __: TableOptions) -> Iterator[FrameChunk]:
    return read_dbn(path.read_bytes()).chunks(CHUNK_MESSAGES)


def _iex(path: Path, _: SourceFormat, __: TableOptions) -> Iterator[FrameChunk]:
    for datagram in CaptureReader(path.read_bytes()):
        chunk = decode_iex_segment(bytes(datagram.payload)).chunk()
        if chunk is not None:
            yield chunk


def _mold(path: Path, _: SourceFormat, __: TableOptions) -> Iterator[FrameChunk]:
    for datagram in CaptureReader(path.read_bytes()):
        packet = decode_mold_packet(bytes(datagram.payload))
        if packet.message_count:
            yield FrameChunk(packet.frames, packet.message_count, packet.sequence)


def _mdp3(path: Path, _: SourceFormat, __: TableOptions) -> Iterator[FrameChunk]:
    """Merges both lines of a channel, if both were captured. Messages missing on both leave no gap in the numbers."""
    numbering, now_ns = MdpNumbering(), 0
    for datagram in CaptureReader(path.read_bytes()):
        now_ns = datagram.captured_at_ns
        due_ns = numbering.next_deadline_ns()
        effects = numbering.on_deadline(now_ns) if due_ns is not None and due_ns <= now_ns else []
        effects += numbering.on_packet(datagram.payload, now_ns)
        yield from (effect.chunk for effect in effects if isinstance(effect, MdpDeliver))
    while (due_ns := numbering.next_deadline_ns()) is not None:
        yield from (effect.chunk for effect in numbering.on_deadline(due_ns) if isinstance(effect, MdpDeliver))


def _lobster(path: Path, source_format: SourceFormat, options: TableOptions) -> Iterator[FrameChunk]:
    return read_lobster(path, source_format, options.symbol)


def _ticks(path: Path, source_format: SourceFormat, options: TableOptions) -> Iterator[FrameChunk]:
    if source_format.name != "tick-table":
        raise FormatError(
            f"{path}: the reader of tables needs the source format 'tick-table', not {source_format.name!r}"
        )
    return read_tick_file(path, source_format, options)


READERS: dict[str, Callable[[Path, SourceFormat, TableOptions], Iterator[FrameChunk]]] = {
    "binary-file": _binary_file,
    "dbn": _dbn,
    "iex-tp": _iex,
    "lobster": _lobster,
    "mdp3": _mdp3,
    "moldudp64": _mold,
    "tick-table": _ticks,
}
READER_OF_FORMAT = {
    "itch50": "binary-file",
    "dbn": "dbn",
    "iex": "iex-tp",
    "lobster": "lobster",
    "mdp3": "mdp3",
    "tick-table": "tick-table",
}
READ_ERRORS = (FormatError, OSError, EOFError)
