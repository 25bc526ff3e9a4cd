"""Finds out which destinations of a capture are lines of the same channel, from what was sent to them.

The lines of a channel carry the same messages under the same numbers; different channels carry different ones. So
destinations belong together if one number has the same content on both. If a protocol's header names the channel or
session, that name decides, unless two destinations use it for different content.

The same look shows which streams each capture has, and so which captures continue each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.convert_command.captures.capture_walk import CaptureWalk, Datagrams
from tandemfeed.adapter.convert_command.captures.content_kernels import digest_rows
from tandemfeed.adapter.convert_command.captures.header_kernels import GROUP_SIZE, read_headers
from tandemfeed.adapter.convert_command.captures.keys import KeyTable
from tandemfeed.adapter.convert_command.captures.protocols import Protocol
from tandemfeed.adapter.convert_command.captures.rows import APART, FLOW, SEQUENCE, SIZE, START, STATUS, STREAM, Words
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile

DATAGRAMS_MAX = 50_000  # looked at; the lines of a channel differ by milliseconds
DATAGRAMS_LEAST = 5_000  # of each file, if there are many


Stream: TypeAlias = tuple[int, bytes]  # the group of its destinations, and the name in the header


class LineGroups(NamedTuple):
    """Which destinations belong together; a value that other processes can use.

    Attributes:
        flows: the key of each destination.
        groups: by destination, the smallest number of its group; 0 for all if the sessions suffice.
    """

    flows: tuple[bytes, ...]
    groups: tuple[int, ...]


class Look(NamedTuple):
    """What the beginnings of captures show. Attributes: streams: by capture; those that it has."""

    lines: LineGroups
    streams: list[set[Stream]]


def look_at(paths: Sequence[Path], protocol: Protocol) -> Look:
    """Look at the beginnings of captures.

    Raises:
        OSError: a file cannot be read.
    """
    flows, found = KeyTable(), list[set[Stream]]()
    seen = Contents(protocol, flows)
    for path in paths:
        for datagrams in _beginning(path, len(paths), flows):
            seen.add(datagrams)
        found.append(seen.take_streams())
    groups = seen.groups()
    lines = LineGroups(tuple(flows[number] for number in range(len(flows))), tuple(groups))
    return Look(lines, [{(groups[flow], name) for flow, name in streams} for streams in found])


def lines_of(paths: Sequence[Path], protocol: Protocol) -> LineGroups:
    """Which destinations belong together. Contents are compared only if there are several.

    Raises:
        OSError: a file cannot be read.
    """
    flows = KeyTable()
    for path in paths:
        for _ in _beginning(path, len(paths), flows):
            if len(flows) > 1:
                return look_at(paths, protocol).lines
    return LineGroups(tuple(flows[number] for number in range(len(flows))), (0,) * len(flows))


def _beginning(path: Path, path_count: int, flows: KeyTable) -> Iterator[Datagrams]:
    """The datagrams of a capture that are looked at.

    Raises:
        OSError: the file cannot be read.
    """
    count, count_max = 0, max(DATAGRAMS_MAX // path_count, DATAGRAMS_LEAST)
    with DecompressedFile(path) as file, suppress(FormatError):  # the reading that follows reports it
        for datagrams in CaptureWalk(file, flows):
            yield datagrams
            count += len(datagrams.rows)
            if count >= count_max:
                break


class Contents:
    """What was sent under which number, and where."""

    def __init__(self, protocol: Protocol, flows: KeyTable) -> None:
        self._protocol, self._flows, self._sessions = protocol, flows, KeyTable()
        self._rows: list[Words] = []
        self._streams: set[tuple[int, bytes]] = set()

    def take_streams(self) -> set[tuple[int, bytes]]:
        """(destination, name in the header) of the streams that were added since the last call."""
        found, self._streams = self._streams, set()
        return found

    def add(self, datagrams: Datagrams) -> None:
        """Add datagrams."""
        data, rows = datagrams
        if self._protocol.packet is not None:  # messages without lengths: the compiled walk does not read them
            for row in rows:
                name = self._protocol.stream_name(data[row[START] : row[START] + row[SIZE]].tobytes())
                self._streams.add((int(row[FLOW]), name))
            return
        protocol, sessions, done = self._protocol, self._sessions, -1
        together = np.zeros(len(self._flows), np.int64)
        while done < len(rows):
            sessions.make_room()
            done = read_headers(
                data, rows, max(done, 0), together, protocol.parts, protocol.settings, sessions.keys, sessions.slots,
                sessions.counts,
            )  # fmt: skip
        read = rows[rows[:, STATUS] <= APART]
        for pair in np.unique(read[:, FLOW] * len(sessions) + read[:, STREAM]).tolist():
            flow, session = divmod(pair, len(sessions))
            name = sessions[session][GROUP_SIZE : GROUP_SIZE + protocol.stream_name_size]
            self._streams.add((flow, name))
        digests = np.empty(len(rows), np.int64)
        digest_rows(data, rows, protocol.settings, protocol.is_by_packet, digests)
        contents = np.column_stack((rows[:, [STREAM, SEQUENCE, FLOW]], digests))
        is_numbered = (rows[:, STATUS] <= APART) & (rows[:, SEQUENCE] > 0) & (contents[:, 3] != 0)
        self._rows.append(contents[is_numbered])

    def groups(self) -> list[int]:
        """By flow: the smallest flow of its group; 0 for all if the sessions suffice."""
        flows = list(range(len(self._flows)))
        if self._protocol.packet is not None:  # the session's name decides
            return [0 for _ in flows]
        contents = np.concatenate([np.empty((0, 4), np.int64), *self._rows])
        if len(np.unique(contents[:, 2])) < 2:  # there is nothing to compare
            return [0 for _ in flows] if self._protocol.stream_name_size else flows
        contents = contents[np.lexsort((contents[:, 2], contents[:, 3], contents[:, 1], contents[:, 0]))]
        before, after = contents[:-1], contents[1:]
        same_number = (before[:, :2] == after[:, :2]).all(axis=1) & (before[:, 2] != after[:, 2])
        same_content = same_number & (before[:, 3] == after[:, 3])
        if self._protocol.stream_name_size and not (same_number & ~same_content).any():
            return [0 for _ in flows]
        for one, other in np.unique(np.stack((before[same_content, 2], after[same_content, 2])), axis=1).T.tolist():
            joined, left = sorted((flows[one], flows[other]))
            flows = [joined if each == left else each for each in flows]
        return flows
