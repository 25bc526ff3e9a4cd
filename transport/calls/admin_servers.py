"""The admin servers of a cluster, as their callers see them: several addresses, one of which is active.

A standby answers UNAVAILABLE and names the active server in its trailing metadata. Callers follow only to configured
addresses, so no server can lead them elsewhere.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from tandemfeed.transport.calls.channels import status_of

ACTIVE_SERVER_KEY = "tandemfeed-active"  # metadata: host:port of the active admin server
ELSEWHERE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
PAUSE_S = 0.1  # after all servers failed to answer; doubled for each further round
PAUSE_MAX_S = 2.0
TRY_TIMEOUT_S = 3.0  # for one of several servers, because a host that is gone never answers
ADDRESS = re.compile(r"\S+:\d{1,5}")
Result = TypeVar("Result")


def check_addresses(text: str) -> None:
    """Check host:port, or host:port,host:port.

    Raises:
        ValueError: an address is something else.
    """
    for address in text.split(","):
        if not ADDRESS.fullmatch(address.strip()):
            raise ValueError(f"{address!r} is not HOST:PORT, such as 127.0.0.1:7400")


class AdminServers:
    """The addresses, and the one to ask next. Thread-safe.

    Args:
        addresses: host:port, or host:port,host:port.
        pause_s, pause_max_s: the first and the longest pause between rounds in which no server served. It doubles
            each round, and half of it is random, so that processes that lost their server together do not return
            together.
    """

    def __init__(self, addresses: str, *, pause_s: float = PAUSE_S, pause_max_s: float = PAUSE_MAX_S) -> None:
        self.addresses = tuple(address.strip() for address in addresses.split(","))
        self._pause_s, self._pause_max_s = pause_s, pause_max_s
        self._lock = threading.Lock()
        self._current = self.addresses[0]
        self._asked: set[str] = set()
        self._next_pause_s = pause_s

    @property
    def current(self) -> str:
        """The address to ask next."""
        return self._current

    @property
    def are_several(self) -> bool:
        """True if there is more than one address."""
        return len(self.addresses) > 1

    def answered(self, address: str) -> None:
        """Note that this server serves; it is asked first from now on."""
        with self._lock:
            self._current = address
            self._asked.clear()
            self._next_pause_s = self._pause_s

    def move_on(self, address: str, error: BaseException | None = None) -> float:
        """Note that this server does not serve (any more), and make another one `current`.

        Returns:
            How long to wait before asking that one, in seconds: 0 if it was not asked since a server last served.
        """
        with self._lock:
            self._asked.add(address)
            left = [known for known in self.addresses if known not in self._asked]
            if not left:
                self._asked.clear()
                self._current = self._next_of(address)
                pause_s = self._next_pause_s * random.uniform(0.5, 1.0)
                self._next_pause_s = min(2 * self._next_pause_s, self._pause_max_s)
                return pause_s
            named = active_named_by(error)
            self._current = named if named in left else left[0]
            return 0.0

    def _next_of(self, address: str) -> str:
        place = self.addresses.index(address) if address in self.addresses else -1
        return self.addresses[(place + 1) % len(self.addresses)]


def active_named_by(error: BaseException | None) -> str:
    """The active server's address in a standby's answer; "" if the answer names none."""
    trailing = getattr(error, "trailing_metadata", None)
    pairs = trailing() if callable(trailing) else None
    return next((str(value) for key, value in pairs or () if key == ACTIVE_SERVER_KEY), "")


def ask_active(
    servers: AdminServers,
    ask: Callable[[str, float], Result],
    timeout_s: float,
    *,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Ask the servers in turn until one serves, with growing, randomised pauses.

    Args:
        ask: called with an address and a time limit in seconds. With one address it is called once.
        now_s: the monotonic clock.
        sleep: waits so many seconds.

    Raises:
        grpc.RpcError: a refusal, or the last failure when the time is over.
    """
    if not servers.are_several:
        return ask(servers.current, timeout_s)
    give_up_at_s = now_s() + timeout_s
    while True:
        address, left_s = servers.current, give_up_at_s - now_s()
        try:
            result = ask(address, min(TRY_TIMEOUT_S, max(left_s, 0.1)))
        except grpc.RpcError as error:
            if not is_elsewhere(error):
                raise
            pause_s = servers.move_on(address, error)
            if now_s() + pause_s >= give_up_at_s:
                raise
            sleep(pause_s)
        else:
            servers.answered(address)
            return result


def is_elsewhere(error: grpc.RpcError) -> bool:
    """True if another server may serve the failed request."""
    return status_of(error)[0] in ELSEWHERE
