"""Receives while the application handles what it has: a thread runs the loop, and puts its items into a `Backlog`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tandemfeed.client_lib.items import Item
from tandemfeed.client_lib.reading.backlog import Backlog
from tandemfeed.client_lib.reading.lag import Lag, LagPolicy
from tandemfeed.runtime.threads import start_thread

TAKEN_COUNT_MAX = 16  # what the application has taken is neither dropped nor conflated any more


class ReadAhead:
    """The thread, and what it has read.

    Args:
        poll: runs the loop until there are items; returns None once it is over.
        stop: ends the loop.
    """

    def __init__(self, poll: Callable[[], list[Item] | None], stop: Callable[[], None], policy: LagPolicy) -> None:
        self._poll, self._stop = poll, stop
        self._backlog = Backlog(policy)
        self._changed = threading.Condition()
        self._is_over = False
        self._error: BaseException | None = None
        self._thread = start_thread(self._run, "tandemfeed-read-ahead", lambda _, failure: self._end(failure))

    @property
    def is_over(self) -> bool:
        """True once the loop is over and everything was taken."""
        with self._changed:
            return (self._is_over or self._backlog.is_over) and not self._backlog and self._error is None

    def lag(self) -> Lag:
        """How far the application is behind."""
        with self._changed:
            return self._backlog.lag(time.monotonic_ns())

    def take(self, timeout_s: float | None) -> list[Item]:
        """The next items; none after the time-out, or if the loop is over. Raises what the loop raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._backlog or self._is_over, timeout_s)
            items = self._backlog.take(TAKEN_COUNT_MAX)
            if not items and self._error is not None:
                error, self._error = self._error, None
                raise error
            return items

    def join(self) -> None:
        """Wait for the thread, after the loop was stopped."""
        self._thread.join()

    def _run(self) -> None:
        while (items := self._poll()) is not None:
            with self._changed:
                self._backlog.put(items)
                self._changed.notify()
                if self._backlog.is_over:
                    self._stop()
        self._end(None)

    def _end(self, failure: BaseException | None) -> None:
        """Nothing more is read. The application's thread raises the failure."""
        with self._changed:
            self._is_over, self._error = True, failure
            self._changed.notify_all()
