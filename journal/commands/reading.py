"""Reads a range of a journal's records, forward or backward, with their times."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tandemfeed.journal.commands.options import CommandError
from tandemfeed.journal.commands.presentation import counted
from tandemfeed.journal.commands.streams import Streams
from tandemfeed.journal.errors import NoSuchRecord
from tandemfeed.journal.tailer import Tailer

READ_AT_ONCE = 256
EXIT_LOST = 1
WAIT_S = 3_600.0  # arbitrary: a record or `is_over` ends the wait


class Entry(NamedTuple):
    """A record as read."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    appended_at_ns: int
    record: bytes


@dataclass(frozen=True, slots=True)
class Range:
    """Which records: `from_` bounds are inclusive, `until_` bounds exclusive. None: no bound."""

    from_index: int | None = None
    from_time_ns: int | None = None
    until_index: int | None = None
    until_time_ns: int | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Range:
        """The range that the options of `options.add_range` give."""
        return cls(arguments.from_index, arguments.from_time, arguments.until_index, arguments.until_time)

    @property
    def has_begin(self) -> bool:
        """True if the range has a begin."""
        return self.from_index is not None or self.from_time_ns is not None

    def ends_before(self, index: int, at_ns: int) -> bool:
        """True for a record after the range. Times never go back in a journal, so all later ones are after it too."""
        return (self.until_index is not None and index >= self.until_index) or (
            self.until_time_ns is not None and at_ns >= self.until_time_ns
        )

    def begins_after(self, index: int, at_ns: int) -> bool:
        """True for a record before the range."""
        return (self.from_index is not None and index < self.from_index) or (
            self.from_time_ns is not None and at_ns < self.from_time_ns
        )


def to_begin(tailer: Tailer, wanted: Range, folder: Path) -> None:
    """Go to the range's begin, if it has one.

    Raises:
        CommandError: no record has the index.
    """
    if wanted.from_index is not None:
        try:
            tailer.to_index(wanted.from_index)
        except NoSuchRecord as missing:
            raise CommandError(f"{missing}; tandemfeed journal info {folder} shows which indices exist") from None
    elif wanted.from_time_ns is not None:
        tailer.to_time(wanted.from_time_ns)


def forward(
    tailer: Tailer, wanted: Range, *, follow: bool = False, is_over: Callable[[], bool] = lambda: False
) -> Iterator[list[Entry]]:
    """Records from the tailer's position to the range's end, in lists.

    Args:
        follow: wait for new records, until `is_over` or the range ends.
    """
    while not is_over():
        batch = tailer.read_batch(READ_AT_ONCE)
        if batch is None:
            if not follow or not _wait(tailer, wanted, is_over):
                return
            continue
        times = batch.appended_at_ns.tolist()
        entries = [
            Entry(batch.first_index + place, at_ns, record)
            for place, (at_ns, record) in enumerate(zip(times, batch.records(), strict=True))
        ]
        inside = [entry for entry in entries if not wanted.ends_before(entry.index, entry.appended_at_ns)]
        if inside:
            yield inside
        if len(inside) < len(entries):
            return


def _wait(tailer: Tailer, wanted: Range, is_over: Callable[[], bool]) -> bool:
    """Wait for a record; False if no further record can be in the range."""

    def is_enough() -> bool:
        return is_over() or (wanted.until_time_ns is not None and time.time_ns() > wanted.until_time_ns)

    while not is_enough():
        if tailer.wait(WAIT_S, until=is_enough):
            return True
    return tailer.is_ready()  # appended just before the deadline


def lost_status(lost_count: int, folder: Path, streams: Streams) -> int:
    """The exit status after reading: 1, with a message, if records were damaged or missing."""
    if not lost_count:
        return 0
    streams.note(
        f"at least {counted(lost_count, 'record')} lost to damage or with missing files; "
        f"run tandemfeed journal verify {folder} to see where"
    )
    return EXIT_LOST


def backward(tailer: Tailer, key: bytes | None, wanted: Range) -> Iterator[Entry]:
    """Records from the range's end, or the newest one, back to its begin."""
    with Tailer(tailer.folder, key=key) as timer:
        _to_end(tailer, wanted)
        while entries := _some_back(tailer):
            times = _times(timer, entries[-1][0], entries[0][0])
            for index, record in entries:
                at_ns = times.get(index, 0)
                if wanted.begins_after(index, at_ns):
                    return
                if not wanted.ends_before(index, at_ns):
                    yield Entry(index, at_ns, record)


def _to_end(tailer: Tailer, wanted: Range) -> None:
    if wanted.until_time_ns is not None:
        tailer.to_time(wanted.until_time_ns)
        return
    if wanted.until_index is not None:
        try:
            tailer.to_index(wanted.until_index)
            return
        except NoSuchRecord:
            pass  # beyond the end, or damaged: begin at the newest; the caller skips records after the range
    tailer.to_end()


def _some_back(tailer: Tailer) -> list[tuple[int, bytes]]:
    entries: list[tuple[int, bytes]] = []
    while len(entries) < READ_AT_ONCE and (entry := tailer.read_back()) is not None:
        entries.append(entry)
    return entries


def _times(timer: Tailer, first: int, last: int) -> dict[int, int]:
    """When each record from `first` to `last` was appended."""
    times: dict[int, int] = {}
    timer.to_index(first)
    while (batch := timer.read_batch(READ_AT_ONCE)) is not None:
        times |= zip(range(batch.first_index, batch.next_index), batch.appended_at_ns.tolist(), strict=True)
        if batch.next_index > last:
            break
    return times
