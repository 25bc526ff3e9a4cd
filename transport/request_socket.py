"""A socket that sends requests to one server over UDP (ZMQ_DGRAM) and receives the answers on the same port."""

from __future__ import annotations

import ipaddress
from typing import Any

import zmq

from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT
from tandemfeed.transport.multicast.groups import BadGroup, check_interface
from tandemfeed.transport.multicast.sizes import DatagramTooLong


def parse_server(server: str) -> bytes:
    """Check "IPV4:PORT".

    Raises:
        BadGroup: the text says what is wrong.
    """
    host, _, port = server.rpartition(":")
    try:
        address, number = ipaddress.IPv4Address(host), int(port)
    except ValueError:
        raise BadGroup(f"request server {server!r} is invalid; it must be IPV4:PORT, such as 10.1.2.3:18000") from None
    if address.is_multicast or not 0 < number < 65_536:
        raise BadGroup(f"request server {server!r} needs a unicast address and a port from 1 to 65535")
    return f"{address}:{number}".encode()


class RequestSocket:
    """Sends requests to one server.

    Args:
        context: the process's ZeroMQ context.
        interface: IP address of the interface to send from.
        server: "IPV4:PORT".
    """

    def __init__(self, context: zmq.Context[Any], interface: str, server: str) -> None:
        self._server = parse_server(server)
        check_interface(interface)
        self.socket: zmq.Socket[bytes] = context.socket(zmq.SocketType.DGRAM)
        try:
            self.socket.setsockopt(zmq.LINGER, 0)
            self.socket.bind(f"udp://{interface}:*")
        except BaseException as failed:
            self.socket.close(linger=0)
            if isinstance(failed, zmq.ZMQError):
                raise BadGroup(f"cannot send requests from interface {interface}: {failed}") from failed
            raise

    def send(self, datagram: bytes) -> None:
        """Send a request. Never blocks: if the queue is full, the request is dropped, and the caller must repeat it."""
        if len(datagram) > DATAGRAM_SIZE_DEFAULT:
            raise DatagramTooLong(f"the request has {len(datagram)} bytes; at most {DATAGRAM_SIZE_DEFAULT} are allowed")
        try:
            self.socket.send(self._server, zmq.SNDMORE | zmq.NOBLOCK)
            self.socket.send(datagram, zmq.NOBLOCK)
        except zmq.Again:
            return

    def receive(self) -> bytes | None:
        """The server's next answer, or None if there is none. Drops what others send. Never blocks."""
        while True:
            try:
                sender = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            body: bytes = self.socket.recv()
            if sender.rstrip(b"\0") == self._server:
                return body

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
