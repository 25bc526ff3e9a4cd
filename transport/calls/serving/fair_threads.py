"""Threads in which the work of several identities takes turns (`limits.Turns` decides). For any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from tandemfeed.transport.calls.serving.limits import Turns

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class FairThreads:
    """Args: name: of the threads; count, spare_count: as of `Turns`."""

    def __init__(self, name: str, count: int, spare_count: int) -> None:
        self._pool = ThreadPoolExecutor(count + spare_count, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._turns: Turns[Callable[[], None]] = Turns(count, spare_count)

    def of(self, owner: str) -> Executor:
        """Where this identity's work runs."""
        return _Own(self, owner)

    def submit(self, owner: str, work: Callable[[], Result]) -> Future[Result]:
        """Run work when it is the identity's turn."""
        future: Future[Result] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work()
            except BaseException as failure:  # noqa: BLE001  # for the caller that waits
                future.set_exception(failure)
            else:
                future.set_result(result)

        with self._lock:
            self._turns.add(owner, run)
            self._start_due()
        return future

    def shutdown(self) -> None:
        """End the threads when their work has ended."""
        self._pool.shutdown(wait=False)

    def _start_due(self) -> None:
        while (due := self._turns.take()) is not None:
            self._pool.submit(self._run, *due)

    def _run(self, owner: str, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            with self._lock:
                self._turns.end(owner)
                self._start_due()


class _Own(Executor):
    """The threads as one identity sees them."""

    def __init__(self, threads: FairThreads, owner: str) -> None:
        self._threads, self._owner = threads, owner

    def submit(self, work: Callable[Arguments, Result], /, *args: Any, **more: Any) -> Future[Result]:
        return self._threads.submit(self._owner, lambda: work(*args, **more))
