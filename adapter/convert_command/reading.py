"""Input files of `convert file`: the readers that turn them into frames, and what they find wrong with a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from tandemfeed.adapter.conversion.formats.binary_file import read_binary_file
from tandemfeed.adapter.conversion.formats.capture import CaptureReader, Datagram
from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.dbn import read_dbn
from tandemfeed.adapter.conversion.formats.frame_walk import later_part
from tandemfeed.adapter.conversion.formats.framed_packets import PacketDecoder
from tandemfeed.adapter.conversion.formats.iex_tp import decode_iex_segment
from tandemfeed.adapter.conversion.formats.line_merge import LineMerge, Missing
from tandemfeed.adapter.conversion.formats.lobster import read_lobster
from tandemfeed.adapter.conversion.formats.mdp3 import (
    MdpDeliver,
    MdpEffect,
    MdpGap,
    MdpNumbering,
    MdpPacket,
    decode_mdp_packet,
)
from tandemfeed.adapter.conversion.formats.moldudp64 import decode_mold_packet
from tandemfeed.adapter.conversion.formats.tick_table import TableOptions, read_tick_file
from tandemfeed.adapter.convert_command.compressed import DecompressedFile
from tandemfeed.adapter.convert_command.joining import MESSAGES_MAX
from tandemfeed.feedcore.documents.source_layout import SourceFormat

REFUSED_SHOWN = 5
UNNUMBERED = b" (unnumbered)"  # a stream apart: its messages keep the order of the capture
READ_ERRORS = (FormatError, OSError)


class Line(NamedTuple):
    """Where a line of a venue's stream is sent. Attributes: port: 0: any."""

    address: bytes
    port: int

    @classmethod
    def parse(cls, text: str) -> Line:
        """Read ADDRESS or ADDRESS:PORT; an IPv6 address before a port is in brackets.

        Raises:
            ValueError: it is neither.
        """
        host, _, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "0")
        return cls(ip_address(host.strip("[]")).packed, int(port))

    def has(self, datagram: Datagram) -> bool:
        """True if the datagram was sent there."""
        return datagram.destination == self.address and self.port in (0, datagram.destination_port)


@dataclass(frozen=True, slots=True)
class Input:
    """What `convert file` reads.

    Attributes:
        paths: the files; each continues the one before it.
        lines: the only lines of captures that are read; empty: all.
    """

    paths: tuple[Path, ...]
    source_format: SourceFormat
    options: TableOptions = field(default_factory=TableOptions)
    lines: tuple[Line, ...] = ()


@dataclass(slots=True)
class Findings:
    """What a reader finds wrong with its input.

    Attributes:
        place: (file, number of the packet in it, from 1) of the newest datagram.
        datagram_count: UDP datagrams of captures.
        passed_over: frames that are no part of a whole datagram.
        refused: datagrams that do not follow the format, by reason.
        samples: the first of them: file, number of the packet, where it was sent, and the reason.
        missing: messages that no line of the captures has; for CME, packets.
        duplicate_count: messages dropped because another line's copy was delivered; for CME, packets.
        unnumbered_count: messages without a sequence number, among which nothing can be found missing or repeated.
        damage: where files cannot be read further, and why.
    """

    place: tuple[str, int] = ("", 0)
    datagram_count: int = 0
    passed_over: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    duplicate_count: int = 0
    unnumbered_count: int = 0
    damage: list[str] = field(default_factory=list)

    @property
    def is_incomplete(self) -> bool:
        """True if the output lacks messages that the venue sent."""
        return bool(self.missing or self.damage)

    def refuse(self, datagram: Datagram, reason: str) -> None:
        """Count a datagram that does not follow the format."""
        self.refused[reason] += 1
        if len(self.samples) < REFUSED_SHOWN:
            file, number = self.place
            self.samples.append(f"{file}, packet {number}, sent to {datagram.where}: {reason}")

    @property
    def all_were_refused(self) -> bool:
        """True if the input has datagrams, and none of them follows the format."""
        return self.datagram_count > 0 and self.refused.total() == self.datagram_count


T = TypeVar("T")


def _until_damage(parts: Iterable[T], path: Path, findings: Findings) -> Iterator[T]:
    """What a file contains before the place from which it cannot be read; such a file is often just cut off.

    Raises:
        FormatError: nothing of it can be read.
    """
    is_begun = False
    try:
        for part in parts:
            yield part
            is_begun = True
    except READ_ERRORS as reason:
        if not is_begun:
            raise FormatError(f"{path}: {reason}") from reason
        findings.damage.append(f"{path.name}: {reason}")


def _note_damage(file: DecompressedFile, path: Path, findings: Findings) -> None:
    if file.damage:
        findings.damage.append(f"{path.name}: it cannot be decompressed further: {file.damage}")


def _binary_file(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    for path in given.paths:
        with DecompressedFile(path) as file:
            chunks = read_binary_file(file, given.source_format, MESSAGES_MAX)
            yield from _until_damage(chunks, path, findings)
            _note_damage(file, path, findings)


def _dbn(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    for path in given.paths:
        yield from _until_damage(read_dbn(path.read_bytes()).chunks(MESSAGES_MAX), path, findings)


def _datagrams(given: Input, findings: Findings) -> Iterator[Datagram]:
    for path in given.paths:
        before = findings.passed_over
        with DecompressedFile(path) as file:
            reader = CaptureReader(file)
            for datagram in _until_damage(reader, path, findings):
                findings.passed_over = before + reader.passed_over
                if given.lines and not any(line.has(datagram) for line in given.lines):
                    continue
                findings.datagram_count += 1
                findings.place = path.name, reader.frame_count
                yield datagram
            _note_damage(file, path, findings)
        findings.passed_over = before + reader.passed_over


def _merged(
    given: Input, findings: Findings, decode: Callable[[bytes], tuple[FrameChunk | None, bytes, int]]
) -> Iterator[FrameChunk]:
    """The streams of captures, each message once.

    Args:
        decode: (the messages of a datagram, or None; session; one past the last number that the datagram shows).
    """
    merge = LineMerge(later_part(given.source_format.framing))
    for datagram in _datagrams(given, findings):
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


def _iex(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    def decode(payload: bytes) -> tuple[FrameChunk | None, bytes, int]:
        segment = decode_iex_segment(payload)
        return segment.chunk(), segment.session, segment.sequence + segment.message_count

    return _merged(given, findings, decode)


def _mold(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    unnumbered: dict[bytes, int] = {}  # by session: the number of the next message that comes without one

    def decode(payload: bytes) -> tuple[FrameChunk | None, bytes, int]:
        packet = decode_mold_packet(payload, may_be_unnumbered=True)
        session, first, count = packet.session, packet.sequence, packet.message_count
        if count and first == 0:
            findings.unnumbered_count += count
            first = unnumbered.setdefault(session, 1)
            unnumbered[session] = first + count
            session += UNNUMBERED
        chunk = FrameChunk(packet.frames, count, first, session=session) if count else None
        return chunk, session, first + count

    return _merged(given, findings, decode)


def _mdp3(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    return _numbered_packets(given, findings, lambda payload: (b"", decode_mdp_packet(payload)))


def _numbered_packets(
    given: Input, findings: Findings, decode: Callable[[bytes], tuple[bytes, MdpPacket]]
) -> Iterator[FrameChunk]:
    """Streams whose numbers count packets, each once. Messages missing on all lines leave no gap in the numbers.

    Args:
        decode: (stream, packet) of a datagram.
    """
    streams: dict[bytes, MdpNumbering] = {}

    def chunks(stream: bytes, effects: list[MdpEffect]) -> Iterator[FrameChunk]:
        for effect in effects:
            if isinstance(effect, MdpDeliver):
                yield replace(effect.chunk, session=stream)
            elif isinstance(effect, MdpGap):
                end = effect.first_packet + effect.packet_count
                what = f"packets of {stream.decode('latin-1')}" if stream else "packets"
                findings.missing.append(Missing(what, effect.first_packet, end))

    for datagram in _datagrams(given, findings):
        try:
            stream, packet = decode(datagram.payload)
        except FormatError as reason:
            findings.refuse(datagram, str(reason))
            continue
        numbering = streams.setdefault(stream, MdpNumbering())
        now_ns, due_ns = datagram.captured_at_ns, numbering.next_deadline_ns()
        if due_ns is not None and due_ns <= now_ns:
            yield from chunks(stream, numbering.on_deadline(now_ns))
        yield from chunks(stream, numbering.take(packet, now_ns))
    for stream, numbering in streams.items():
        while (due_ns := numbering.next_deadline_ns()) is not None:
            yield from chunks(stream, numbering.on_deadline(due_ns))
        findings.duplicate_count += numbering.duplicates


def _packets(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    decoder = PacketDecoder(given.source_format)
    if not decoder.header.counts_packets:
        return _merged(given, findings, decoder.decode)

    def decode(payload: bytes) -> tuple[bytes, MdpPacket]:
        packet = decoder.packet(payload)
        return packet.stream, MdpPacket(packet.sequence, packet.sent_at_ns, packet.message_count, packet.frames)

    return _numbered_packets(given, findings, decode)


def _lobster(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    for path in given.paths:
        yield from _until_damage(read_lobster(path, given.source_format, given.options.symbol), path, findings)


def _ticks(given: Input, findings: Findings) -> Iterator[FrameChunk]:
    name = given.source_format.name
    if name != "tick-table":
        raise FormatError(f"the reader of tables needs the source format 'tick-table', not {name!r}")
    for path in given.paths:
        yield from _until_damage(read_tick_file(path, given.source_format, given.options), path, findings)


Reader: TypeAlias = Callable[[Input, Findings], Iterator[FrameChunk]]
READERS: dict[str, Reader] = {
    "binary-file": _binary_file,
    "dbn": _dbn,
    "iex-tp": _iex,
    "lobster": _lobster,
    "mdp3": _mdp3,
    "moldudp64": _mold,
    "packets": _packets,
    "tick-table": _ticks,
}
CAPTURE_READERS = ("iex-tp", "mdp3", "moldudp64", "packets")
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
