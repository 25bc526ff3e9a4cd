"""Addresses of multicast: groups and interfaces. Every error says what is wrong with one."""

from __future__ import annotations

import ipaddress
import socket


class BadGroup(ValueError):
    """An address is invalid; the text says why."""


def parse_group(group: str) -> tuple[str, int]:
    """Split and check "239.x.y.z:port".

    Raises:
        BadGroup: the text says what is wrong.
    """
    host, separator, port = group.rpartition(":")
    try:
        address = ipaddress.IPv4Address(host)
        number = int(port)
    except ValueError:
        raise BadGroup(f"group {group!r} is invalid; it must be IPV4:PORT, such as 239.192.1.1:5001") from None
    if not separator or not address.is_multicast:
        raise BadGroup(f"group {group!r}: {host} is not a multicast address (224.0.0.0 to 239.255.255.255)")
    if not 0 < number < 65_536:
        raise BadGroup(f"group {group!r}: the port is {number}; it must be from 1 to 65535")
    return host, number


def check_interface(interface: str) -> None:
    """Refuse an interface address that this host does not have. libzmq would find out in another thread, silently.

    Raises:
        BadGroup: the text names the address.
    """
    try:
        ipaddress.IPv4Address(interface)
    except ValueError:
        raise BadGroup(
            f"interface {interface!r} is not an IPv4 address; name the interface by its address, such as 127.0.0.1 "
            "(`ip address` lists them)"
        ) from None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((interface, 0))
    except OSError as missing:
        raise BadGroup(
            f"no interface of this host has the address {interface}: {missing.strerror or missing}"
        ) from None
