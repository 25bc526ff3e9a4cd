"""The one way from a background thread into the loop: a bounded queue and a file descriptor that a poller can watch.

Must never block the loop. Invariant: whenever a letter waits, the file descriptor is readable.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Letters from many threads to one.

    Args:
        count_max: letters waiting at most; a writer waits while it is full, so a slow loop slows replay down instead
            of filling memory.
    """

    def __init__(self, count_max: int) -> None:
        self._letters: queue.Queue[T] = queue.Queue(count_max)
        self._room = threading.Condition(threading.RLock())
        self._is_closed = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def put(self, letter: T) -> bool:
        """Leave a letter, waiting for room; False if the mailbox is closed."""
        with self._room:
            while not self._is_closed:
                try:
                    self._letters.put_nowait(letter)
                except queue.Full:
                    self._room.wait()
                    continue
                self._wake()
                return True
        return False

    def take(self) -> T | None:
        """The oldest letter, or None. Only the loop takes."""
        try:
            letter = self._letters.get_nowait()
        except queue.Empty:
            return None
        with self._room:
            self._room.notify()
        return letter

    def wake(self) -> None:
        """Make the loop look up, from any thread or signal handler."""
        with self._room:  # re-entrant, so a signal handler that interrupts its holder gets in
            if not self._is_closed:
                self._wake()

    def acknowledge(self) -> None:
        """Silence the file descriptor; the loop calls this before it takes."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Release writers that wait, then the file descriptor."""
        with self._room:
            if self._is_closed:
                return
            self._is_closed = True
            self._room.notify_all()
            os.close(self.fd)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full counter: readable already
            os.eventfd_write(self.fd, 1)
