"""The channel from background threads to the loop: a bounded queue, and a file descriptor that a poller can watch.

It must never block the loop. Invariant: while a letter waits, the file descriptor is readable.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Passes letters from many threads to one.

    Args:
        count_max: the capacity; writers wait while the mailbox is full, so that a slow loop slows down replay instead
            of filling memory.
    """

    def __init__(self, count_max: int) -> None:
        self._letters: queue.Queue[T] = queue.Queue(count_max)
        self._room = threading.Condition(threading.RLock())
        self._is_closed = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def put(self, letter: T) -> bool:
        """Put a letter, after waiting for room; False if the mailbox is closed."""
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
        """The oldest letter, or None. Only the loop calls this."""
        try:
            letter = self._letters.get_nowait()
        except queue.Empty:
            return None
        with self._room:
            self._room.notify()
        return letter

    def __len__(self) -> int:
        """How many letters wait."""
        return self._letters.qsize()

    def wake(self) -> None:
        """Wake the loop. Safe to call from any thread or signal handler."""
        with self._room:  # re-entrant, so a signal handler that interrupts its holder gets in
            if not self._is_closed:
                self._wake()

    def acknowledge(self) -> None:
        """Make the file descriptor unreadable; the loop calls this before `take`."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Release waiting writers, then close the file descriptor."""
        with self._room:
            if self._is_closed:
                return
            self._is_closed = True
            self._room.notify_all()
            os.close(self.fd)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the counter is full, so the descriptor is readable already
            os.eventfd_write(self.fd, 1)
