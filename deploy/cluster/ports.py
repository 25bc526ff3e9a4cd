"""Finds free ports that stay free until their owner listens.

A port that the system assigns (bind to port 0) is from the range that it also assigns to outgoing connections. Any
connection may take it before its owner listens, or while its owner restarts. The ports here are outside that range.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
_FIRST, _END = 15_000, 65_536
_ASSIGNED_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_ASSIGNED_RANGE = (32_768, 65_535)


def free_ports(kind: socket.SocketKind, count: int) -> list[int]:
    """Different ports that are free now, in random order.

    Args:
        kind: SOCK_STREAM or SOCK_DGRAM.

    Raises:
        OSError: too few ports are free.
    """
    first_assigned, last_assigned = _assigned_range()
    candidates = [*range(_FIRST, first_assigned), *range(last_assigned + 1, _END)]
    random.shuffle(candidates)  # so that processes that search at the same time find different ports
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
        raise OSError(
            f"only {len(found)} of the {len(candidates)} ports outside the system's range {first_assigned} to "
            f"{last_assigned} are free; {count} are needed"
        )
    return found


def free_endpoint() -> str:
    """A free TCP address on the loopback interface."""
    (port,) = free_ports(socket.SOCK_STREAM, 1)
    return f"{LOOPBACK}:{port}"


def _assigned_range() -> tuple[int, int]:
    try:
        first, last = _ASSIGNED_RANGE.read_text().split()
    except OSError:  # not Linux
        return _USUAL_ASSIGNED_RANGE
    return int(first), int(last)
