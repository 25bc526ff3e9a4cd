"""Multicast by the kernel's own UDP sockets: no thread stands between the network and the caller.

The kernel's receive buffer is the whole queue. Its default has room for some 100 full datagrams, so a larger one is
requested; `net.core.rmem_max` limits what a process without privileges gets (socket(7), udp(7), ip(7)).

Never blocks for longer than SEND_WAIT_MS, whatever the interface does, and never raises because of the network: what it
cannot send is lost, as anywhere else on the way.
"""

from __future__ import annotations

import logging
import socket
from array import array
from functools import cache

from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT, DATAGRAM_SIZE_MAX
from tandemfeed.transport.multicast.groups import BadGroup, check_interface, parse_group
from tandemfeed.transport.multicast.sizes import DatagramTooLong, check_size_max
from tandemfeed.transport.multicast.sockets import RECEIVE_QUEUE_COUNT_MAX

LOG = logging.getLogger("tandemfeed.transport.multicast.udp")
RECEIVE_BUFFER_SIZE = 8 << 20  # room for 7,000 full datagrams: a third of a second at 20,000 of them a second
RECEIVE_BUFFER_SIZE_MIN = 1 << 20  # with less, a pause of some milliseconds loses datagrams of a fast stream
SEND_BUFFER_SIZE = 2 << 20  # what an adapter sends in one turn, to all its groups
SIZE_ON_THE_BOOKS = 1_152  # of a full datagram: the kernel counts it as 2,304 bytes, and doubles what was requested
SEND_WAIT_MS = 5
READ_SIZE = DATAGRAM_SIZE_MAX + 1  # one more: whoever opens a datagram refuses one that is too long
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32  # asm-generic/socket.h; the module has no names for them
IP_MULTICAST_ALL = 49  # linux/in.h


class UdpReceiver:
    """Receives one group on one interface, and nothing of other groups, even on the same port.

    Args:
        interface: IP address of the interface to join on.
        group: "239.x.y.z:port".
        receive_queue_count_max: full datagrams kept for a slow reader, up to RECEIVE_BUFFER_SIZE.
    """

    def __init__(self, interface: str, group: str, *, receive_queue_count_max: int = RECEIVE_QUEUE_COUNT_MAX) -> None:
        host, port = parse_group(group)
        check_interface(interface)
        self.group = group
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            size = min(RECEIVE_BUFFER_SIZE, receive_queue_count_max * SIZE_ON_THE_BOOKS)
            _request_buffer(self._socket, SO_RCVBUFFORCE, socket.SO_RCVBUF, size)
            self._socket.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)  # not what others joined elsewhere
            self._socket.bind((host, port))
            membership = socket.inet_aton(host) + socket.inet_aton(interface)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        except BaseException as failed:  # also an interrupt, whose traceback would keep the group joined
            self._socket.close()
            if isinstance(failed, OSError):
                raise BadGroup(f"cannot receive {group} on interface {interface}: {failed}") from failed
            raise
        granted = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        if granted < min(size, RECEIVE_BUFFER_SIZE_MIN):
            _warn_of_small_buffer(granted)
        self.socket = self._socket.fileno()
        self._recvfrom = self._socket.recvfrom
        self._sender: tuple[str, int] | None = None

    def receive(self) -> bytes | None:
        """The next datagram's body, or None if there is none. Never blocks."""
        try:
            datagram, self._sender = self._recvfrom(READ_SIZE)
        except BlockingIOError:
            return None
        return datagram

    def may_have_more(self) -> bool:
        """True: to receive none costs as little as to ask."""
        return True

    @property
    def last_sender(self) -> str:
        """The "IPV4:PORT" of the last datagram's sender, as the network gives it; empty before the first."""
        return "" if self._sender is None else f"{self._sender[0]}:{self._sender[1]}"

    def close(self) -> None:
        """Leave the group."""
        self._socket.close()


class UdpSender:
    """Sends datagrams to any group from one interface.

    Args:
        datagram_size_max: bytes; a larger datagram raises `DatagramTooLong`.
    """

    def __init__(self, interface: str, *, datagram_size_max: int = DATAGRAM_SIZE_DEFAULT) -> None:
        check_size_max(datagram_size_max)
        check_interface(interface)
        self._size_max = datagram_size_max
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
            wait = array("l", (0, SEND_WAIT_MS * 1_000)).tobytes()
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
            _request_buffer(self._socket, SO_SNDBUFFORCE, socket.SO_SNDBUF, SEND_BUFFER_SIZE)
            self._socket.bind((interface, 0))
        except BaseException as failed:
            self._socket.close()
            if isinstance(failed, OSError):
                raise BadGroup(f"cannot send on interface {interface}: {failed}") from failed
            raise
        self._sendto = self._socket.sendto
        self._flags = 0
        self._addresses: dict[bytes, tuple[str, int]] = {}  # of checked groups; a process sends to few

    def send(self, group: bytes, datagram: bytes) -> None:
        """Send one datagram to b"239.x.y.z:port". If the network does not take it, it is lost.

        Raises:
            DatagramTooLong, BadGroup: nothing was sent.
        """
        address = self._addresses.get(group)
        if address is None:
            address = self._addresses[group] = parse_group(group.decode("ascii", "replace"))
        if len(datagram) > self._size_max:
            raise DatagramTooLong(f"the datagram has {len(datagram)} bytes; at most {self._size_max} are allowed")
        try:
            self._sendto(datagram, self._flags, address)
        except OSError:  # the interface is down, has no route, or is stuck: then nothing waits for it again
            self._flags = socket.MSG_DONTWAIT
        else:
            self._flags = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _request_buffer(made: socket.socket, forced: int, ordinary: int, size: int) -> None:
    """Request a buffer, over the system's limit if this process has the privilege."""
    try:
        made.setsockopt(socket.SOL_SOCKET, forced, size)
    except PermissionError:
        made.setsockopt(socket.SOL_SOCKET, ordinary, size)


@cache
def _warn_of_small_buffer(granted: int) -> None:
    """Once for each size."""
    LOG.warning(
        "the kernel grants small receive buffers, so short pauses lose datagrams; raise net.core.rmem_max with sysctl, "
        "or receive with ZeroMQ",
        extra={"granted_bytes": granted, "wanted_bytes": RECEIVE_BUFFER_SIZE},
    )
