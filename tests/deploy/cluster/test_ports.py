"""Free ports stay free until their owner listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import tandemfeed.deploy.cluster.ports as ports_module
from tandemfeed.deploy.cluster.ports import LOOPBACK, free_endpoint, free_ports


def test_free_ports_are_outside_the_range_of_outgoing_connections() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    found = free_ports(socket.SOCK_STREAM, 50)
    assert len(set(found)) == 50
    assert not any(first <= port <= last for port in found)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_in_use_is_not_free(kind: socket.SocketKind, monkeypatch: pytest.MonkeyPatch) -> None:
    (taken, other) = free_ports(kind, 2)

    def leave_two(candidates: list[int]) -> None:
        candidates[:] = [taken, other]

    monkeypatch.setattr(ports_module.random, "shuffle", leave_two)
    with socket.socket(socket.AF_INET, kind) as owner:
        owner.bind((LOOPBACK, taken))
        assert free_ports(kind, 1) == [other]
        with pytest.raises(OSError, match="only 1 of the 2 ports"):
            free_ports(kind, 2)


def test_a_process_can_listen_at_a_free_endpoint() -> None:
    host, _, port = free_endpoint().rpartition(":")
    with socket.socket() as listener:
        listener.bind((host, int(port)))
