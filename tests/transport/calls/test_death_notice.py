"""A death notice is accepted only if it was made with the key of the start that it names."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.transport.calls.death_notice import LOG, NOTICE, DeathNoticeReceiver, DeathNoticeSender

WAIT_S = 10.0
Heard = queue.SimpleQueue[int]


@pytest.fixture
def listening() -> Iterator[tuple[DeathNoticeReceiver, str, Heard]]:
    """A server that receives death notices on a free port."""
    notices, heard = DeathNoticeReceiver(), Heard()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    notices.listen(endpoint, heard.put)
    yield notices, endpoint, heard
    notices.close()


def sent_datagram(key: bytes, incarnation: int) -> bytes:
    """The datagram that a sender sends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        sender = DeathNoticeSender(f"127.0.0.1:{receiver.getsockname()[1]}")
        sender.send(key, incarnation)
        sender.close()
        return receiver.recv(1_000)


def test_a_death_notice_with_the_right_key_is_accepted(listening: tuple[DeathNoticeReceiver, str, Heard]) -> None:
    notices, endpoint, heard = listening
    sender = DeathNoticeSender(endpoint)
    sender.send(notices.key(8), 7)  # adapter 8's key
    sender.send(DeathNoticeReceiver().key(7), 7)  # another server's
    sender.send(notices.key(7), 7)
    assert heard.get(timeout=WAIT_S) == 7
    assert heard.empty()
    sender.close()


def test_datagrams_that_are_not_death_notices_are_ignored(listening: tuple[DeathNoticeReceiver, str, Heard]) -> None:
    notices, endpoint, heard = listening
    host, _, port = endpoint.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for datagram in (b"", b"x", bytes(NOTICE.size), bytes(9_000)):
            stranger.sendto(datagram, (host, int(port)))
    sender = DeathNoticeSender(endpoint)
    sender.send(notices.key(1), 1)
    assert heard.get(timeout=WAIT_S) == 1
    sender.close()


def test_any_flipped_bit_invalidates_a_death_notice() -> None:
    notices = DeathNoticeReceiver()
    datagram = sent_datagram(notices.key(3), 3)
    assert notices.verify(datagram) == 3
    for bit in range(8 * len(datagram)):
        flipped = bytearray(datagram)
        flipped[bit // 8] ^= 1 << bit % 8
        assert notices.verify(bytes(flipped)) is None


@given(st.binary(max_size=80))
def test_random_bytes_are_not_a_death_notice(datagram: bytes) -> None:
    assert DeathNoticeReceiver().verify(datagram) is None


def test_a_port_in_use_does_not_prevent_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(LOG, "warning", lambda event, **_: warnings.append(event))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as occupied:
        occupied.bind(("127.0.0.1", 0))
        notices = DeathNoticeReceiver()
        notices.listen(f"127.0.0.1:{occupied.getsockname()[1]}", print)
        notices.close()
    assert warnings == ["cannot receive death notices; a killed adapter will be noticed later"]
