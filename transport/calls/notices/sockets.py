"""UDP sockets and addresses of the notices, which have the hosts and port numbers of calls."""

from __future__ import annotations

import socket


def address_of(endpoint: str, family: int) -> tuple[object, ...]:
    """The address of host:port for a socket of this family; may wait for a name to be resolved.

    Raises:
        OSError, ValueError: there is none.
    """
    return _resolve(endpoint, family)[1]


def bound_socket(endpoint: str) -> socket.socket:
    """A socket that receives at host:port.

    Raises:
        OSError: the port is not available.
    """
    family, address = _resolve(endpoint, socket.AF_UNSPEC)
    made = socket.socket(family, socket.SOCK_DGRAM)
    try:
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


def connected_socket(endpoint: str) -> socket.socket:
    """A socket that sends to host:port.

    Raises:
        OSError: the name cannot be resolved.
    """
    family, address = _resolve(endpoint, socket.AF_UNSPEC)
    made = socket.socket(family, socket.SOCK_DGRAM)
    try:
        made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def _resolve(endpoint: str, family: int) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    host, _, port = endpoint.rpartition(":")
    mapped = socket.AI_V4MAPPED if family == socket.AF_INET6 else 0  # a socket at [::] also reaches IPv4 addresses
    found = socket.getaddrinfo(host.strip("[]"), int(port), family, socket.SOCK_DGRAM, flags=mapped)[0]
    return found[0], found[4]
