"""SIGTERM and SIGINT: their handler notes the signal and writes to a descriptor; everything else reads it.

Python calls a handler in the main thread between any two steps of what that thread does, also while it holds a lock or
runs a finaliser. So a handler must never take a lock, raise, log, or call other code: a process that its signal has
stopped within a lock never ends, and an exception that a finaliser swallows ends nothing.
"""

from __future__ import annotations

import os
import select
import signal
from types import FrameType
from typing import Any, Self

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """A request to stop, by SIGTERM, SIGINT or `set`. It stays; every thread may wait for it, or poll its descriptor
    together with sockets.

    Create it in the main thread, and close it there, or never: it may last as long as the process.

    Args:
        second_ends: a second signal ends the process immediately, as without a handler.
        handles_signals: False: only `set` requests the stop, and any thread may create and close it.
    """

    def __init__(self, *, second_ends: bool = False, handles_signals: bool = True) -> None:
        self._number = 0
        self._second_ends = second_ends
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # never read, so it wakes every reader
        numbers = NUMBERS if handles_signals else ()
        self._former: dict[int, Any] = {each: signal.getsignal(each) for each in numbers}
        self.install()

    def install(self) -> None:
        """Install the handlers again, after a library has replaced them (PySpark does). In the main thread."""
        for each in self._former:
            signal.signal(each, self._on_signal)

    def fileno(self) -> int:
        """A file descriptor that is readable once a stop was requested."""
        return self._fd

    @property
    def is_set(self) -> bool:
        """True once a stop was requested."""
        return self._number != 0

    @property
    def number(self) -> signal.Signals:
        """The signal that requested the stop; SIGTERM if `set` did."""
        return signal.Signals(self._number or signal.SIGTERM)

    def set(self) -> None:
        """Request the stop from inside the process. From any thread."""
        self._number = self._number or signal.SIGTERM
        os.eventfd_write(self._fd, 1)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a request; True if there is one. From any thread."""
        if self.is_set or (timeout_s is not None and timeout_s <= 0):
            return self.is_set
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(None if timeout_s is None else timeout_s * 1_000)
        return self.is_set

    def close(self) -> None:
        """Restore the former handlers. Not while another thread waits."""
        for number, handler in self._former.items():
            signal.signal(number, handler)
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._number and self._second_ends:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._number = self._number or number
        os.eventfd_write(self._fd, 1)
