"""A thread that writes files, while the messages that follow are converted.

What it is given must keep the interpreter lock for short: Arrow and system calls release it. A table's kernel keeps the
lock for milliseconds, and a thread that needs it between many small steps waits for a kernel at each of them. So
columns are collected, and SBE is framed, in the thread that converts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

WAITING_MAX = 2  # writes that have not ended; more would only need memory


class WriteThread:
    """Writes, in order, what it is given."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._waiting = deque[Future[None]]()

    def submit(self, write: Callable[..., None], *arguments: Any) -> None:
        """Write; wait if too much is waiting.

        Raises:
            Exception: something given before could not be written.
        """
        self._waiting.append(self._thread.submit(write, *arguments))
        while len(self._waiting) > WAITING_MAX:
            self._waiting.popleft().result()

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
            Exception: something could not be written.
        """
        while self._waiting:
            self._waiting.popleft().result()
        self._thread.shutdown()

    def abandon(self) -> None:
        """End without what is waiting."""
        self._thread.shutdown(cancel_futures=True)
