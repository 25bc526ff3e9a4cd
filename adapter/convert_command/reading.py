"""Input files of `convert file`: the readers that turn them into frames, and what they find wrong with a file."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from tandemfeed.adapter.conversion.formats.binary_file import read_binary_file
from tandemfeed.adapter.conversion.formats.capture import CaptureReader, Datagram
from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.dbn import read_dbn
from tandemfeed.adapter.conversion.formats.frame_walk import later_part
from tandemfeed.adapter.conversion.formats.framed_packets import PacketDecoder
from tandemfeed.adapter.conversion.formats.iex_tp import decode_iex_segment
from tandemfeed.adapter.conversion.formats.line_merge import LineMerge, Missing
from tandemfeed.adapter.conversion.formats.lobster import read_lobster
from tandemfeed.adapter.conversion.formats.mdp3 import MdpDeliver, MdpEffect, MdpGap, MdpNumbering
from tandemfeed.adapter.conversion.formats.moldudp64 import decode_mold_packet
from tandemfeed.adapter.conversion.formats.tick_table import TableOptions, read_tick_file
from tandemfeed.feedcore.documents.source_layout import SourceFormat

CHUNK_MESSAGES = 20_000  # the progress bar moves after this many messages
REFUSED_SHOWN = 5
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(slots=True)
class Findings:
    """What a reader finds wrong with a file.

    Attributes:
        datagram_count: UDP datagrams of a capture.
        passed_over: its frames that contain no whole datagram.
        refused: datagrams that do not follow the format, by reason.
        samples: the first of them: (number of the datagram in the file, from 1; where it was sent; reason).
        missing: messages that no line of the capture has; for CME, packets.
        duplicate_count: messages dropped because another line's copy was delivered; for CME, packets.
    """

    datagram_count: int = 0
    passed_over: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[int, str, str]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    duplicate_count: int = 0

    def refuse(self, datagram: Datagram, reason: str) -> None:
        """Count a datagram that does not follow the format."""
        self.refused[reason] += 1
        if len(self.samples) < REFUSED_SHOWN:
            self.samples.append((self.datagram_count, datagram.where, reason))

    @property
    def all_were_refused(self) -> bool:
        """True if the file has datagrams, and none of them follows the format."""
        return self.datagram_count > 0 and self.refused.total() == self.datagram_count


def open_input(path: Path) -> BinaryIO:
    """The content of a file, decompressed if it is compressed with gzip or zstd."""
    file = path.open("rb")
    magic = file.read(len(ZSTD_MAGIC))
    file.seek(0)
    if magic.startswith(GZIP_MAGIC):
        return cast(BinaryIO, gzip.open(file))
    if magic == ZSTD_MAGIC:
        return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
    return file


def _binary_file(path: Path, source_format: SourceFormat, _: TableOptions, __: Findings) -> Iterator[FrameChunk]:
    with open_input(path) as file:
        yield from read_binary_file(file, source_format, CHUNK_MESSAGES)


def _dbn(path: Path, _: SourceFormat, __: TableOptions, ___: Findings) -> Iterator[FrameChunk]:
    return read_dbn(path.read_bytes()).chunks(CHUNK_MESSAGES)


def _datagrams(path: Path, findings: Findings) -> Iterator[Datagram]:
    with open_input(path) as file:
        reader = CaptureReader(file.read())
    for datagram in reader:
        findings.datagram_count += 1
        findings.passed_over = reader.passed_over
        yield datagram
    findings.passed_over = reader.passed_over


def _merged(
    path: Path,
    source_format: SourceFormat,
    findings: Findings,
    decode: Callable[[bytes], tuple[FrameChunk | None, bytes, int]],
) -> Iterator[FrameChunk]:
    """The streams of a capture, each message once.

    Args:
        decode: (the messages of a datagram, or None; session; one past the last number that the datagram shows).
    """
    merge = LineMerge(later_part(source_format.framing))
    for datagram in _datagrams(path, findings):
        try:
            chunk, session, end = decode(datagram.payload)
        except FormatError as reason:
            findings.refuse(datagram, str(reason))
            continue
        if chunk is not None:
            yield from merge.on_chunk(chunk, datagram.captured_at_ns)
        merge.note_end(session, end)
    yield from merge.finish()
    findings.missing, findings.duplicate_count = merge.missing, merge.duplicate_count


def _iex(path: Path, source_format: SourceFormat, _: TableOptions, findings: Findings) -> Iterator[FrameChunk]:
    def decode(payload: bytes) -> tuple[FrameChunk | None, bytes, int]:
        segment = decode_iex_segment(payload)
        return segment.chunk(), segment.session, segment.sequence + segment.message_count

    return _merged(path, source_format, findings, decode)


def _mold(path: Path, source_format: SourceFormat, _: TableOptions, findings: Findings) -> Iterator[FrameChunk]:
    def decode(payload: bytes) -> tuple[FrameChunk | None, bytes, int]:
        packet = decode_mold_packet(payload)
        end = packet.sequence + packet.message_count
        if not packet.message_count:
            return None, packet.session, end
        return (
            FrameChunk(packet.frames, packet.message_count, packet.sequence, session=packet.session),
            packet.session,
            end,
        )

    return _merged(path, source_format, findings, decode)


def _mdp3(path: Path, _: SourceFormat, __: TableOptions, findings: Findings) -> Iterator[FrameChunk]:
    """Merges both lines of a channel, if both were captured. Messages missing on both leave no gap in the numbers."""
    numbering = MdpNumbering()

    def chunks(effects: list[MdpEffect]) -> Iterator[FrameChunk]:
        for effect in effects:
            if isinstance(effect, MdpDeliver):
                yield effect.chunk
            elif isinstance(effect, MdpGap):
                end = effect.first_packet + effect.packet_count
                findings.missing.append(Missing("packets", effect.first_packet, end))

    for datagram in _datagrams(path, findings):
        now_ns, due_ns = datagram.captured_at_ns, numbering.next_deadline_ns()
        if due_ns is not None and due_ns <= now_ns:
            yield from chunks(numbering.on_deadline(now_ns))
        malformed = numbering.malformed
        yield from chunks(numbering.on_packet(datagram.payload, now_ns))
        if numbering.malformed != malformed:
            findings.refuse(datagram, "its messages do not fill it")
    while (due_ns := numbering.next_deadline_ns()) is not None:
        yield from chunks(numbering.on_deadline(due_ns))
    findings.duplicate_count = numbering.duplicates


def _packets(path: Path, source_format: SourceFormat, _: TableOptions, findings: Findings) -> Iterator[FrameChunk]:
    return _merged(path, source_format, findings, PacketDecoder(source_format).decode)


def _lobster(path: Path, source_format: SourceFormat, options: TableOptions, _: Findings) -> Iterator[FrameChunk]:
    return read_lobster(path, source_format, options.symbol)


def _ticks(path: Path, source_format: SourceFormat, options: TableOptions, _: Findings) -> Iterator[FrameChunk]:
    if source_format.name != "tick-table":
        raise FormatError(
            f"{path}: the reader of tables needs the source format 'tick-table', not {source_format.name!r}"
        )
    return read_tick_file(path, source_format, options)


READERS: dict[str, Callable[[Path, SourceFormat, TableOptions, Findings], Iterator[FrameChunk]]] = {
    "binary-file": _binary_file,
    "dbn": _dbn,
    "iex-tp": _iex,
    "lobster": _lobster,
    "mdp3": _mdp3,
    "moldudp64": _mold,
    "packets": _packets,
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


def default_reader(source_format: SourceFormat) -> str | None:
    """The reader for a source format: that of a shipped one, or of captures if the document describes its packets."""
    numbered = source_format.packet is not None and source_format.packet.sequence is not None
    return READER_OF_FORMAT.get(source_format.name, "packets" if numbered else None)


READ_ERRORS = (FormatError, OSError, EOFError, zstandard.ZstdError)
