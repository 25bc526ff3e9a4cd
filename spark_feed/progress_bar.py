"""A bar that commands of the feed source draw on a terminal while they work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

DRAW_INTERVAL_S = 0.1
BAR_WIDTH = 30


class TerminalLine:
    """One line of a terminal, drawn again and again, but not more often than one can read.

    Args:
        terminal: where to draw; None: nowhere.
    """

    def __init__(self, terminal: TextIO | None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._terminal, self._clock_s = terminal, clock_s
        self._drawn_s = 0.0

    def update(self, text: Callable[[], str]) -> None:
        """Draw the line, if it is time to."""
        now_s = self._clock_s()
        if self._terminal is not None and now_s - self._drawn_s >= DRAW_INTERVAL_S:
            self._drawn_s = now_s
            _draw(self._terminal, text())

    def finish(self, text: Callable[[], str]) -> None:
        """Draw the line for the last time, if it was drawn, and begin another one."""
        if self._terminal is not None and self._drawn_s:
            _draw(self._terminal, text())
            self._terminal.write("\n")
            self._terminal.flush()


def bar(done: int, count: int) -> str:
    """How much of something is done.

    Args:
        count: at least 1.
    """
    filled = BAR_WIDTH * done // count
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {100 * done // count:3d} %"


def terminal() -> TextIO | None:
    """Standard error, if it is a terminal."""
    return sys.stderr if sys.stderr.isatty() else None


def _draw(terminal: TextIO, text: str) -> None:
    terminal.write(f"\r{text}\x1b[K")
    terminal.flush()
