"""The start of threads: each has a name, what it runs, and what its unexpected end means.

A thread that dies of an exception must not leave a process that looks healthy. So its starter says what follows:
the end of the process, a report in its health, or a call that passes the failure to whom it concerns.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable

LOG = logging.getLogger("tandemfeed.threads")
OnFailure = Callable[[str, BaseException], object]
EXIT_THREAD_FAILED = 70  # EX_SOFTWARE of sysexits(3)
_failed: dict[str, BaseException] = {}  # only ever added to; a dict is safe to read from any thread
_watchers: list[Callable[[], object]] = []  # likewise


def start_thread(
    run: Callable[[], object], name: str, on_failure: OnFailure, *, daemon: bool = True
) -> threading.Thread:
    """Start a thread.

    Args:
        run: what it runs; its return is the expected end.
        name: shown in logs, health and by debuggers.
        on_failure: called in the thread with its name and the exception that `run` raised: `end_process`,
            `mark_unhealthy`, or a function that passes the failure on.
        daemon: the process may end while the thread runs.
    """

    def guarded() -> None:
        try:
            run()
        except BaseException as failure:  # noqa: BLE001  # whatever ended it, the owner must learn of it
            on_failure(name, failure)

    thread = threading.Thread(target=guarded, name=name, daemon=daemon)
    thread.start()
    return thread


def mark_unhealthy(name: str, failure: BaseException) -> None:
    """The process continues without this thread; its health says so from now on."""
    LOG.error("thread failed; this process is unhealthy", extra={"failed_thread": name}, exc_info=failure)
    _record(name, failure)


def end_process(name: str, failure: BaseException) -> None:
    """The process cannot work without this thread: stop it, as SIGTERM would. `failed_threads` has the reason."""
    LOG.critical("thread failed; stopping this process", extra={"failed_thread": name}, exc_info=failure)
    _record(name, failure)
    os.kill(os.getpid(), signal.SIGTERM)


def watch_threads(on_failed: Callable[[], object]) -> None:
    """Call a function, in the thread that failed, whenever `failed_threads` has one more; now if it has any."""
    _watchers.append(on_failed)
    if _failed:
        on_failed()


def _record(name: str, failure: BaseException) -> None:
    _failed[name] = failure
    for on_failed in list(_watchers):
        try:
            on_failed()
        except Exception:  # such as that of a server that has ended
            LOG.exception("could not report a failed thread", extra={"failed_thread": name})


def failed_threads() -> dict[str, BaseException]:
    """The threads that failed, by name, with what ended them."""
    return dict(_failed)


def exit_status(status: int = 0) -> int:
    """The exit status of a process that stopped: not 0 if one of its threads failed, and the reason is logged.

    Args:
        status: if none failed.
    """
    for name, failure in _failed.items():
        LOG.error("ended because thread %s failed: %s", name, failure or type(failure).__name__)
    return status or EXIT_THREAD_FAILED if _failed else status
