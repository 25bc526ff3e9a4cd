"""Reads the captures of `convert file`: their files, in the order of time, and the streams in them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.convert_command.captures.capture_walk import TIME_MAX, CaptureWalk, Datagrams, destination
from tandemfeed.adapter.convert_command.captures.keys import KeyTable
from tandemfeed.adapter.convert_command.captures.line_groups import lines_of
from tandemfeed.adapter.convert_command.captures.protocols import Protocol
from tandemfeed.adapter.convert_command.captures.rows import AT_NS, FLOW, FRAME, Words
from tandemfeed.adapter.convert_command.captures.stream_merge import Chunk, StreamMerge
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile
from tandemfeed.adapter.convert_command.input.inputs import READ_ERRORS, Findings, Input, note_damage, until_damage
from tandemfeed.feedcore.documents.source_layout import SourceFormat

PEEK_SIZE = 1 << 16  # bytes in which the first datagram is searched at first


def read_captures(
    protocol: Callable[[SourceFormat], Protocol], given: Input, findings: Findings
) -> Iterator[FrameChunk]:
    """The messages of captures of one protocol. Files are read in the order of their packets' times, together if they
    overlap, as those of two lines do.

    Raises:
        FormatError: a file is not a capture.
    """
    reading = _Reading(protocol(given.source_format), given, findings)
    for path, datagrams in files_by_time(given.paths, reading.datagrams):
        yield from reading.take(path, datagrams)
    yield from reading.finish()


Waiting: TypeAlias = tuple[int, int, Iterator[Datagrams], Datagrams | None]  # time and number of a file; what it has


def files_by_time(
    paths: Sequence[Path], read: Callable[[Path], Iterator[Datagrams]]
) -> Iterator[tuple[Path, Datagrams]]:
    """The datagrams of several captures in the order of their times; a file is opened when its time has come."""
    waiting: list[Waiting] = [
        (first_time(path) if len(paths) > 1 else 0, number, read(path), None) for number, path in enumerate(paths)
    ]
    heapq.heapify(waiting)
    while waiting:
        _, number, blocks, datagrams = heapq.heappop(waiting)
        if datagrams is None and (datagrams := next(blocks, None)) is None:
            continue
        data, times = datagrams.data, datagrams.rows[:, AT_NS]
        later = np.flatnonzero(times > (waiting[0][0] if waiting else TIME_MAX))
        end = int(later[0]) if len(later) else len(times)
        if end:
            yield paths[number], Datagrams(data, datagrams.rows[:end])
        if end < len(times):
            heapq.heappush(waiting, (int(times[end]), number, blocks, Datagrams(data, datagrams.rows[end:])))
        else:
            heapq.heappush(waiting, (int(times[-1]), number, blocks, None))


def first_time(path: Path) -> int:
    """When the first datagram of a capture was captured; 0: it cannot be read."""
    with DecompressedFile(path) as file:
        try:
            for datagrams in CaptureWalk(file, KeyTable(), PEEK_SIZE, rows_max=1):
                return int(datagrams.rows[0, AT_NS])
        except READ_ERRORS:
            pass
    return 0


class _Reading:
    """The streams of several files."""

    def __init__(self, protocol: Protocol, given: Input, findings: Findings) -> None:
        self._given, self._findings = given, findings
        self._flows = KeyTable()
        self._protocol = protocol
        self._groups: Words = np.zeros(0, np.int64)
        self._has_groups = False
        self._file = ""
        self._find_groups()
        self._merge = StreamMerge(
            protocol,
            given.source_format,
            keeps_times=given.keeps_times,
            keeps_streams=given.keeps_streams,
            group_name=self._group_name,
            refuse=self._refuse,
        )
        findings.restarts = self._merge.restarts

    def datagrams(self, path: Path) -> Iterator[Datagrams]:
        """The datagrams of a file."""
        findings = self._findings
        with DecompressedFile(path) as file:
            walk = CaptureWalk(file, self._flows)
            yield from until_damage(walk, path, findings)
            findings.passed_over += walk.reader.other_count
            findings.cut_count += walk.reader.fragment_count + sum(
                count for sent_to, count in walk.reader.cut.items() if sent_to is None or self._has(*sent_to)
            )
            note_damage(file, path, findings)

    def finish(self) -> Iterator[FrameChunk]:
        """The last messages."""
        yield from map(self._noted, self._merge.finish())
        self._count()
        self._findings.streams = self._merge.reports()

    def take(self, path: Path, datagrams: Datagrams) -> Iterator[FrameChunk]:
        """The messages of datagrams of a file, as far as they do not wait for later ones."""
        self._file = path.name
        for flow in range(len(self._groups), len(self._flows)):  # destinations that came later
            group = flow if self._has_groups else 0
            self._groups = np.append(self._groups, group if self._is_read(flow) else -1)
        self._findings.datagram_count += int(np.count_nonzero(self._groups[datagrams.rows[:, FLOW]] >= 0))
        yield from map(self._noted, self._merge.take(datagrams, self._groups))
        self._count()

    def _find_groups(self) -> None:
        if self._protocol.packet is not None:
            return  # the session's name decides
        lines = self._given.line_groups or lines_of(self._given.paths, self._protocol)
        self._has_groups = not self._protocol.stream_name_size or len(set(lines.groups)) > 1
        for flow, (key, group) in enumerate(zip(lines.flows, lines.groups, strict=True)):
            self._flows.add(key)
            self._groups = np.append(self._groups, group if self._is_read(flow) else -1)

    def _group_name(self, group: int) -> str:
        """The destinations of a group; empty if the session's name suffices."""
        if not self._has_groups:
            return ""
        flows = np.flatnonzero(self._groups == group).tolist()
        return " and ".join(written(*each) for each in sorted(destination(self._flows[flow]) for flow in flows))

    def _is_read(self, flow: int) -> bool:
        return self._has(*destination(self._flows[flow]))

    def _has(self, address: bytes, port: int) -> bool:
        """True if what was sent to this address and port is read."""
        lines = self._given.lines
        return not lines or any(line.has(address, port) for line in lines)

    def _count(self) -> None:
        findings, merge = self._findings, self._merge
        findings.missing, findings.duplicate_count = merge.missing, merge.duplicate_count
        findings.conflicts, findings.forgotten_count = merge.conflicts, merge.forgotten_count
        findings.unnumbered_count, findings.late_count = merge.unnumbered_count, merge.late_count

    def _noted(self, chunk: Chunk) -> FrameChunk:
        self._findings.origin = lambda number: self._merge.origin(chunk, number)
        self._findings.numbers = lambda: self._merge.numbers(chunk)
        return chunk.frames

    def _refuse(self, row: Words, reason: str) -> None:
        where = written(*destination(self._flows[int(row[FLOW])]))
        self._findings.refuse(f"{self._file}, packet {int(row[FRAME])}, sent to {where}", reason)


def written(address: bytes, port: int) -> str:
    """A destination in the usual notation."""
    host = ip_address(address)
    return f"{f'[{host}]' if host.version == 6 else host}:{port}"
