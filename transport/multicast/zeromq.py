"""Multicast by ZeroMQ (ZMQ_DGRAM on udp://): one body out, one body in, nothing in between.

A thread of libzmq stands between the socket and the caller, in either direction: it empties the kernel's buffer at
once, into a queue that is as long as the caller wants.

Never sends what libzmq cannot carry: libzmq truncates a body of more than 8,192 bytes at the receiver, and a much
longer one crashes the sending process. Invariant: `send` raises before such a body reaches libzmq.
"""

from __future__ import annotations

from typing import Any

import zmq

from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT
from tandemfeed.transport.multicast.groups import BadGroup, check_interface, parse_group
from tandemfeed.transport.multicast.sizes import DatagramTooLong, check_size_max
from tandemfeed.transport.multicast.sockets import RECEIVE_QUEUE_COUNT_MAX

# Beyond this, `send` waits for libzmq's I/O thread, which never waits for the network: a brake on a runaway sender.
SEND_QUEUE_COUNT_MAX = 10_000


class ZeromqReceiver:
    """Receives one group on one interface.

    If any socket of a host joined the group, the kernel delivers a datagram to every socket of the host bound to its
    port. So each group needs a different port; the admin server's settings enforce that.

    Args:
        context: the process's ZeroMQ context.
        interface: IP address of the interface to join on.
        group: "239.x.y.z:port".
        receive_queue_count_max: datagrams kept for a slow reader; later ones are dropped, as networks do.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        interface: str,
        group: str,
        *,
        receive_queue_count_max: int = RECEIVE_QUEUE_COUNT_MAX,
    ) -> None:
        host, port = parse_group(group)
        check_interface(interface)
        self.group = group
        self.socket: zmq.Socket[bytes] = context.socket(zmq.SocketType.DGRAM)
        try:
            self.socket.setsockopt(zmq.LINGER, 0)
            # The high-water mark counts datagrams, although each is two frames (sender's address, body).
            self.socket.setsockopt(zmq.RCVHWM, receive_queue_count_max)
            self.socket.bind(f"udp://{interface};{host}:{port}")
        except BaseException as failed:  # also an interrupt, whose traceback would keep the group joined
            self.socket.close(linger=0)
            if isinstance(failed, zmq.ZMQError):
                raise BadGroup(f"cannot receive {group} on interface {interface}: {failed}") from failed
            raise
        self._recv = self.socket.recv
        self._polled = [(self.socket, zmq.POLLIN)]
        self._sender = b""

    def receive(self) -> bytes | None:
        """The next datagram's body, or None if there is none. Never blocks."""
        try:
            self._sender = self._recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        body: bytes = self._recv()
        return body

    def may_have_more(self) -> bool:
        """True if another datagram waits: cheaper than to receive none, or to ask for the socket's events."""
        return bool(zmq.zmq_poll(self._polled, 0))

    @property
    def last_sender(self) -> str:
        """The "IPV4:PORT" of the last datagram's sender, as the network gives it; empty before the first."""
        return self._sender.rstrip(b"\0").decode("ascii", "replace")  # libzmq's frame ends with a zero byte

    def close(self) -> None:
        """Leave the group."""
        self.socket.close()


class ZeromqSender:
    """Sends datagrams to any group from one interface.

    Args:
        datagram_size_max: bytes; a larger datagram raises `DatagramTooLong`.
    """

    def __init__(
        self, context: zmq.Context[Any], interface: str, *, datagram_size_max: int = DATAGRAM_SIZE_DEFAULT
    ) -> None:
        check_size_max(datagram_size_max)
        check_interface(interface)
        self._size_max = datagram_size_max
        self._socket: zmq.Socket[bytes] = context.socket(zmq.SocketType.DGRAM)
        try:
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_COUNT_MAX)
            self._socket.bind(f"udp://{interface}:*")
        except BaseException as failed:
            self._socket.close(linger=0)
            if isinstance(failed, zmq.ZMQError):
                raise BadGroup(f"cannot send on interface {interface}: {failed}") from failed
            raise
        # The compiled method: the Python method over it adds options that a datagram lacks, and takes 0.3 µs a frame.
        self._send = super(zmq.Socket, self._socket).send  # type: ignore[misc]  # the stubs know one class only
        self._groups: set[bytes] = set()  # checked groups; a process sends to few

    def send(self, group: bytes, datagram: bytes) -> None:
        """Send one datagram to b"239.x.y.z:port".

        Raises:
            DatagramTooLong, BadGroup: nothing was sent (libzmq would drop it silently, or crash).
        """
        if group not in self._groups:
            parse_group(group.decode("ascii", "replace"))
            self._groups.add(group)
        if len(datagram) > self._size_max:
            raise DatagramTooLong(f"the datagram has {len(datagram)} bytes; at most {self._size_max} are allowed")
        self._send(group, zmq.SNDMORE)
        self._send(datagram)

    def close(self) -> None:
        """Close the socket and drop unsent datagrams."""
        self._socket.close()
