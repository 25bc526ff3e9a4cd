"""How other threads reach the loop: they post events, and the loop runs them. Only the loop touches the engine."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from tandemfeed.feedcore.replica.effects import AdapterEffect

Answer = TypeVar("Answer")
Event = Callable[[int], list[AdapterEffect]]  # takes now_ns
ASK_TIMEOUT_S = 2.0  # a loop that does not answer for this long counts as dead


class Mailbox:
    """Events for the loop. Its file descriptor is readable while events wait.

    Owner: none is needed. Each change of its deque and its set is one step of the interpreter, and they come in an
    order that loses no event and no answer.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events: deque[Event] = deque()
        self._unanswered: set[Future[Any]] = set()
        self._is_closed = False

    def fileno(self) -> int:
        """For the loop's poller."""
        return self._fd

    def post(self, event: Event) -> None:
        """Have the loop call `event(now_ns)` and perform the effects it returns."""
        self._events.append(event)
        os.eventfd_write(self._fd, 1)

    def post_all(self, events: Iterable[Event]) -> None:
        """The same for several events, in their order: the loop is woken once."""
        self._events.extend(events)
        os.eventfd_write(self._fd, 1)

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Have the loop answer a question between two events. An exception of the question is raised here.

        Raises:
            TimeoutError: the loop did not answer in time, or has ended.
        """
        answer: Future[Answer] = Future()
        self._unanswered.add(answer)

        def run(_now_ns: int) -> list[AdapterEffect]:
            try:
                answer.set_result(question())
            except Exception as raised:  # noqa: BLE001 - raised in the asking thread
                answer.set_exception(raised)
            return []

        try:
            if self._is_closed:
                raise TimeoutError("the loop has ended")
            self.post(run)
            return answer.result(timeout=ASK_TIMEOUT_S)
        except CancelledError:
            raise TimeoutError("the loop has ended") from None
        finally:
            self._unanswered.discard(answer)

    def close(self) -> None:
        """The loop has ended: raise TimeoutError in every thread that waits for an answer or asks later."""
        self._is_closed = True  # first: later questions see it, earlier ones are in the set
        for answer in list(self._unanswered):
            answer.cancel()

    def take(self, count_max: int) -> list[Event]:
        """Take the first events posted so far. For the loop. The file descriptor stays readable if more wait."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return []
        taken: list[Event] = []
        while self._events and len(taken) < count_max:
            taken.append(self._events.popleft())
        if self._events:
            os.eventfd_write(self._fd, 1)
        return taken
