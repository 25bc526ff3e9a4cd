"""Reads the captures of `convert file`: their files, one after another, and the streams in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path

import numpy as np

from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.convert_command.captures.capture_walk import CaptureWalk, Datagrams, destination
from tandemfeed.adapter.convert_command.captures.keys import KeyTable
from tandemfeed.adapter.convert_command.captures.line_groups import line_groups
from tandemfeed.adapter.convert_command.captures.protocols import Protocol
from tandemfeed.adapter.convert_command.captures.rows import FLOW, FRAME, Words
from tandemfeed.adapter.convert_command.captures.stream_merge import Chunk, StreamMerge
from tandemfeed.adapter.convert_command.compressed import DecompressedFile
from tandemfeed.adapter.convert_command.inputs import Findings, Input, note_damage, until_damage
from tandemfeed.feedcore.documents.source_layout import SourceFormat


def read_captures(
    protocol: Callable[[SourceFormat], Protocol], given: Input, findings: Findings
) -> Iterator[FrameChunk]:
    """The messages of captures of one protocol; each file continues the one before it.

    Raises:
        FormatError: a file is not a capture.
    """
    reading = _Reading(protocol(given.source_format), given, findings)
    for path in given.paths:
        yield from reading.file(path)
    yield from reading.finish()


class _Reading:
    """The streams of several files."""

    def __init__(self, protocol: Protocol, given: Input, findings: Findings) -> None:
        self._given, self._findings = given, findings
        self._flows = KeyTable()
        self._protocol = protocol
        self._groups: Words = np.zeros(0, np.int64)
        self._has_groups = False
        self._file = ""
        self._merge = StreamMerge(
            protocol,
            given.source_format,
            keeps_times=given.keeps_times,
            keeps_streams=given.keeps_streams,
            group_name=self._group_name,
            refuse=self._refuse,
        )
        findings.missing, findings.restarts = self._merge.missing, self._merge.restarts

    def file(self, path: Path) -> Iterator[FrameChunk]:
        """The messages of a file, as far as they do not wait for later ones."""
        findings, self._file = self._findings, path.name
        if path == self._given.paths[0]:
            self._find_groups(path)
        before = findings.passed_over
        with DecompressedFile(path) as file:
            walk = CaptureWalk(file, self._flows)
            for datagrams in until_damage(walk, path, findings):
                findings.passed_over = before + walk.reader.passed_over
                yield from self._datagrams(datagrams)
            note_damage(file, path, findings)
        findings.passed_over = before + walk.reader.passed_over

    def finish(self) -> Iterator[FrameChunk]:
        """The last messages."""
        yield from map(self._noted, self._merge.finish())
        self._count()
        self._findings.streams = self._merge.reports()

    def _datagrams(self, datagrams: Datagrams) -> Iterator[FrameChunk]:
        for flow in range(len(self._groups), len(self._flows)):  # destinations that came later
            group = flow if self._has_groups else 0
            self._groups = np.append(self._groups, group if self._is_read(flow) else -1)
        self._findings.datagram_count += int(np.count_nonzero(self._groups[datagrams.rows[:, FLOW]] >= 0))
        yield from map(self._noted, self._merge.take(datagrams, self._groups))
        self._count()

    def _find_groups(self, path: Path) -> None:
        if self._protocol.packet is not None:
            return  # the session's name decides
        groups = line_groups(path, self._protocol, self._flows)
        self._has_groups = not self._protocol.stream_name_size or len(set(groups)) > 1
        for flow, group in enumerate(groups):
            self._groups = np.append(self._groups, group if self._is_read(flow) else -1)

    def _group_name(self, group: int) -> str:
        """The destinations of a group; empty if the session's name suffices."""
        if not self._has_groups:
            return ""
        flows = np.flatnonzero(self._groups == group).tolist()
        return " and ".join(written(*each) for each in sorted(destination(self._flows[flow]) for flow in flows))

    def _is_read(self, flow: int) -> bool:
        lines = self._given.lines
        return not lines or any(line.has(*destination(self._flows[flow])) for line in lines)

    def _count(self) -> None:
        self._findings.duplicate_count = self._merge.duplicate_count
        self._findings.unnumbered_count = self._merge.unnumbered_count

    def _noted(self, chunk: Chunk) -> FrameChunk:
        self._findings.origin = lambda number: self._merge.origin(chunk, number)
        return chunk.frames

    def _refuse(self, row: Words, reason: str) -> None:
        where = written(*destination(self._flows[int(row[FLOW])]))
        self._findings.refuse(f"{self._file}, packet {int(row[FRAME])}, sent to {where}", reason)


def written(address: bytes, port: int) -> str:
    """A destination in the usual notation."""
    host = ip_address(address)
    return f"{f'[{host}]' if host.version == 6 else host}:{port}"
