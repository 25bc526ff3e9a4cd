"""The adapter's side: its lifeline sends the death notice, its loop receives grant notices."""

from __future__ import annotations

import logging

from tandemfeed.transport.calls.notices.layout import GRANT_SIZE, GrantNotice, open_grant, seal_death
from tandemfeed.transport.calls.notices.sockets import address_of, bound_socket, connected_socket

LOG = logging.getLogger("tandemfeed.transport.calls.notices.adapter")


class DeathNoticeSender:
    """Sends one notice. Create it early, because it resolves the server's name.

    Args:
        server: host:port of the admin server.

    Raises:
        OSError: the name cannot be resolved.
    """

    def __init__(self, server: str) -> None:
        self._socket = connected_socket(server)

    def send(self, key: bytes, incarnation: int) -> None:
        """Report that this adapter start has ended. Never waits, and does not know whether the notice arrives."""
        notice = seal_death(key, incarnation)
        try:
            try:
                self._socket.send(notice)
            except ConnectionRefusedError:  # the answer to an earlier notice; this one was not sent
                self._socket.send(notice)
        except OSError as refused:
            LOG.warning("cannot send the death notice", extra={"why": str(refused)})

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class GrantNoticeReceiver:
    """Receives the grant notices of the admin server at which this adapter is registered.

    Args:
        endpoint: host:port of this adapter's calls; the same UDP port is used.

    Raises:
        OSError: the port is not available.
    """

    def __init__(self, endpoint: str) -> None:
        self._socket = bound_socket(endpoint)
        try:
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self._start = (0, b"")  # no start has a key yet

    def fileno(self) -> int:
        """Readable while there are datagrams."""
        return self._socket.fileno()

    def follow(self, server: str, incarnation: int, key: bytes) -> None:
        """Accept only what this server sends to this start of the adapter. From any thread.

        Args:
            server: host:port of the admin server. The kernel drops what other addresses send, if the name is known.
            key: of this start; empty: the server sends no notices.
        """
        self._start = (incarnation, key)
        try:
            self._socket.connect(address_of(server, self._socket.family))
        except OSError as unknown:
            LOG.warning("cannot receive grant notices; a takeover will take longer", extra={"why": str(unknown)})

    def take(self, count_max: int) -> list[GrantNotice]:
        """The authentic notices to this start among the next datagrams, of which it reads at most `count_max`."""
        taken = []
        incarnation, key = self._start
        for _ in range(count_max):
            try:
                datagram = self._socket.recv(GRANT_SIZE + 1)
            except OSError:  # nothing is there, or an earlier server's port is closed
                break
            notice = open_grant(key, datagram) if key else None
            if notice is not None and notice.incarnation == incarnation:
                taken.append(notice)
        return taken

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
