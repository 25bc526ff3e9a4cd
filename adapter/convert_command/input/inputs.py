"""What `convert file` reads, and what its readers find wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.formats.captures.line_merge import Missing
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.files.tick_table import TableOptions
from tandemfeed.adapter.convert_command.captures.line_groups import LineGroups
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile
from tandemfeed.feedcore.documents.source_layout import SourceFormat

REFUSED_SHOWN = 5
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

    def has(self, address: bytes, port: int) -> bool:
        """True if what was sent to this address and port belongs to the line."""
        return address == self.address and self.port in (0, port)


@dataclass(frozen=True, slots=True)
class Input:
    """What `convert file` reads.

    Attributes:
        paths: the files; each continues the one before it.
        lines: the only lines of captures that are read; empty: all.
        keeps_times: messages that were sent at different times are not in one chunk, because the table reads the time.
        keeps_streams: messages of different streams are not in one chunk, because the table reads the stream.
        line_groups: which destinations belong together, from a look at more captures than these; None: look at these.
    """

    paths: tuple[Path, ...]
    source_format: SourceFormat
    options: TableOptions = field(default_factory=TableOptions)
    lines: tuple[Line, ...] = ()
    keeps_times: bool = False
    keeps_streams: bool = False
    line_groups: LineGroups | None = None


class StreamReport(NamedTuple):
    """What a capture has of one stream.

    Attributes:
        first, last: the numbers of its first and last message, or packet.
        messages: that were delivered.
        duplicates, missing: messages, or packets, that came again on any line, and that came on none.
        restarts: how often the numbers started again.
        late: messages, or packets, that follow later ones, because they came after they had been given up.
        conflicting: messages, or packets, that are dropped, because other ones were delivered under their numbers.
    """

    stream: str
    first: int
    last: int
    messages: int
    duplicates: int
    missing: int
    restarts: int
    late: int
    conflicting: int


class VenueNumbers(NamedTuple):
    """Where the venue has the messages of a chunk; arrays have one element for each.

    Attributes:
        streams: the stream of each, by a number that `name` takes.
        numbers: of the message in its stream; of its packet, if the venue numbers packets.
        name: a stream's name, as reports have it.
    """

    streams: NDArray[np.int64]
    numbers: NDArray[np.int64]
    name: Callable[[int], str]


@dataclass(slots=True)
class Findings:
    """What a reader finds wrong with its input.

    Attributes:
        datagram_count: UDP datagrams of captures.
        passed_over: frames without UDP.
        cut_count: UDP datagrams, and fragments of them, that are not whole in the capture.
        refused: datagrams that do not follow the format, by reason.
        samples: the first of them: file, number of the packet, where it was sent, and the reason.
        missing: messages that no line of the captures has; for CME, packets.
        duplicate_count: messages dropped because another line's copy was delivered; for CME, packets.
        forgotten_count: those of them that could not be compared with the copy, because it was delivered long before.
        conflicts: messages that are dropped because other ones were delivered under their numbers; for CME, packets.
        late_count: messages that came after they had been given up, and so follow later ones; for CME, packets.
        unnumbered_count: messages without a sequence number, among which nothing can be found missing or repeated.
        restarts: the streams whose numbers started again, once for each time.
        streams: what captures have of each stream.
        damage: where files cannot be read further, and why.
        origin: names a message of the newest chunk, from its number in it.
        numbers: the venue's numbers of that chunk's messages; None: only captures have them.
    """

    datagram_count: int = 0
    passed_over: int = 0
    cut_count: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    duplicate_count: int = 0
    forgotten_count: int = 0
    conflicts: list[Missing] = field(default_factory=list)
    late_count: int = 0
    unnumbered_count: int = 0
    restarts: list[str] = field(default_factory=list)
    streams: list[StreamReport] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    origin: Callable[[int], str] = str
    numbers: Callable[[], VenueNumbers] | None = None

    @property
    def is_incomplete(self) -> bool:
        """True if the output lacks, or may lack, messages that the venue sent."""
        lost = self.missing or self.damage or self.conflicts or self.refused
        return bool(lost or self.cut_count or self.forgotten_count)

    def refuse(self, place: str, reason: str) -> None:
        """Count a datagram that does not follow the format."""
        self.refused[reason] += 1
        if len(self.samples) < REFUSED_SHOWN:
            self.samples.append(f"{place}: {reason}")

    def add(self, other: Findings) -> None:
        """Add what was found wrong with another recording."""
        self.datagram_count += other.datagram_count
        self.passed_over += other.passed_over
        self.cut_count += other.cut_count
        self.refused += other.refused
        self.samples = (self.samples + other.samples)[:REFUSED_SHOWN]
        self.missing = self.missing + other.missing
        self.duplicate_count += other.duplicate_count
        self.forgotten_count += other.forgotten_count
        self.conflicts = self.conflicts + other.conflicts
        self.late_count += other.late_count
        self.unnumbered_count += other.unnumbered_count
        self.restarts = self.restarts + other.restarts
        self.streams = self.streams + other.streams
        self.damage = self.damage + other.damage

    @property
    def all_were_refused(self) -> bool:
        """True if the input has datagrams, and none of them follows the format."""
        return self.datagram_count > 0 and self.refused.total() == self.datagram_count


def require_content(paths: Iterable[Path]) -> None:
    """Check that no file is empty: that is a file that was never written, whatever its format.

    Raises:
        FormatError: one is.
        OSError: one cannot be read.
    """
    for path in paths:
        if not path.is_file():  # what comes through a pipe is read only once
            continue
        with DecompressedFile(path) as file:
            if not file.peek(1) and not file.damage:
                raise FormatError(f"{path}: the file is empty")


T = TypeVar("T")


def until_damage(parts: Iterable[T], path: Path, findings: Findings) -> Iterator[T]:
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


def note_damage(file: DecompressedFile, path: Path, findings: Findings) -> None:
    if file.damage:
        findings.damage.append(f"{path.name}: it cannot be decompressed further: {file.damage}")
