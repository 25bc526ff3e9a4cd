"""`sniff`: finds out what a file is, and how to convert it.

A file's first bytes tell compression and container. For captures and binary files, the readers' own decoders and the
shipped source formats are tried on the beginning of the file: what fits decides, never a file's name.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader, Datagram
from tandemfeed.adapter.conversion.formats.captures.capture_file import PCAP_MAGICS, SECTION_HEADER
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.files.binary_file import read_binary_file
from tandemfeed.adapter.conversion.formats.files.dbn import DBN_MAGIC
from tandemfeed.adapter.conversion.formats.files.lobster import COLUMNS as LOBSTER_COLUMNS
from tandemfeed.adapter.conversion.formats.files.tick_table import ALIASES
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.conversion.formats.packets.framed_packets import PacketDecoder
from tandemfeed.adapter.conversion.formats.packets.iex_tp import decode_iex_segment
from tandemfeed.adapter.conversion.formats.packets.mdp3 import decode_mdp_packet
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import decode_mold_packet
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile
from tandemfeed.adapter.convert_command.input.inputs import READ_ERRORS
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat

SUMMARY = "find out what a file is, and how to convert it"
DATAGRAMS_MAX = 2_000  # looked at
MESSAGES_MAX = 1_000
BYTES_MAX = 1 << 20
FITTING_LEAST = 0.9  # of datagrams or messages; captures contain strangers
CAPTURE_MAGICS = {SECTION_HEADER.to_bytes(4, "big")} | {
    magic.to_bytes(4, order) for magic in PCAP_MAGICS for order in ("big", "little")
}
PARQUET_MAGIC = b"PAR1"

# The frames of a datagram's messages. A decoder refuses what its protocol's header does not describe.
Decode = Callable[[bytes], bytes]


class Protocol(NamedTuple):
    """A protocol of datagrams.

    Attributes:
        formats: the source formats whose messages it may carry, and the options of `convert file` for each.
    """

    name: str
    decode: Decode
    formats: tuple[tuple[SourceFormat, str], ...] = ()


@dataclass(slots=True)
class Verdict:
    """What a file is.

    Attributes:
        lines: what was found, for people.
        options: of `convert file`; empty if no reader fits.
    """

    lines: list[str] = field(default_factory=list)
    options: str = ""


def add_to(tasks: Any) -> None:
    """Add the task and its options."""
    task = tasks.add_parser("sniff", allow_abbrev=False, help=SUMMARY, description=SUMMARY)
    task.add_argument("inputs", type=Path, nargs="+", metavar="FILE")
    task.add_argument(
        "--source-format",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="also try this source format, whose <packet> describes a venue's datagrams; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print a verdict for each file. Exit status 0; 1 if no reader fits one of them."""
    unknown, own = 0, [load_source_format(path) for path in arguments.source_format]
    for path in arguments.inputs:
        verdict = sniff(path, own)
        lines = [f"{path}: {line}" for line in verdict.lines]
        if verdict.options:
            lines.append(f"convert it with: tandemfeed convert file {path} {verdict.options} --to FOLDER")
        sys.stdout.writelines(f"{line}\n" for line in lines)
        unknown += not verdict.options
    return 1 if unknown else 0


def sniff(path: Path, own: Sequence[SourceFormat] = ()) -> Verdict:
    """Look at the beginning of a file.

    Args:
        own: source formats to try, beside the shipped ones.

    Raises:
        FormatError: one of them does not describe numbered packets.
        OSError: the file cannot be read.
    """
    protocols = [*map(_described, own), *_shipped_protocols()]
    with DecompressedFile(path) as file:
        start = file.peek(BYTES_MAX)[:BYTES_MAX]
        if not start:
            return Verdict([f"cannot be decompressed: {file.damage}" if file.damage else "empty"])
        if start[:4] in CAPTURE_MAGICS:
            return _capture(CaptureReader(file), protocols)
        if start.startswith(DBN_MAGIC):
            return Verdict(["Databento DBN"], "--shipped dbn")
        if start.startswith(PARQUET_MAGIC):
            return Verdict(["Parquet"], "--shipped tick-table")
        return _text(start) or _binary_file(file) or Verdict(["none of the readers recognises it"])


def _described(own: SourceFormat) -> Protocol:
    """The protocol that a source format describes."""
    decoder = PacketDecoder(own)
    options = f"--source-format {own.document} --table TABLE --message-model MODEL"
    return Protocol(decoder.header.name, lambda payload: decoder.packet(payload).frames, ((own, options),))


@cache
def _shipped_protocols() -> tuple[Protocol, ...]:
    itch, iex = (load_source_format(document(f"{name}.xml")) for name in ("itch50", "iex"))
    return (
        Protocol("moldudp64", _mold_frames, ((itch, "--shipped itch50 --reader moldudp64"),)),
        Protocol(
            "iex-tp", lambda datagram: decode_iex_segment(datagram).frames, ((iex, "--shipped iex --reader iex-tp"),)
        ),
        Protocol("mdp3", lambda datagram: decode_mdp_packet(datagram).frames),  # CME's schema is not shipped
    )


def _iex_frames(datagram: bytes) -> bytes:
    return decode_iex_segment(datagram).frames


def _mold_frames(datagram: bytes) -> bytes:
    return decode_mold_packet(datagram, may_be_unnumbered=True).frames


def _capture(reader: CaptureReader, protocols: Sequence[Protocol]) -> Verdict:
    datagrams: list[Datagram] = []
    verdict = Verdict()
    try:
        datagrams += itertools.islice(reader, DATAGRAMS_MAX)
    except READ_ERRORS as reason:
        verdict.lines.append(str(reason))
    verdict.lines.append(
        f"a capture; {len(datagrams):,} datagrams looked at, {reader.passed_over:,} frames without one"
    )
    found: Counter[str] = Counter()
    by_place: dict[str, list[bytes]] = {}
    for each in datagrams:
        by_place.setdefault(each.where, []).append(each.payload)
    for where, payloads in by_place.items():
        what, options = _recognised(payloads, protocols)
        verdict.lines.append(f"  {where}: {len(payloads):,} datagrams of {what}")
        if options:
            found[options] += len(payloads)
    if found:
        ((verdict.options, _),) = found.most_common(1)
    return verdict


def _recognised(payloads: list[bytes], protocols: Sequence[Protocol]) -> tuple[str, str]:
    """(what the datagrams of one destination are; options of `convert file`, empty if no format has the messages)."""
    what = "no known protocol"
    for protocol in protocols:
        packets = list(_decoded(protocol.decode, payloads))
        if len(packets) < FITTING_LEAST * len(payloads):
            continue
        for source_format, options in protocol.formats:
            if _has_messages(source_format, packets):
                return f"{protocol.name}, messages of {source_format.name}", options
        what = f"{protocol.name}, messages of no known format; give the venue's with --source-format"
    return what, ""


def _decoded(decode: Decode, payloads: list[bytes]) -> Iterator[bytes]:
    for payload in payloads:
        with contextlib.suppress(FormatError):
            yield decode(payload)


def _has_messages(source_format: SourceFormat, packets: list[bytes]) -> bool:
    """True if the format knows the messages in these frames."""
    is_known = list(itertools.islice(_known_messages(source_format, packets), MESSAGES_MAX))
    return bool(is_known) and sum(is_known) >= FITTING_LEAST * len(is_known)


def _known_messages(source_format: SourceFormat, packets: list[bytes]) -> Iterator[bool]:
    """Of each message, whether a format has it; False for the rest of a packet whose frames it cannot find."""
    messages = FrameReader(source_format)
    for frames in packets:
        view = memoryview(frames)
        try:
            for offset, size, kind in messages.walk(view):
                yield messages.message_type(kind, view[offset : offset + size]) is not None
        except FormatError:
            yield False


def _binary_file(file: DecompressedFile) -> Verdict | None:
    source_format = load_source_format(document("itch50.xml"))
    with contextlib.suppress(*READ_ERRORS):
        first = next(read_binary_file(file, source_format, MESSAGES_MAX), None)
        if first is not None and _has_messages(source_format, [first.frames]):
            return Verdict(["messages of itch50, each after its length"], "--shipped itch50")
    return None


def _text(start: bytes) -> Verdict | None:
    """CSV: a table of ticks if its columns have such names, LOBSTER's events if it has no header."""
    head = start.split(b"\n", 1)[0].rstrip(b"\r")
    if b"\0" in start[:4_096] or b"," not in head:
        return None
    columns = [name.strip().strip('"').lower() for name in head.decode("utf-8", "replace").split(",")]
    known = {alias for aliases in ALIASES.values() for alias in aliases}
    if known.intersection(columns):
        return Verdict([f"CSV with the columns {', '.join(columns)}"], "--shipped tick-table")
    if len(columns) == len(LOBSTER_COLUMNS) and all(_is_number(each) for each in columns):
        return Verdict(["CSV without a header, with LOBSTER's columns"], "--shipped lobster")
    return Verdict([f"CSV with the columns {', '.join(columns)}, none of which names a tick's field"])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
