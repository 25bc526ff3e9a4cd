"""Finds out which destinations of a capture are lines of the same channel, from what was sent to them.

The lines of a channel carry the same messages under the same numbers; different channels carry different ones. So
destinations belong together if one number has the same content on both. If a protocol's header names the channel or
session, that name decides, unless two destinations use it for different content.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.convert_command.captures.capture_walk import CaptureWalk, Datagrams
from tandemfeed.adapter.convert_command.captures.keys import KeyTable
from tandemfeed.adapter.convert_command.captures.protocols import Protocol
from tandemfeed.adapter.convert_command.captures.rows import APART, FLOW, SEQUENCE, STATUS, STREAM, Words
from tandemfeed.adapter.convert_command.captures.stream_kernels import digest_rows, read_headers
from tandemfeed.adapter.convert_command.compressed import DecompressedFile

DATAGRAMS_MAX = 50_000  # looked at; the lines of a channel differ by milliseconds
DATAGRAMS_LEAST = 5_000  # of each file, if there are many


def line_groups(paths: Sequence[Path], protocol: Protocol, flows: KeyTable) -> list[int]:
    """The groups of the destinations in the beginning of captures, by flow.

    Args:
        flows: receives the destinations.

    Raises:
        OSError: a file cannot be read.
    """
    seen = Contents(protocol, flows)
    of_each = max(DATAGRAMS_MAX // len(paths), DATAGRAMS_LEAST)
    for path in paths:
        count = 0
        with DecompressedFile(path) as file, suppress(FormatError):  # the reading that follows reports it
            for datagrams in CaptureWalk(file, flows):
                seen.add(datagrams)
                count += len(datagrams.rows)
                if count >= of_each:
                    break
    return seen.groups()


class Contents:
    """What was sent under which number, and where."""

    def __init__(self, protocol: Protocol, flows: KeyTable) -> None:
        self._protocol, self._flows, self._sessions = protocol, flows, KeyTable()
        self._rows: list[Words] = []

    def add(self, datagrams: Datagrams) -> None:
        """Add datagrams."""
        data, rows = datagrams
        protocol, sessions, done = self._protocol, self._sessions, -1
        together = np.zeros(len(self._flows), np.int64)
        while done < len(rows):
            sessions.make_room()
            done = read_headers(
                data, rows, max(done, 0), together, protocol.parts, protocol.settings, sessions.keys, sessions.slots,
                sessions.counts,
            )  # fmt: skip
        digests = np.empty(len(rows), np.int64)
        digest_rows(data, rows, protocol.settings, protocol.is_by_packet, digests)
        contents = np.column_stack((rows[:, [STREAM, SEQUENCE, FLOW]], digests))
        is_numbered = (rows[:, STATUS] <= APART) & (rows[:, SEQUENCE] > 0) & (contents[:, 3] != 0)
        self._rows.append(contents[is_numbered])

    def groups(self) -> list[int]:
        """By flow: the smallest flow of its group; 0 for all if the sessions suffice."""
        flows = list(range(len(self._flows)))
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
