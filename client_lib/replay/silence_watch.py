"""Cancels a call that is silent for too long: a vanished host must not delay other requests.

One thread serves all calls of a replay worker, one after another; a timer for each chunk would start a thread for each.
It measures by a time that stands still while this process is paused, because the answer then waits unread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tandemfeed.feedcore.pause_free_clock import LOOK_EVERY_NS, PauseFreeClock
from tandemfeed.runtime.threads import OnFailure, mark_unhealthy, start_thread


class SilenceWatch:
    """For one call at a time; `close` ends the thread.

    Args:
        on_failure: called if the thread ends with an error.
        monotonic_ns: the clock.
    """

    def __init__(
        self, on_failure: OnFailure = mark_unhealthy, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._changed = threading.Condition()
        self._cancel: Callable[[], object] | None = None
        self._patience_ns = 0
        self._is_its_turn = False  # to speak
        self._said = 0  # how often it has spoken
        self._is_closed = False
        self._clock, self._monotonic_ns = PauseFreeClock(monotonic_ns()), monotonic_ns
        self._thread = start_thread(self._run, "tandemfeed-replay-watch", on_failure)

    @contextmanager
    def over(self, cancel: Callable[[], object], patience_s: float) -> Iterator[None]:
        """Watch a call. Args: patience_s: how many seconds it may be silent until `cancel` is called."""
        with self._changed:
            self._cancel, self._patience_ns = cancel, int(patience_s * 1e9)
            self.resume()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._cancel = None

    def pause(self) -> None:
        """The call was heard; until `resume`, it is not its turn to speak."""
        self._is_its_turn = False

    def resume(self) -> None:
        """Be patient from now on."""
        self._said += 1
        self._is_its_turn = True

    @property
    def paused_ns(self) -> int:
        """For how long this process was paused, as far as is known."""
        return self._clock.paused_ns

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        heard, since_ns = -1, 0
        with self._changed:
            while not self._is_closed:
                now_ns = self._clock.look(self._monotonic_ns())
                if self._cancel is None:
                    self._changed.wait()
                    continue
                if heard != self._said or not self._is_its_turn:
                    heard, since_ns = self._said, now_ns
                elif now_ns - since_ns >= self._patience_ns:
                    self._cancel()
                    self._cancel = None
                    continue
                self._changed.wait(min(self._patience_ns, LOOK_EVERY_NS) / 1e9)
