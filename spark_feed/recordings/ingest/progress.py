"""How far an ingest is, as a bar on a terminal. Bytes that are read say so: the number of rows is not known before."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from tandemfeed.spark_feed.progress_bar import TerminalLine, bar


class IngestProgress:
    """The progress of one ingest.

    Args:
        terminal: where to draw a bar; None: nowhere.
    """

    def __init__(self, terminal: TextIO | None = None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s, self._terminal_line = clock_s, TerminalLine(terminal, clock_s)
        self._began_s, self._size, self._read, self._records = clock_s(), 1, 0, 0

    def begin(self, size: int) -> None:
        """This many bytes will be read."""
        self._began_s, self._size = self._clock_s(), max(size, 1)

    def on_read(self, size: int) -> None:
        """More bytes were read."""
        self._read += size
        self._terminal_line.update(self.line)

    def on_records(self, count: int) -> None:
        """More records were made."""
        self._records += count

    def end(self) -> None:
        """Draw the bar for the last time."""
        self._terminal_line.finish(self.line)

    def line(self) -> str:
        """The bar."""
        seconds, left = self._clock_s() - self._began_s, max(self._size - self._read, 0)
        what = f"{self._records:,} records" if self._records else "looking at times and sizes"
        rest = f", {seconds * left / self._read:.0f} s left" if left and self._read else ""
        return f"{bar(min(self._read, self._size), self._size)}  {what}{rest}"
