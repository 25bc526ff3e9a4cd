"""Tasks of Spark that stay while the query runs, and take their work from the driver, one piece after another.

To start a task costs Spark 80 ms: closures, a stage, a broadcast, a Python worker's new context. That is more than the
work of a small commit, and each commit has one or two rounds of work. A piece of work for a task that stays costs less
than a millisecond. Spark still decides where tasks run, and starts another one for each that dies.

The driver listens on a socket in the journal's folder, which only hosts have where the tasks can append. Invariant: a
piece of work is given to one living task at a time; one whose task dies is given to another, `TASK_TRIES` times in all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeAlias

from tandemfeed.runtime.threads import start_thread

LOG = logging.getLogger(__name__)
SOCKET_NAME = "tasks.socket"
ENDING = "the job is ending"
WAITING_MAX = 64  # tasks that have connected and were not yet accepted
END_S = 2.0  # how long idle tasks may take to end; Spark, which logs errors if it is stopped before, ends others
TASK_TRIES = 4  # as Spark's own, on a cluster
Work: TypeAlias = Callable[[], Any]  # which can be pickled, like its result


class TasksFailed(Exception):
    """Work cannot be done; the text says why."""


class TaskPool:
    """The driver's side. `run` is for one thread at a time; any thread may call `close`.

    Args:
        folder: of the journal.
        prepare: called in each task before its first work.
        start: runs tasks with what it is given; returns what they returned when all have ended. Called in a thread.
    """

    def __init__(self, folder: Path, prepare: Callable[[], None], start: Callable[[Stay], list[str]]) -> None:
        self._folder, self._stay, self._start = folder, Stay(folder, prepare), start
        (folder / SOCKET_NAME).unlink(missing_ok=True)  # of a killed driver
        self._listener = socket.socket(socket.AF_UNIX)
        with _short_path(folder) as path:
            self._listener.bind(path)
        (folder / SOCKET_NAME).chmod(0o600)  # a task executes what it receives
        self._listener.listen(WAITING_MAX)
        self._idle: list[Connection] = []
        self._busy: dict[Connection, _Piece] = {}
        self._in_use = threading.Lock()
        self._woken, self._waker = socket.socketpair()  # the tasks have ended, or the pool closes
        self._woken.setblocking(False)
        self._is_closing, self._has_ended, self._why, self._done_count = False, False, "", 0
        self._run_tasks()

    def run(self, work: Sequence[Work]) -> list[Any]:
        """Have tasks do pieces of work, side by side if there are several tasks; returns their results in order.

        Raises:
            TasksFailed: no task can run, work raised an error or ended each task that tried it, or the pool was closed.
        """
        with self._in_use:
            if self._is_closing:
                raise TasksFailed(ENDING)
            pieces = [_Piece(each) for each in work]
            waiting = deque(pieces)
            while not all(piece.is_done for piece in pieces):
                self._give(waiting)
                ready = wait([self._listener, self._woken, *self._busy, *self._idle])
                if self._listener in ready:
                    self._idle.append(Connection(self._listener.accept()[0].detach()))
                for connection in ready:
                    if isinstance(connection, Connection):
                        self._take(connection, waiting)
                if self._woken in ready:  # last, because tasks may have ended after their work
                    self._on_woken()
            return [piece.result for piece in pieces]

    def close(self) -> None:
        """End the tasks: each after the work that it has. A second call does nothing."""
        self._is_closing = True
        self._wake()
        with self._in_use:
            if self._listener.fileno() < 0:
                return
            self._listener.close()
            (self._folder / SOCKET_NAME).unlink(missing_ok=True)
            for connection in (*self._idle, *self._busy):
                connection.close()
            self._woken.close()
            self._waker.close()
        self._tasks.join(END_S)

    def _give(self, waiting: deque[_Piece]) -> None:
        while waiting and self._idle:
            connection, piece = self._idle.pop(), waiting.popleft()
            try:
                connection.send(piece.work)
            except OSError:  # the task died before it had the work
                connection.close()
                waiting.appendleft(piece)
            else:
                self._busy[connection] = piece

    def _take(self, connection: Connection, waiting: deque[_Piece]) -> None:
        """A task has done its work, or has died."""
        piece = self._busy.pop(connection, None)
        try:
            result = connection.recv()
        except (EOFError, OSError):
            connection.close()
            if piece is None:
                self._idle.remove(connection)
                return
            piece.try_count += 1
            if piece.try_count == TASK_TRIES:
                raise TasksFailed(f"the work of {TASK_TRIES} tasks ended with their death; see Spark's log") from None
            waiting.appendleft(piece)
        else:
            assert piece is not None, "only a task that has work answers"
            if isinstance(result, _Raised):
                raise TasksFailed(result.text)
            piece.result, piece.is_done = result, True
            self._done_count += 1
            self._idle.append(connection)

    def _on_woken(self) -> None:
        self._woken.recv(WAITING_MAX)
        if self._is_closing:
            raise TasksFailed(ENDING)
        if not self._has_ended:
            return
        if not self._done_count:
            raise TasksFailed(self._why)
        LOG.warning("Spark ended the tasks; starting them again", extra={"reason": self._why})
        self._run_tasks()

    def _run_tasks(self) -> None:
        self._has_ended, self._done_count = False, 0
        self._tasks = start_thread(self._run_to_end, "tasks", self._on_failure)

    def _run_to_end(self) -> None:
        self._end("; ".join(dict.fromkeys(self._start(self._stay))) or "all tasks have ended")

    def _on_failure(self, _name: str, error: BaseException) -> None:
        """Spark raised an error, of any kind; `run` raises it in the driver's thread."""
        self._end(str(error) or type(error).__name__)

    def _end(self, why: str) -> None:
        self._why, self._has_ended = why, True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # closed meanwhile
            self._waker.send(b"\0")


@dataclass(slots=True)
class _Piece:
    """Work for a task."""

    work: Work
    result: Any = None
    is_done: bool = False
    try_count: int = 0


@dataclass(frozen=True, slots=True)
class _Raised:
    """The traceback of an error that work raised."""

    text: str


@dataclass(frozen=True, slots=True)
class Stay:
    """A task that does what the driver sends, until the driver closes the connection.

    Attributes:
        folder: of the journal.
        prepare: called before the first work.
    """

    folder: Path
    prepare: Callable[[], None]

    def __call__(self, _: Iterator[int]) -> Iterator[str]:
        """Work; returns why it could not begin, if so."""
        self.prepare()
        try:
            connection = self.connect()
        except OSError as error:
            yield (
                f"{self.folder}: the executor's host {socket.gethostname()} does not have the driver's socket "
                f"({error}): tasks must number on the host of the source journal, so start Spark's workers there"
            )
            return
        with connection, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the driver has ended
            while True:
                connection.send(_result(connection.recv()))

    def connect(self) -> Connection:
        """Connect to the driver."""
        client = socket.socket(socket.AF_UNIX)
        try:
            with _short_path(self.folder) as path:
                client.connect(path)
        except BaseException:
            client.close()
            raise
        return Connection(client.detach())


def _result(work: Work) -> Any:
    try:
        return work()
    except Exception:  # noqa: BLE001  # the driver raises it
        return _Raised(traceback.format_exc())


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A path of the socket in a folder: an address has at most 107 bytes, and a folder's path may be longer."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{opened}/{SOCKET_NAME}"
    finally:
        os.close(opened)
