"""Output, progress display and interruption of a sub-command."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import time
from dataclasses import dataclass
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tandemfeed.runtime.signals import StopSignal

LINE_INTERVAL_S = 10.0  # between lines of progress where there is no terminal
_ENDED = select.POLLERR | select.POLLHUP | select.POLLNVAL


@dataclass(frozen=True, slots=True)
class Streams:
    """The result goes to `out`, messages about it to `err`."""

    out: TextIO
    err: TextIO

    @classmethod
    def of_process(cls) -> Self:
        """The process's standard streams."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a terminal may lack a character
                stream.reconfigure(errors="backslashreplace")
        return cls(sys.stdout, sys.stderr)

    def say(self, text: str = "") -> None:
        """Print a line of the result."""
        self.out.write(text + "\n")

    def note(self, text: str) -> None:
        """Print a message."""
        self.err.write(text + "\n")
        self.err.flush()

    def is_out_closed(self) -> bool:
        """True if the reader has closed its end of `out`."""
        try:
            poll = select.poll()
            poll.register(self.out.fileno(), 0)  # 0: hang-ups and errors are reported in any case
        except (OSError, ValueError):  # not a file: a string in memory
            return False
        return any(event & _ENDED for _, event in poll.poll(0))


class Interruption:
    """SIGINT and SIGTERM as a request to stop, which also ends a wait; a second signal ends the process immediately.
    Only the main thread receives signals."""

    def __init__(self) -> None:
        self._stop = StopSignal(second_ends=True, handles_signals=threading.current_thread() is threading.main_thread())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.close()

    @property
    def is_requested(self) -> bool:
        """True once a stop was requested."""
        return self._stop.is_set

    def request_stop(self) -> None:
        """Request a stop."""
        self._stop.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s`; True as soon as a stop is requested."""
        return self._stop.wait(timeout_s)

    def wait_writable(self, descriptor: int) -> bool:
        """Wait until the descriptor is writable; False if a stop is requested first."""
        while True:
            _, ready, _ = select.select([self._stop], [descriptor], [])
            if ready or self.is_requested:
                return bool(ready)


class Meter(Protocol):
    """Shows progress."""

    def advance(self, count: int, what: str) -> None:
        """Report `count` more done; `what` was the last."""
        ...

    def hide(self) -> None:
        """Hide the display before other output."""
        ...

    def finish(self) -> None:
        """Remove the display."""
        ...


class _Bar:
    """A progress bar on a terminal."""

    def __init__(self, err: TextIO, title: str, total: int | None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(file=err), transient=True)
        self._task = self._progress.add_task(title, total=total)
        self._progress.start()

    def advance(self, count: int, what: str) -> None:
        self._progress.start()  # does nothing unless it is hidden
        self._progress.update(self._task, advance=count, description=what)

    def hide(self) -> None:
        self._progress.stop()

    def finish(self) -> None:
        self._progress.stop()


class _Lines:
    """Without a terminal: a line at intervals."""

    def __init__(self, streams: Streams, title: str, total: int | None, interval_s: float) -> None:
        self._streams, self._title, self._interval_s = streams, title, interval_s
        self._of = "" if total is None else f" of {total:,}"
        self._count, self._reported_at = 0, time.monotonic()

    def advance(self, count: int, what: str) -> None:
        self._count += count
        if time.monotonic() - self._reported_at >= self._interval_s:
            self._reported_at = time.monotonic()
            self._streams.note(f"{self._title}: {self._count:,}{self._of}" + (f", {what}" if what else ""))

    def hide(self) -> None:
        pass

    def finish(self) -> None:
        pass


def meter(
    streams: Streams, title: str, total: int | None, *, interval_s: float = LINE_INTERVAL_S, has_bar: bool = True
) -> Meter:
    """A progress bar on a terminal, otherwise lines.

    Args:
        total: the final count, if it is known.
        interval_s: between lines.
        has_bar: False: lines on a terminal too, because other output would disturb a bar.
    """
    if has_bar and streams.err.isatty() and os.environ.get("TERM") != "dumb":
        return _Bar(streams.err, title, total)
    return _Lines(streams, title, total, interval_s)
