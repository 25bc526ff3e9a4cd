"""Ports that are free, and stay so until somebody listens there.

A port that the system itself gives (bind to port 0) is one of those that it gives to outgoing connections, too: until
its owner listens, or while its owner is being restarted, any connection of a neighbour may take it. These are others.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
_FIRST, _END = 15_000, 65_536
_GIVEN_BY_THE_SYSTEM = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUALLY_GIVEN = (32_768, 65_535)


def free_ports(kind: socket.SocketKind, count: int) -> list[int]:
    """Ports that nobody has at the moment, unlike each other, in no order.

    Args:
        kind: SOCK_STREAM or SOCK_DGRAM.

    Raises:
        OSError: there are not so many.
    """
    first_given, last_given = _given_by_the_system()
    candidates = [*range(_FIRST, first_given), *range(last_given + 1, _END)]
    random.shuffle(candidates)  # processes that look at the same time must not find the same
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        found.append(port)
    if len(found) < count:
        raise OSError(f"of {len(candidates)} ports that the system does not give away itself {len(found)} are free")
    return found


def free_endpoint() -> str:
    """A TCP address of the loopback interface at which nobody listens."""
    (port,) = free_ports(socket.SOCK_STREAM, 1)
    return f"{LOOPBACK}:{port}"


def _given_by_the_system() -> tuple[int, int]:
    try:
        first, last = _GIVEN_BY_THE_SYSTEM.read_text().split()
    except OSError:  # another system than Linux
        return _USUALLY_GIVEN
    return int(first), int(last)
