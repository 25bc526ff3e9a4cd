"""The last word: one datagram that tells the admin server of an adapter's death, ahead of the call that surely does.

A call is half a dozen switches of threads in two processes. On a machine that is busy with freeing a dead process's
memory they take milliseconds, in which nobody is active; a datagram takes one switch. It may be lost or kept away by a
firewall: then the call tells. It is heard at the server's own port, by UDP.

A word names the start of the adapter that has ended, authenticated by HMAC-SHA256 (RFC 2104) under a key that only that
start was given, over TLS. To hear it twice, or later, changes nothing: no incarnation comes again.
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

LOG = logging.getLogger("transport.last_word")
MAGIC = b"TFW1"
WORD = struct.Struct("<4sI32s")  # magic, incarnation, HMAC-SHA256 of both
KEY_SIZE = 32


class LastWords:
    """The server's side: gives every start of an adapter its key, and hears words said under it.

    The secret is this server's, of this run: who registers anew is given a new key.
    """

    def __init__(self) -> None:
        self._secret = os.urandom(KEY_SIZE)
        self._stop_fd = -1
        self._thread: threading.Thread | None = None

    def key(self, incarnation: int) -> bytes:
        """What this start of an adapter says its last word under; 32 bytes."""
        return hmac.digest(self._secret, incarnation.to_bytes(4, "little"), "sha256")

    def listen(self, endpoint: str, on_word: Callable[[int], None]) -> None:
        """Hear words at host:port from now on; without that port only the calls tell.

        Args:
            on_word: called in a thread of its own with the incarnation that has ended.
        """
        host, _, port = endpoint.rpartition(":")
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_DGRAM
            )[0]
            hearing = socket.socket(family, kind, protocol)
            hearing.bind(address)
        except OSError as refused:
            LOG.warning("no last words are heard: a kill of an adapter is noticed later", extra={"why": str(refused)})
            return
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._hear, args=(hearing, on_word), name="last-words", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hear nothing more."""
        if self._thread is not None:
            os.eventfd_write(self._stop_fd, 1)
            self._thread.join()
            os.close(self._stop_fd)

    def understand(self, datagram: bytes) -> int | None:
        """The incarnation that has ended; None if nobody who was given a key here says so."""
        if len(datagram) != WORD.size:
            return None
        magic, incarnation, seal = WORD.unpack(datagram)
        if magic != MAGIC or not hmac.compare_digest(seal, _seal(self.key(incarnation), incarnation)):
            return None
        return int(incarnation)

    def _hear(self, hearing: socket.socket, on_word: Callable[[int], None]) -> None:
        with hearing:
            while True:
                ready, _, _ = select.select([hearing.fileno(), self._stop_fd], [], [])
                if self._stop_fd in ready:
                    return
                incarnation = self.understand(hearing.recv(WORD.size + 1))
                if incarnation is not None:
                    on_word(incarnation)


class LastWordSender:
    """The adapter's side. Made while there is time: it finds the server's address.

    Args:
        server: host:port of the admin server.

    Raises:
        OSError: its name is not known.
    """

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.connect(address)

    def say(self, key: bytes, incarnation: int) -> None:
        """This start of the adapter has ended. Never waits; whether it is heard is not known."""
        try:
            self._socket.send(WORD.pack(MAGIC, incarnation, _seal(key, incarnation)))
        except OSError as refused:
            LOG.warning("the last word could not be said", extra={"why": str(refused)})

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()


def _seal(key: bytes, incarnation: int) -> bytes:
    return hmac.digest(key, MAGIC + incarnation.to_bytes(4, "little"), "sha256")
