"""Waits for answers, by a time that stands still while this process is paused: the answer then waits unread.

While anything waits, one thread of the process looks at the clock every LOOK_EVERY_NS, and so notices pauses whatever
the waiting threads do: they may be in a call of gRPC, asleep, or handling the last answer.

Invariant: a wait ends by itself only after its time has passed while this process ran.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, Self, TypeVar

import grpc

from tandemfeed.feedcore.pause_free_clock import LOOK_EVERY_NS, PauseFreeClock
from tandemfeed.runtime.threads import mark_unhealthy, start_thread

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
NEVER_NS = 1 << 62
IDLE_S = 1.0  # after which the thread ends


class Future(Protocol[T_co]):
    """A gRPC call under way, as far as this module uses it."""

    def result(self, timeout: float | None = None) -> T_co: ...


class PauseWatch:
    """The thread, and its clock. Any thread may call its methods.

    Args:
        monotonic_ns: a clock that does not stop.
    """

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self._changed = threading.Condition()
        self._clock = PauseFreeClock(monotonic_ns())
        self._waits: weakref.WeakSet[PatientWait] = weakref.WeakSet()  # weak: an interrupt may keep one from its end
        self._is_running = self._is_idle = False

    @property
    def now_ns(self) -> int:
        """The time; it advances while anything waits."""
        return self._clock.between(self._monotonic_ns())

    @property
    def pause_count(self) -> int:
        """How many pauses were noticed."""
        return self._clock.pause_count

    def add(self, wait: PatientWait) -> None:
        """Something waits from now on."""
        with self._changed:
            if not self._waits:  # nothing was judged since the last look
                self._clock.look(self._monotonic_ns(), missed_nothing=True)
            self._waits.add(wait)
            if not self._is_running:
                start_thread(self._run, "tandemfeed-pauses", self._fail)
                self._is_running = True
            elif self._is_idle:
                self._changed.notify_all()

    def remove(self, wait: PatientWait) -> None:
        """It does not wait any more."""
        with self._changed:
            self._waits.discard(wait)

    def _run(self) -> None:
        while self._await_next_look():
            with self._changed:
                now_ns = self._clock.look(self._monotonic_ns())
                over = [each for each in self._waits if each.is_over_at(now_ns)]
            for each in over:
                each.on_over()

    def _await_next_look(self) -> bool:
        """Returns False if nothing has waited for IDLE_S."""
        with self._changed:
            if self._waits:
                self._changed.wait(LOOK_EVERY_NS / 1e9)
            if not self._waits:
                self._is_idle = True
                self._changed.wait_for(lambda: self._waits, IDLE_S)
                self._is_idle = False
            self._is_running = bool(self._waits)
            return self._is_running

    def _fail(self, name: str, failure: BaseException) -> None:
        with self._changed:
            self._is_running = False  # the next wait starts another thread
        mark_unhealthy(name, failure)


class PatientWait:
    """One wait, from the beginning of its `with` block to the end.

    Args:
        timeout_s: how long to wait.
        on_over: called once, in another thread, when the time is over; None: nothing is.
        watch: whose time it is; None: the process's.
    """

    def __init__(
        self, timeout_s: float, on_over: Callable[[], object] | None = None, watch: PauseWatch | None = None
    ) -> None:
        self._timeout_s, self._on_over, self._watch = timeout_s, on_over, watch or _watch
        self._began_ns, self._end_ns = 0, NEVER_NS
        self._pause_count = 0

    def __enter__(self) -> Self:
        self._watch.add(self)
        self._pause_count = self._watch.pause_count
        self._began_ns = self._watch.now_ns
        self.restart()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.remove(self)

    @property
    def waited_s(self) -> float:
        """How long it has waited, without pauses."""
        return (self._watch.now_ns - self._began_ns) / 1e9

    @property
    def left_s(self) -> float:
        """How long it still waits; 0: the time is over."""
        return max(0, self._end_ns - self._watch.now_ns) / 1e9

    @property
    def was_paused(self) -> bool:
        """Whether this process was paused since it began to wait."""
        return self._watch.pause_count != self._pause_count

    def restart(self) -> None:
        """Wait the whole time again from now on."""
        self._end_ns = self._watch.now_ns + int(self._timeout_s * 1e9)

    def suspend(self) -> None:
        """Do not wait until `restart`: it is not the other side's turn."""
        self._end_ns = NEVER_NS

    def limit(self, timeout_s: float) -> None:
        """Wait no longer than this from now on."""
        self._end_ns = min(self._end_ns, self._watch.now_ns + int(timeout_s * 1e9))

    def take(self, answers: queue.SimpleQueue[T]) -> T:
        """The next answer.

        Raises:
            queue.Empty: the time is over.
        """
        while True:
            step_s = self._step_s()
            try:
                return answers.get(block=step_s > 0, timeout=step_s or None)
            except queue.Empty:
                if step_s == 0:
                    raise

    def result(self, call: Future[T]) -> T:
        """The result of a call, or its error.

        Raises:
            grpc.FutureTimeoutError: the time is over.
        """
        while True:
            step_s = self._step_s()
            try:
                return call.result(step_s)
            except grpc.FutureTimeoutError:
                if step_s == 0:
                    raise

    def until(self, is_done: Callable[[], object], wait: Callable[[float], object]) -> bool:
        """Wait until the condition is true. Returns False if the time is over before. Args: wait: for some seconds."""
        while not is_done():
            step_s = self._step_s()
            if step_s == 0:
                return False
            wait(step_s)
        return True

    def is_over_at(self, now_ns: int) -> bool:
        """Whether to call `on_over` now; True at most once for each `restart`. For the watch."""
        if self._on_over is None or now_ns < self._end_ns:
            return False
        self._end_ns = NEVER_NS
        return True

    def on_over(self) -> None:
        """The time is over. For the watch."""
        assert self._on_over is not None
        self._on_over()

    def _step_s(self) -> float:
        return min(self.left_s, LOOK_EVERY_NS / 1e9)


def again_if_paused(work: Callable[[], T], failures: type[Exception] | tuple[type[Exception], ...]) -> T:
    """Do something that has a time limit; once more if it fails and this process was paused meanwhile, because the
    time limit passed during the pause, too."""
    with PatientWait(0) as wait:
        try:
            return work()
        except failures:
            if not wait.was_paused:
                raise
    return work()


_watch = PauseWatch()


def _after_fork() -> None:
    global _watch
    _watch = PauseWatch()  # the thread is gone, and perhaps the lock was held


os.register_at_fork(after_in_child=_after_fork)
