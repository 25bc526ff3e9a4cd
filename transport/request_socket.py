"""A socket that asks one server over UDP (ZMQ_DGRAM) and hears its answers, whole and on the same port."""

from __future__ import annotations

import ipaddress
from typing import Any

import zmq

from feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT
from transport.dgram import BadGroup, DatagramTooLong, check_interface


def parse_server(server: str) -> bytes:
    """Check "IPV4:PORT".

    Raises:
        BadGroup: saying what is wrong.
    """
    host, _, port = server.rpartition(":")
    try:
        address, number = ipaddress.IPv4Address(host), int(port)
    except ValueError:
        raise BadGroup(f"{server!r} is not IPV4:PORT, such as 10.1.2.3:18000") from None
    if address.is_multicast or not 0 < number < 65_536:
        raise BadGroup(f"{server!r}: a server has an address of its own and a port within 1 and 65535")
    return f"{address}:{number}".encode()


class RequestSocket:
    """Asks one server.

    Args:
        context: the process's ZeroMQ context.
        interface: IP address of the interface to ask from.
        server: "IPV4:PORT".
    """

    def __init__(self, context: zmq.Context[Any], interface: str, server: str) -> None:
        self._server = parse_server(server)
        check_interface(interface)
        self.socket: zmq.Socket[bytes] = context.socket(zmq.SocketType.DGRAM)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(f"udp://{interface}:*")

    def send(self, datagram: bytes) -> None:
        """Ask; never blocks: what finds no room is dropped, as networks do, and asked again by who wants it."""
        if len(datagram) > DATAGRAM_SIZE_DEFAULT:
            raise DatagramTooLong(f"{len(datagram)} bytes, a request has at most {DATAGRAM_SIZE_DEFAULT}")
        try:
            self.socket.send(self._server, zmq.SNDMORE | zmq.NOBLOCK)
            self.socket.send(datagram, zmq.NOBLOCK)
        except zmq.Again:
            return

    def receive(self) -> bytes | None:
        """The next answer of the server, or None if none waits; what others send is dropped. Never blocks."""
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
