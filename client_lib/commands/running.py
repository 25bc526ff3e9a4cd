"""What the commands of clients have in common: the connection, signals, and errors as one line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from tandemfeed.client_lib.client import LOGIN_TIMEOUT_S, Client, connect
from tandemfeed.client_lib.commands.outputs import OutputRefused
from tandemfeed.client_lib.errors import ClientError
from tandemfeed.client_lib.stream.subscription import Subscription
from tandemfeed.transport.process_shell import Connection

EXIT_REFUSED = 2


class Interruption:
    """Turns SIGTERM and SIGINT into a clean end: of the process while it connects, later of the subscription."""

    def __init__(self) -> None:
        self._subscription: Subscription[Any] | None = None
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        self._old = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def set_target(self, subscription: Subscription[Any]) -> None:
        """Make later signals stop this subscription."""
        self._subscription = subscription

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._subscription is None:
            raise SystemExit(0)
        self._subscription.stop()


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
    """Run a command; returns its exit status, 2 if the cluster refuses or the output cannot be written."""
    try:
        return work()
    except ClientError as refused:
        print(f"tandemfeed {name}: {type(refused).__name__}: {refused}", file=sys.stderr)
        return EXIT_REFUSED
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, OutputRefused, ValueError) as failed:
        print(f"tandemfeed {name}: {failed}", file=sys.stderr)
        return EXIT_REFUSED
