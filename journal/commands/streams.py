"""Where a sub-command prints, how it says how far it is, and how it is asked to stop."""

from __future__ import annotations

import io
import os
import select
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_INTERVAL_S = 10.0  # between lines of progress where there is no terminal
_ENDED = select.POLLERR | select.POLLHUP | select.POLLNVAL


@dataclass(frozen=True, slots=True)
class Streams:
    """Text out, and everything about it on `err`."""

    out: TextIO
    err: TextIO

    @classmethod
    def of_process(cls) -> Self:
        """The process's own."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # not every terminal has every character
                stream.reconfigure(errors="backslashreplace")
        return cls(sys.stdout, sys.stderr)

    def say(self, text: str = "") -> None:
        """A line of the answer."""
        self.out.write(text + "\n")

    def note(self, text: str) -> None:
        """A line about the answer."""
        self.err.write(text + "\n")
        self.err.flush()

    def is_out_closed(self) -> bool:
        """True if whoever read the answer has gone."""
        try:
            poll = select.poll()
            poll.register(self.out.fileno(), 0)  # nothing asked for: an end is told in any case
        except (OSError, ValueError):  # no file: a string in memory
            return False
        return any(event & _ENDED for _, event in poll.poll(0))


class Interruption:
    """SIGINT and SIGTERM as a wish to stop, which also ends a wait. Elsewhere than in the main thread: none comes."""

    def __init__(self) -> None:
        self.is_asked = False
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._wake.close()
        self._waker.close()

    def ask(self) -> None:
        """Stop."""
        self.is_asked = True
        self._waker.send(b"\0")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.is_asked:  # a second time: whatever it is that does not come to an end
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.ask()

    def wait(self, timeout_s: float) -> bool:
        """Wait for so long; True at once when asked to stop."""
        if not self.is_asked and timeout_s > 0:
            select.select([self._wake], [], [], timeout_s)
        return self.is_asked

    def wait_writable(self, descriptor: int) -> bool:
        """Wait until something can be written; False if asked to stop before it can."""
        while True:
            _, ready, _ = select.select([self._wake], [descriptor], [])
            if ready or self.is_asked:
                return bool(ready)


class Meter(Protocol):
    """Takes in how far something is."""

    def advance(self, count: int, what: str) -> None:
        """So much more, of which the last was `what`."""
        ...

    def hide(self) -> None:
        """Something else is about to be printed."""
        ...

    def finish(self) -> None:
        """No more."""
        ...


class _Bar:
    """On a terminal."""

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
    """Elsewhere: a line now and then."""

    def __init__(self, streams: Streams, title: str, total: int | None, interval_s: float) -> None:
        self._streams, self._title, self._interval_s = streams, title, interval_s
        self._of = "" if total is None else f" of {total:,}"
        self._count, self._told_at = 0, time.monotonic()

    def advance(self, count: int, what: str) -> None:
        self._count += count
        if time.monotonic() - self._told_at >= self._interval_s:
            self._told_at = time.monotonic()
            self._streams.note(f"{self._title}: {self._count:,}{self._of}" + (f", {what}" if what else ""))

    def hide(self) -> None:
        pass

    def finish(self) -> None:
        pass


def meter(
    streams: Streams, title: str, total: int | None, *, interval_s: float = LINE_INTERVAL_S, has_bar: bool = True
) -> Meter:
    """A bar on a terminal, lines otherwise.

    Args:
        total: how far it goes, if that is known.
        interval_s: between lines.
        has_bar: False: lines on a terminal too, because something else is printed all the time.
    """
    if has_bar and streams.err.isatty() and os.environ.get("TERM") != "dumb":
        return _Bar(streams.err, title, total)
    return _Lines(streams, title, total, interval_s)
