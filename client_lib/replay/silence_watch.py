"""Cancels a call that is silent for too long: a vanished host must not delay other requests.

One thread serves all calls of a replay worker, one after another; a timer for each chunk would start a thread for each.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class SilenceWatch:
    """For one call at a time; `close` ends the thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._cancel: Callable[[], object] | None = None
        self._patience_s = 0.0
        self._due_at_s = math.inf
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="tandemfeed-replay-watch", daemon=True)
        self._thread.start()

    @contextmanager
    def over(self, cancel: Callable[[], object], patience_s: float) -> Iterator[None]:
        """Watch a call. Args: patience_s: how many seconds it may be silent until `cancel` is called."""
        with self._changed:
            self._cancel, self._patience_s = cancel, patience_s
            self.resume()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._cancel = None

    def pause(self) -> None:
        """The call was heard; until `resume`, it is not its turn to speak."""
        self._due_at_s = math.inf

    def resume(self) -> None:
        """Be patient from now on."""
        self._due_at_s = time.monotonic() + self._patience_s

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._is_closed:
                if self._cancel is None:
                    self._changed.wait()
                elif (left_s := self._due_at_s - time.monotonic()) > 0:
                    self._changed.wait(min(left_s, self._patience_s))  # `resume` does not wake it
                else:
                    self._cancel()
                    self._cancel = None
