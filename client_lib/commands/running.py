"""What the commands of clients have in common: the connection, signals, and errors as one line."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from tandemfeed.client_lib.client import LOGIN_TIMEOUT_S, Client, connect
from tandemfeed.client_lib.commands.outputs import OutputRefused
from tandemfeed.client_lib.errors import ClientError
from tandemfeed.client_lib.stream.subscription import Subscription
from tandemfeed.runtime.signals import StopSignal
from tandemfeed.runtime.threads import EXIT_THREAD_FAILED, exit_status, mark_unhealthy, start_thread
from tandemfeed.transport.process_shell import Connection

EXIT_REFUSED = 2


class Interruption:
    """Turns SIGTERM and SIGINT into a clean end: of the process while it connects, later of the subscription.

    A thread waits for the signal; the handler only wakes it. Make it in the main thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscription: Subscription[Any] | None = None
        self._is_over = False

    def __enter__(self) -> Interruption:
        self._signal = StopSignal()
        self._thread = start_thread(self._wait, "tandemfeed-interruption", _end_without_cleaning_up)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
        self._signal.set()
        self._thread.join()
        self._signal.close()

    def set_target(self, subscription: Subscription[Any]) -> None:
        """Make later signals stop this subscription."""
        with self._lock:
            self._subscription = subscription

    @property
    def is_stopped(self) -> bool:
        """True if a signal has come."""
        return self._signal.is_set

    def _wait(self) -> None:
        self._signal.wait()
        with self._lock:
            if self._is_over:
                return
            if self._subscription is None:  # nothing was received, so nothing has to be finished
                os._exit(0)
            self._subscription.stop()


def _end_without_cleaning_up(name: str, failure: BaseException) -> None:
    """The thread that would stop the process has failed."""
    mark_unhealthy(name, failure)
    os._exit(EXIT_THREAD_FAILED)


def client_of(connection: Connection, *, timeout_s: float = LOGIN_TIMEOUT_S) -> Client:
    """A client of the cluster, with the options of the command line.

    Args:
        timeout_s: of a login.
    """
    return connect(
        admin=connection.admin,
        ca=connection.ca_pem,
        identity=connection.identity,
        secret=connection.credential,
        interface=connection.multicast.interface,
        datagrams=connection.multicast.datagrams,
        timeout_s=timeout_s,
    )


def run_command(name: str, work: Callable[[], int]) -> int:
    """Run a command; returns its exit status: 2 if the cluster refuses or the output cannot be written, and not 0 if
    one of its threads failed."""
    try:
        return exit_status(work())
    except ClientError as refused:
        print(f"tandemfeed {name}: {type(refused).__name__}: {refused}", file=sys.stderr)
        return EXIT_REFUSED
    except BrokenPipeError:  # the reader of the output has closed it
        raise
    except (OSError, OutputRefused, ValueError) as failed:
        print(f"tandemfeed {name}: {failed}", file=sys.stderr)
        return EXIT_REFUSED
