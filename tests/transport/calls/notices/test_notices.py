"""A notice is accepted only if it was made with the key of the adapter start that it names."""

from __future__ import annotations

import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.transport.calls.notices.adapter import DeathNoticeSender, GrantNoticeReceiver
from tandemfeed.transport.calls.notices.layout import (
    DEATH_SIZE,
    GRANT_SIZE,
    KEY_SIZE,
    GrantNotice,
    open_grant,
    seal_death,
    seal_grant,
)
from tandemfeed.transport.calls.notices.server import LOG, ServerNotices
from tandemfeed.transport.calls.notices.sockets import address_of

WAIT_S = 10.0
GRANT = GrantNotice(incarnation=7, epoch=3, ttl_ns=300_000_000, report_id=41)
Deaths = queue.SimpleQueue[int]


def free_endpoint() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def deaths() -> Deaths:
    """The incarnations whose deaths were reported."""
    return Deaths()


@pytest.fixture
def finished() -> Deaths:
    """The incarnations for which the rest was done."""
    return Deaths()


@pytest.fixture
def server(deaths: Deaths, finished: Deaths) -> Iterator[tuple[ServerNotices, str]]:
    """A server at a free port, and that port. What it does about incarnation 12 fails, and the rest for 13."""

    def on_death(incarnation: int) -> Callable[[], None]:
        deaths.put(incarnation)
        if incarnation == 12:
            refuse()
        return refuse if incarnation == 13 else partial(finished.put, incarnation)

    notices, endpoint = ServerNotices(), free_endpoint()
    notices.listen(endpoint, on_death)
    yield notices, endpoint
    notices.close()


def refuse() -> None:
    raise OSError("no space left")


def nothing(_incarnation: int) -> Callable[[], None]:
    return lambda: None


@pytest.fixture
def adapter() -> Iterator[tuple[GrantNoticeReceiver, str]]:
    """An adapter that can receive grants, and where."""
    endpoint = free_endpoint()
    receiver = GrantNoticeReceiver(endpoint)
    yield receiver, endpoint
    receiver.close()


def await_datagram(receiver: GrantNoticeReceiver) -> None:
    assert select.select([receiver.fileno()], [], [], WAIT_S)[0]


def received(receiver: GrantNoticeReceiver, count: int = 1) -> list[GrantNotice]:
    """The next grants, and what is there with them."""
    found: list[GrantNotice] = []
    while len(found) < count:
        await_datagram(receiver)
        found += receiver.take(16)
    return found


# ---- deaths ----


def test_a_death_notice_with_the_right_key_is_accepted(server: tuple[ServerNotices, str], deaths: Deaths) -> None:
    notices, endpoint = server
    sender = DeathNoticeSender(endpoint)
    sender.send(notices.key(8), 7)  # adapter 8's key
    sender.send(ServerNotices().key(7), 7)  # another server's
    sender.send(notices.key(7), 7)
    assert deaths.get(timeout=WAIT_S) == 7
    assert deaths.empty()
    sender.close()


def test_the_rest_is_done_after_the_deaths_and_a_failure_stops_nothing(
    server: tuple[ServerNotices, str], deaths: Deaths, finished: Deaths
) -> None:
    notices, endpoint = server
    sender = DeathNoticeSender(endpoint)
    for incarnation in (12, 7, 13, 8):
        sender.send(notices.key(incarnation), incarnation)
    assert [deaths.get(timeout=WAIT_S) for _ in range(4)] == [12, 7, 13, 8]
    assert [finished.get(timeout=WAIT_S) for _ in range(2)] == [7, 8]
    sender.send(notices.key(9), 9)
    assert deaths.get(timeout=WAIT_S) == 9
    notices.close()  # waits for the rest
    assert finished.get_nowait() == 9
    sender.close()


def test_a_flood_does_not_delay_the_rest(server: tuple[ServerNotices, str], finished: Deaths) -> None:
    notices, endpoint = server
    host, _, port = endpoint.rpartition(":")
    is_over = threading.Event()

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            repeated = seal_death(notices.key(7), 7)
            while not is_over.is_set():
                for datagram in (bytes(DEATH_SIZE), repeated):
                    stranger.sendto(datagram, (host, int(port)))

    stranger = threading.Thread(target=flood)
    stranger.start()
    try:
        assert finished.get(timeout=WAIT_S) == 7
    finally:
        is_over.set()
        stranger.join()


def test_datagrams_that_are_not_death_notices_are_ignored(server: tuple[ServerNotices, str], deaths: Deaths) -> None:
    notices, endpoint = server
    host, _, port = endpoint.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for datagram in (b"", b"x", bytes(DEATH_SIZE), bytes(9_000), seal_grant(notices.key(7), GRANT)):
            stranger.sendto(datagram, (host, int(port)))
    sender = DeathNoticeSender(endpoint)
    sender.send(notices.key(1), 1)
    assert deaths.get(timeout=WAIT_S) == 1
    sender.close()


def test_any_flipped_bit_invalidates_a_death_notice() -> None:
    notices = ServerNotices()
    datagram = seal_death(notices.key(3), 3)
    assert notices.verify_death(datagram) == 3
    for flipped in with_one_flipped_bit(datagram):
        assert notices.verify_death(flipped) is None


@given(st.binary(max_size=80))
def test_random_bytes_are_no_notice(datagram: bytes) -> None:
    assert ServerNotices().verify_death(datagram) is None
    assert open_grant(bytes(KEY_SIZE), datagram) is None


def test_a_port_in_use_does_not_prevent_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(LOG, "warning", lambda event, **_: warnings.append(event))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as occupied:
        occupied.bind(("127.0.0.1", 0))
        notices = ServerNotices()
        notices.listen(f"127.0.0.1:{occupied.getsockname()[1]}", nothing)
        notices.granter("127.0.0.1:9")(GRANT)  # is not sent, and disturbs nobody
        notices.close()
    assert warnings == ["cannot use the UDP port; a killed adapter will be noticed and replaced later"]


# ---- grants ----


def test_a_grant_reaches_the_start_that_it_names(
    server: tuple[ServerNotices, str], adapter: tuple[GrantNoticeReceiver, str]
) -> None:
    notices, endpoint = server
    receiver, where = adapter
    receiver.follow(endpoint, 7, notices.key(7))
    notices.granter(where)(GrantNotice(8, 2, 1, 1))  # an earlier start's
    notices.granter(where)(GRANT)
    assert received(receiver) == [GRANT]
    assert receiver.take(16) == []


def test_grants_of_other_servers_and_strangers_are_not_received(
    server: tuple[ServerNotices, str], adapter: tuple[GrantNoticeReceiver, str]
) -> None:
    notices, endpoint = server
    receiver, where = adapter
    receiver.follow(endpoint, 7, notices.key(7))
    host, _, port = where.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(seal_grant(notices.key(7), GRANT), (host, int(port)))  # the key alone does not suffice
    other = ServerNotices()
    other.listen(free_endpoint(), nothing)
    other.granter(where)(GRANT)
    other.close()
    later = GrantNotice(7, 4, 1, 1)
    notices.granter(where)(later)
    assert received(receiver) == [later]


def test_an_adapter_that_registers_elsewhere_follows_that_server(
    server: tuple[ServerNotices, str], adapter: tuple[GrantNoticeReceiver, str]
) -> None:
    notices, endpoint = server
    receiver, where = adapter
    former = ServerNotices()
    former_endpoint = free_endpoint()
    former.listen(former_endpoint, nothing)
    receiver.follow(former_endpoint, 7, former.key(7))
    former.granter(where)(GRANT)
    assert received(receiver) == [GRANT]
    receiver.follow(endpoint, 7, notices.key(7))
    former.granter(where)(GRANT)
    later = GrantNotice(7, 4, 1, 1)
    notices.granter(where)(later)
    assert received(receiver) == [later]
    former.close()


def test_a_start_without_a_key_takes_no_grant(
    server: tuple[ServerNotices, str], adapter: tuple[GrantNoticeReceiver, str]
) -> None:
    notices, endpoint = server
    receiver, where = adapter
    notices.granter(where)(GRANT)  # before it has registered
    host, _, port = where.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(seal_grant(b"", GRANT), (host, int(port)))
    await_datagram(receiver)
    assert receiver.take(16) == []
    receiver.follow(endpoint, 7, notices.key(7))
    notices.granter(where)(GRANT)
    assert received(receiver) == [GRANT]


def test_an_adapter_that_attends_before_the_server_has_its_port_is_granted_by_notice_later(
    adapter: tuple[GrantNoticeReceiver, str],
) -> None:
    receiver, where = adapter
    notices, endpoint = ServerNotices(), free_endpoint()
    grant = notices.granter(where)
    grant(GRANT)  # is not sent
    notices.listen(endpoint, nothing)
    receiver.follow(endpoint, 7, notices.key(7))
    later = GrantNotice(7, 4, 1, 1)
    grant(later)
    assert received(receiver) == [later]
    notices.close()


def test_a_socket_at_all_addresses_also_reaches_ipv4() -> None:
    assert address_of("127.0.0.1:9", socket.AF_INET6)[:2] == ("::ffff:127.0.0.1", 9)
    assert address_of("[::1]:9", socket.AF_INET6)[:2] == ("::1", 9)


def test_a_flood_is_read_in_parts(server: tuple[ServerNotices, str], adapter: tuple[GrantNoticeReceiver, str]) -> None:
    notices, endpoint = server
    receiver, where = adapter
    receiver.follow(endpoint, 7, notices.key(7))
    for epoch in range(20):
        notices.granter(where)(GrantNotice(7, epoch, 1, 1))
    await_datagram(receiver)
    first = receiver.take(4)
    assert len(first) == 4
    assert [notice.epoch for notice in (*first, *received(receiver, 16))] == list(range(20))


def test_any_flipped_bit_invalidates_a_grant() -> None:
    key = ServerNotices().key(7)
    datagram = seal_grant(key, GRANT)
    assert len(datagram) == GRANT_SIZE
    assert open_grant(key, datagram) == GRANT
    for flipped in with_one_flipped_bit(datagram):
        assert open_grant(key, flipped) is None


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1", "127.0.0.1:x", ":1", "127.0.0.1:99999", "\0:1", "a" * 70 + ":1"])
def test_an_endpoint_that_no_datagram_can_reach_stops_nothing(server: tuple[ServerNotices, str], endpoint: str) -> None:
    notices, _ = server
    notices.granter(endpoint)(GRANT)


def with_one_flipped_bit(datagram: bytes) -> Iterator[bytes]:
    for bit in range(8 * len(datagram)):
        flipped = bytearray(datagram)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
