"""The admin server's side: gives every adapter start its key, receives death notices, and sends grant notices."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from tandemfeed.runtime.threads import mark_unhealthy, start_thread
from tandemfeed.transport.calls.notices import TAKEOVER_S
from tandemfeed.transport.calls.notices.layout import (
    DEATH_SIZE,
    KEY_SIZE,
    GrantNotice,
    claimed_death,
    is_authentic,
    seal_grant,
)
from tandemfeed.transport.calls.notices.sockets import address_of, bound_socket

LOG = logging.getLogger("tandemfeed.transport.calls.notices.server")


class ServerNotices:
    """Notices to and from adapters.

    The secret belongs to this run of the server; an adapter that registers again gets a new key.

    Args:
        now_s: the monotonic clock.
    """

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._secret = os.urandom(KEY_SIZE)
        self._socket: socket.socket | None = None
        self._stop_fd = -1
        self._thread: threading.Thread | None = None

    def key(self, incarnation: int) -> bytes:
        """The key for this adapter start's notices; 32 bytes."""
        return hmac.digest(self._secret, incarnation.to_bytes(4, "little"), "sha256")

    def listen(self, endpoint: str, on_death: Callable[[int], Callable[[], None]]) -> None:
        """Use host:port from now on. If the port is not available, only calls report deaths and grants.

        Args:
            on_death: called in a separate thread with the incarnation that has ended. What it returns is called there
                a little later, because a takeover needs the processors first.
        """
        try:
            self._socket = bound_socket(endpoint)
        except OSError as refused:
            extra = {"why": str(refused)}
            LOG.warning("cannot use the UDP port; a killed adapter will be noticed and replaced later", extra=extra)
            return
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = start_thread(
            partial(self._receive, self._socket, on_death), "death-notices", mark_unhealthy
        )  # without it, calls still report deaths

    def close(self) -> None:
        """Finish what is left, and stop receiving and sending. A second call does nothing."""
        if self._thread is not None:
            os.eventfd_write(self._stop_fd, 1)
            self._thread.join()
            os.close(self._stop_fd)
            self._thread = None

    def granter(self, endpoint: str) -> Callable[[GrantNotice], None]:
        """A function that sends grant notices to an adapter. It never waits, and does not know whether they arrive.

        An adapter may attend before `listen`: calls are served first, because they choose the port.

        Args:
            endpoint: host:port of the adapter. This resolves the name, and may wait for that.
        """
        family = socket.AF_UNSPEC if self._socket is None else self._socket.family
        try:
            address = address_of(endpoint, family)
        except (OSError, ValueError) as unknown:  # ValueError: the port, or the name, which the adapter chose
            LOG.info("cannot send grant notices to an adapter", extra={"endpoint": endpoint, "why": str(unknown)})
            return _send_nothing
        return lambda notice: self._send(notice, address)

    def verify_death(self, datagram: bytes) -> int | None:
        """The incarnation that has ended; None if the datagram is not an authentic death notice."""
        incarnation = claimed_death(datagram)
        return incarnation if incarnation is not None and is_authentic(self.key(incarnation), datagram) else None

    def _send(self, notice: GrantNotice, address: tuple[object, ...]) -> None:
        if (sender := self._socket) is not None:
            with contextlib.suppress(OSError):  # no route, or closed meanwhile: the order follows in any case
                sender.sendto(seal_grant(self.key(notice.incarnation), notice), socket.MSG_DONTWAIT, address)

    def _receive(self, receiver: socket.socket, on_death: Callable[[int], Callable[[], None]]) -> None:
        rest = _Rest(self._now_s)
        heard = [receiver.fileno(), self._stop_fd]
        with receiver:
            while self._stop_fd not in (ready := _readable(heard, rest.pause_s())):
                if ready and (incarnation := self.verify_death(receiver.recv(DEATH_SIZE + 1))) is not None:
                    with _logged("could not report the death of an adapter"):
                        rest.add(on_death(incarnation))
                if rest.pause_s() == 0:
                    rest.call_all()
            rest.call_all()


class _Rest:
    """What is left to be done about deaths. It is due some time after the first, whatever else arrives."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._actions: list[Callable[[], None]] = []
        self._due_at_s = 0.0

    def add(self, action: Callable[[], None]) -> None:
        if not self._actions:
            self._due_at_s = self._now_s() + TAKEOVER_S
        self._actions.append(action)

    def pause_s(self) -> float | None:
        """How long it may wait; None: there is nothing to do."""
        return max(0.0, self._due_at_s - self._now_s()) if self._actions else None

    def call_all(self) -> None:
        while self._actions:
            with _logged("could not finish what the death of an adapter requires"):
                self._actions.pop(0)()


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log a failure, such as of a full disk, and continue: later deaths must be heard."""
    try:
        yield
    except Exception:
        LOG.exception(what)


def _readable(descriptors: list[int], timeout_s: float | None) -> list[int]:
    """As of `select`, which refuses descriptors from 1,024 on."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if timeout_s is None else timeout_s * 1_000)]


def _send_nothing(_: GrantNotice) -> None:
    """There is no way to this adapter by datagram."""
