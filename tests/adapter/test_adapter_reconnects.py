"""Everything of an adapter that keeps a connection has it again after one failure, and after the second.

Each is the real class over real sockets, TLS and streams; the server at the other end fails as the test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandemfeed.adapter.peers.peer_link import PeerLink
from tandemfeed.adapter.peers.translation import peer_state_from_proto, peer_state_to_proto
from tandemfeed.adapter.reporting.guard import Guard
from tandemfeed.feedcore.replica.channel_state import PeerState
from tandemfeed.runtime.threads import mark_unhealthy
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.v1 import admin_pb2, common_pb2, sync_pb2, sync_pb2_grpc
from tests.adapter.peers.rpc_by_hand import CA, CERTIFICATE, KEY, SERVER_NAME, token
from tests.adapter.peers.test_peer_input import HEALTH
from tests.adapter.reporting.admin_by_hand import CA as ADMIN_CA
from tests.adapter.reporting.admin_by_hand import AdminByHand
from tests.adapter.reporting.attending import Attending
from tests.adapter.server_by_hand import ServerByHand
from tests.admin_server.records.zookeeper_pair import NeverStopped

TIMES = pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])


class PeerByHand(ServerByHand, sync_pb2_grpc.AdapterSyncServicer):
    """Another adapter of the feed, which can be followed. Attributes: served: states sent."""

    def __init__(self) -> None:
        self.served = 0
        super().__init__(
            ["tandemfeed.v1.AdapterSync"],
            [lambda server: sync_pb2_grpc.add_AdapterSyncServicer_to_server(self, server)],
            (CERTIFICATE, KEY),
        )

    async def Follow(  # noqa: N802
        self, _request: sync_pb2.FollowRequest, context: grpc.ServicerContext
    ) -> AsyncIterator[common_pb2.FeedAdapterState]:
        """Send one state, and keep the stream open."""
        self.change(lambda: setattr(self, "served", self.served + 1))
        yield peer_state_to_proto(PeerState(2, 1, self.served, ()), HEALTH)
        async for _ in self.until_ended(_nothing(), context):
            pass


async def _nothing() -> AsyncIterator[Any]:
    await asyncio.get_running_loop().create_future()
    yield


@dataclass
class Connected:
    """Something that keeps a connection.

    Attributes:
        server: at the other end.
        method: the call that it keeps open.
        count: how often it was served so far: the other end of its stream has taken a message, or sent one.
        close: ends it.
    """

    server: ServerByHand
    method: str
    count: Callable[[], int]
    close: Callable[[], object]

    def await_served(self, count: int) -> None:
        """Wait until it has been served so often."""
        self.server.wait_for(lambda: self.count() >= count)


def registry(folder: Path) -> Connected:
    """The connection by which an adapter reports and receives orders; its loop is a thread of the test."""
    admin = AdminByHand(folder)
    tokens = TokenSource(admin.endpoint, ADMIN_CA, "", admin.credential)
    request = admin_pb2.RegisterRequest(feed="equities", adapter="a", public_key=bytes(32))
    adapter = Attending(admin.endpoint, ADMIN_CA, tokens, request)
    assert adapter.registry.register(NeverStopped()) is not None  # type: ignore[arg-type]
    adapter.registry.start()
    adapter.run_in_thread()
    return Connected(admin, "Attend", lambda: len(admin.reports), adapter.stop)


def guard(folder: Path) -> Connected:
    """The call by which a lifeline reports the adapter's death."""
    admin = AdminByHand(folder)
    made = Guard(admin.connection)

    def close() -> None:
        made.report_end(7, bytes(32))

    return Connected(admin, "Guard", lambda: admin.stream_count, close)


def peer_link(_folder: Path) -> Connected:
    """The stream of another adapter's states."""
    peer = PeerByHand()
    heard: list[PeerState] = []
    link = PeerLink(
        2,
        open_channel(peer.endpoint, CA, SERVER_NAME, token("adapter", feeds=("equities",))),
        1,
        lambda _adapter_id, message: peer_state_from_proto(message),
        lambda state, _proof: peer.change(lambda: heard.append(state)),
        lambda _adapter_id, _what, _refused: None,
        mark_unhealthy,
    )
    return Connected(peer, "Follow", lambda: len(heard), link.close)


EVERY = [registry, guard, peer_link]
OF_THE_ADMIN_SERVER = [registry, guard]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[Callable[[Path], Connected]], Connected]]:
    made: list[Connected] = []

    def make(what: Callable[[Path], Connected]) -> Connected:
        made.append(what(tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()
        each.server.stop()


@TIMES
@pytest.mark.parametrize("what", EVERY)
def test_it_is_served_again_after_its_stream_ended(
    connect: Callable[..., Connected], what: Callable[[Path], Connected], times: int
) -> None:
    connected = connect(what)
    for count in range(1, times + 1):
        connected.await_served(count)
        connected.server.wait_for_streams(1)
        connected.server.end_streams()
    connected.await_served(times + 1)


@TIMES
@pytest.mark.parametrize("what", EVERY)
def test_it_is_served_again_after_calls_were_refused(
    connect: Callable[..., Connected], what: Callable[[Path], Connected], times: int
) -> None:
    connected = connect(what)
    connected.await_served(1)
    connected.server.wait_for_streams(1)
    connected.server.refuse(connected.method, grpc.StatusCode.UNAVAILABLE, times)
    connected.server.end_streams()
    connected.await_served(2)
    assert connected.server.log.count(connected.method) == 2 + times


@TIMES
@pytest.mark.parametrize("what", EVERY)
def test_it_is_served_again_after_its_server_was_away(
    connect: Callable[..., Connected], what: Callable[[Path], Connected], times: int
) -> None:
    connected = connect(what)
    for count in range(1, times + 1):
        connected.await_served(count)
        connected.server.stop()
        connected.server.start()
    connected.await_served(times + 1)


@TIMES
@pytest.mark.parametrize("what", OF_THE_ADMIN_SERVER)
def test_it_logs_in_again_after_its_token_was_refused(
    connect: Callable[..., Connected], what: Callable[[Path], Connected], times: int
) -> None:
    connected = connect(what)
    assert isinstance(connected.server, AdminByHand)
    for count in range(1, times + 1):
        connected.await_served(count)
        connected.server.wait_for_streams(1)
        connected.server.accept_no_token()
    connected.await_served(times + 1)
    assert connected.server.log.count("LogInWithToken") == 1 + times


@TIMES
@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED])
@pytest.mark.parametrize("what", OF_THE_ADMIN_SERVER)
def test_it_tries_again_after_a_login_failed(
    connect: Callable[..., Connected], what: Callable[[Path], Connected], code: grpc.StatusCode, times: int
) -> None:
    connected = connect(what)
    assert isinstance(connected.server, AdminByHand)
    connected.await_served(1)
    connected.server.wait_for_streams(1)
    connected.server.refuse("LogInWithToken", code, times)
    connected.server.accept_no_token()
    connected.await_served(2)
    assert connected.server.log.count("LogInWithToken") == 2 + times
