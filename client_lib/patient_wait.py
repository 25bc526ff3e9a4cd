"""Waits for answers, by a time that stands still while this process is paused: the answer then waits unread."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import TypeVar

from tandemfeed.feedcore.pause_free_clock import LOOK_EVERY_NS, PauseFreeClock

T = TypeVar("T")


class PatientWait:
    """One wait. For one thread.

    Args:
        timeout_s: how long to wait from now on.
        monotonic_ns: the clock.
    """

    def __init__(self, timeout_s: float, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self._clock = PauseFreeClock(monotonic_ns())
        self._began_ns = self._clock.now_ns
        self._end_ns = self._clock.now_ns + int(timeout_s * 1e9)

    @property
    def waited_s(self) -> float:
        """How long it has waited. Look at least every LOOK_EVERY_NS: a longer time counts as a pause."""
        return (self._clock.look(self._monotonic_ns()) - self._began_ns) / 1e9

    def limit(self, timeout_s: float) -> None:
        """Wait no longer than this from now on."""
        self._end_ns = min(self._end_ns, self._clock.look(self._monotonic_ns()) + int(timeout_s * 1e9))

    def step_s(self) -> float:
        """How long to wait until the next look; 0: the time is over."""
        left_ns = self._end_ns - self._clock.look(self._monotonic_ns())
        return max(0.0, min(left_ns, LOOK_EVERY_NS) / 1e9)

    def take(self, answers: queue.SimpleQueue[T]) -> T:
        """The next answer.

        Raises:
            queue.Empty: the time is over.
        """
        while True:
            step_s = self.step_s()
            try:
                return answers.get(block=step_s > 0, timeout=step_s or None)
            except queue.Empty:
                if step_s == 0:
                    raise

    def until(self, is_done: Callable[[], object], wait: Callable[[float], object]) -> bool:
        """Wait until the condition is true. Returns False if the time is over before. Args: wait: for some seconds."""
        while not is_done():
            step_s = self.step_s()
            if step_s == 0:
                return False
            wait(step_s)
        return True
