"""The death notice: one datagram that reports an adapter's death to the admin server, ahead of the reliable call.

A call takes half a dozen thread switches in two processes. On a machine that is busy freeing a dead process's memory,
they take milliseconds, during which no adapter is active. A datagram takes one switch. If it is lost, or a firewall
stops it, the call still reports the death. The server receives it on its own port, over UDP.

A death notice names the adapter start that has ended. HMAC-SHA256 (RFC 2104) authenticates it under a key that only
this start received, over TLS. A repeated or late notice changes nothing, because incarnations are never reused.
"""

from __future__ import annotations

import hmac
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Callable

LOG = logging.getLogger("tandemfeed.transport.calls.death_notice")
MAGIC = b"TFW1"
NOTICE = struct.Struct("<4sI32s")  # magic, incarnation, HMAC-SHA256 of both
KEY_SIZE = 32


class DeathNoticeReceiver:
    """The server's side: gives every adapter start its key, and receives notices authenticated with it.

    The secret belongs to this run of the server; an adapter that registers again gets a new key.
    """

    def __init__(self) -> None:
        self._secret = os.urandom(KEY_SIZE)
        self._stop_fd = -1
        self._thread: threading.Thread | None = None

    def key(self, incarnation: int) -> bytes:
        """The key for this adapter start's death notice; 32 bytes."""
        return hmac.digest(self._secret, incarnation.to_bytes(4, "little"), "sha256")

    def listen(self, endpoint: str, on_notice: Callable[[int], None]) -> None:
        """Receive notices at host:port from now on. If the port is not available, only calls report deaths.

        Args:
            on_notice: called in a separate thread with the incarnation that has ended.
        """
        host, _, port = endpoint.rpartition(":")
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_DGRAM
            )[0]
            receiver = socket.socket(family, kind, protocol)
            receiver.bind(address)
        except OSError as refused:
            LOG.warning(
                "cannot receive death notices; a killed adapter will be noticed later", extra={"why": str(refused)}
            )
            return
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(
            target=self._receive, args=(receiver, on_notice), name="death-notices", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop receiving."""
        if self._thread is not None:
            os.eventfd_write(self._stop_fd, 1)
            self._thread.join()
            os.close(self._stop_fd)

    def verify(self, datagram: bytes) -> int | None:
        """The incarnation that has ended; None if the datagram is not authentic."""
        if len(datagram) != NOTICE.size:
            return None
        magic, incarnation, seal = NOTICE.unpack(datagram)
        if magic != MAGIC or not hmac.compare_digest(seal, _seal(self.key(incarnation), incarnation)):
            return None
        return int(incarnation)

    def _receive(self, receiver: socket.socket, on_notice: Callable[[int], None]) -> None:
        with receiver:
            while True:
                ready, _, _ = select.select([receiver.fileno(), self._stop_fd], [], [])
                if self._stop_fd in ready:
                    return
                incarnation = self.verify(receiver.recv(NOTICE.size + 1))
                if incarnation is not None:
                    on_notice(incarnation)


class DeathNoticeSender:
    """The adapter's side. Create it early, because it resolves the server's name.

    Args:
        server: host:port of the admin server.

    Raises:
        OSError: the name cannot be resolved.
    """

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.connect(address)

    def send(self, key: bytes, incarnation: int) -> None:
        """Report that this adapter start has ended. Never waits, and does not know whether the notice arrives."""
        try:
            self._socket.send(NOTICE.pack(MAGIC, incarnation, _seal(key, incarnation)))
        except OSError as refused:
            LOG.warning("cannot send the death notice", extra={"why": str(refused)})

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _seal(key: bytes, incarnation: int) -> bytes:
    return hmac.digest(key, MAGIC + incarnation.to_bytes(4, "little"), "sha256")
