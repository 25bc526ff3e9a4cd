"""Everything of transport that reaches a peer, while the peer is away once, twice, and comes back each time.

A scenario has an object of production and the peer that it needs. Where pauses decide, time is the test's; where the
operating system or a library decides, peers and sockets are real.
"""

from __future__ import annotations

import itertools
import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.runtime.zeromq import Context
from tandemfeed.transport.calls.admin_servers import PAUSE_MAX_S, AdminServers, ask_active
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import Login
from tandemfeed.transport.calls.login_schedule import TRY_AGAIN_NS
from tandemfeed.transport.calls.notices.adapter import DeathNoticeSender, GrantNoticeReceiver
from tandemfeed.transport.calls.notices.layout import GrantNotice
from tandemfeed.transport.calls.notices.server import ServerNotices
from tandemfeed.transport.calls.reachability import Unreachable, call_or_explain
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.transport.calls.tokens import SEPARATOR, TokenVerifier
from tandemfeed.transport.unicast.admitted_clients import AdmittedClients
from tandemfeed.transport.unicast.listener import Listener
from tandemfeed.transport.unicast.publisher import LISTEN_AGAIN_NS, UnicastPublisher
from tandemfeed.transport.unicast.receiver import UnicastReceiver
from tandemfeed.transport.unicast.wire import CurveKeys
from tandemfeed.v1.admin_pb2 import AdmittedClient, SubscriptionsChanged
from tests.client_lib.toy_cluster import make_certificates

WAIT_S = 60.0
SHORT_S = 0.3  # for what cannot arrive, because its sender is away
CERTIFICATES = make_certificates(ADMIN_SERVER)
SERVER, CLIENT = CurveKeys.generate(), CurveKeys.generate()


class Scenario(ABC):
    """An object and its peer, which is there at first."""

    def __init__(self, opened: ExitStack) -> None:
        self.opened = opened

    @abstractmethod
    def leave(self) -> None:
        """The peer goes away."""

    @abstractmethod
    def return_(self) -> None:
        """The peer is there again, at the same address, without what it knew."""

    @abstractmethod
    def attempt(self) -> bool:
        """What the object's owner does once; True if the peer has served it."""

    def await_service(self) -> None:
        """Attempt until the peer has served the object."""
        give_up_at_s = time.monotonic() + WAIT_S
        while not self.attempt():
            assert time.monotonic() < give_up_at_s


class Unavailable(grpc.RpcError):
    """What a call to a server that is away ends with."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "failed to connect"


class AwayServers(Scenario):
    """`AdminServers`: of three addresses, one has a server, and each time it is another."""

    def __init__(self, opened: ExitStack) -> None:
        super().__init__(opened)
        self.servers = AdminServers("a:1,b:2,c:3")
        self.now_s = 0.0
        self._active: str | None = "a:1"
        self._places = itertools.cycle(["c:3", "b:2", "a:1"])

    def leave(self) -> None:
        self._active = None

    def return_(self) -> None:
        self._active = next(self._places)

    def attempt(self) -> bool:
        try:
            return ask_active(self.servers, self._ask, 10, now_s=lambda: self.now_s, sleep=self._sleep) == self._active
        except Unavailable:
            return False

    def _ask(self, address: str, timeout_s: float) -> str:
        assert timeout_s > 0
        self.now_s += 0.01
        if address != self._active:
            raise Unavailable
        return address

    def _sleep(self, pause_s: float) -> None:
        assert pause_s <= PAUSE_MAX_S
        self.now_s += pause_s


class Tokens(Scenario):
    """`TokenSource`: each attempt is after half the life of its token."""

    LIFE_NS = 3_600_000_000_000

    def __init__(self, opened: ExitStack) -> None:
        super().__init__(opened)
        self.now_ns, self._is_away, self._count = 0, False, 0
        self._source = TokenSource("a:1", b"", "ann", "x", log_in=self._log_in, now_ns=lambda: self.now_ns)
        self._source(ADMIN_SERVER)
        self.now_ns += self.LIFE_NS // 2 - TRY_AGAIN_NS

    def leave(self) -> None:
        self._is_away = True

    def return_(self) -> None:
        self._is_away = False

    def attempt(self) -> bool:
        self.now_ns += TRY_AGAIN_NS
        before = self._count
        assert self._source(ADMIN_SERVER).partition(SEPARATOR)[0].startswith("token")
        is_served = self._count > before
        if is_served:
            self.now_ns += self.LIFE_NS // 2 - TRY_AGAIN_NS
        return is_served

    def _log_in(self, *_: Any, timeout_s: float) -> Login:
        assert timeout_s > 0
        if self._is_away:
            raise Unavailable
        self._count += 1
        return Login(f"token {self._count}", 0, Ed25519PrivateKey.generate(), self.LIFE_NS)


class RpcPeer(Scenario):
    """A real server with a health service."""

    def __init__(self, opened: ExitStack) -> None:
        super().__init__(opened)
        self.server = self._serve("127.0.0.1:0")
        self.endpoint = self.server.endpoint
        opened.callback(lambda: self.server.stop(0))

    def leave(self) -> None:
        self.server.stop(0)

    def return_(self) -> None:
        self.server = self._serve(self.endpoint)

    @staticmethod
    def _serve(listen: str) -> RpcServer:
        gates = [Authorization(TokenVerifier(ADMIN_SERVER), {})]
        return serve([], [], listen, CERTIFICATES[1], CERTIFICATES[2], gates)


class Channels(RpcPeer):
    """`open_channel`: one channel, a call each time."""

    def __init__(self, opened: ExitStack) -> None:
        super().__init__(opened)
        channel = opened.enter_context(open_channel(self.endpoint, CERTIFICATES[0], ADMIN_SERVER))
        self._check = channel.unary_unary("/grpc.health.v1.Health/Check")
        self.codes: set[grpc.StatusCode] = set()

    def attempt(self) -> bool:
        try:
            self._check(b"", timeout=WAIT_S)
        except grpc.RpcError as failed:
            self.codes.add(failed.code())  # type: ignore[attr-defined]
            return False
        return self.codes <= {grpc.StatusCode.UNAVAILABLE}


class FirstCalls(RpcPeer):
    """`call_or_explain`: a channel for each call; it says why nothing answers."""

    def __init__(self, opened: ExitStack) -> None:
        super().__init__(opened)
        self.reasons: set[str] = set()

    def attempt(self) -> bool:
        try:
            call_or_explain(self._call, (self.endpoint,), CERTIFICATES[0], timeout_s=WAIT_S)
        except Unreachable as why:
            self.reasons.add(str(why))
            return False
        return self.reasons <= {f"{self.endpoint}: no server listens there; start it, or check the port"}

    def _call(self, timeout_s: float) -> None:
        with open_channel(self.endpoint, CERTIFICATES[0], ADMIN_SERVER) as channel:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=timeout_s)


class Notices(Scenario):
    """The admin server's notices. A server that returns has another secret, and the adapter registers there again."""

    def __init__(self, opened: ExitStack) -> None:
        super().__init__(opened)
        self.endpoint = _free_endpoint()
        self.deaths: list[int] = []
        self.numbers = itertools.count(1)
        self.notices = ServerNotices()
        self.return_()
        opened.callback(lambda: self.notices.close())

    def leave(self) -> None:
        self.notices.close()

    def return_(self) -> None:
        self.notices = ServerNotices()
        self.notices.listen(self.endpoint, self._on_death)

    def _on_death(self, incarnation: int) -> Callable[[], None]:
        self.deaths.append(incarnation)
        return lambda: None


class Deaths(Notices):
    """`DeathNoticeSender`: one socket, a notice each time."""

    def __init__(self, opened: ExitStack) -> None:
        super().__init__(opened)
        self._sender = DeathNoticeSender(self.endpoint)
        opened.callback(self._sender.close)
        self._is_away = False

    def leave(self) -> None:
        super().leave()
        self._is_away = True

    def return_(self) -> None:
        super().return_()
        self._is_away = False

    def attempt(self) -> bool:
        incarnation = next(self.numbers)
        self._sender.send(self.notices.key(incarnation), incarnation)
        return _happens(lambda: incarnation in self.deaths, SHORT_S if self._is_away else WAIT_S)

    def await_service(self) -> None:
        assert self.attempt(), "the first notice to a server that is there arrives"


class Grants(Notices):
    """`GrantNoticeReceiver`: one socket, a grant each time."""

    def __init__(self, opened: ExitStack) -> None:
        where = _free_endpoint()
        self._receiver = GrantNoticeReceiver(where)
        opened.callback(self._receiver.close)
        super().__init__(opened)
        self._grant = self.notices.granter(where)
        self._where = where

    def return_(self) -> None:
        super().return_()
        self._receiver.follow(self.endpoint, 7, self.notices.key(7))
        if hasattr(self, "_where"):
            self._grant = self.notices.granter(self._where)

    def attempt(self) -> bool:
        grant = GrantNotice(7, next(self.numbers), 1, 1)
        self._grant(grant)
        is_there = bool(select.select([self._receiver], [], [], SHORT_S)[0])
        return is_there and grant in self._receiver.take(16)


class Unicast(Scenario):
    """`UnicastReceiver`: libzmq connects again."""

    def __init__(self, opened: ExitStack) -> None:
        super().__init__(opened)
        self._admitted = AdmittedClients()
        client = AdmittedClient(client_key=CLIENT.public, channel_ids=[1])
        self._admitted.change(SubscriptionsChanged(admitted=[client]), 0)
        self._publisher = UnicastPublisher("127.0.0.1:0", SERVER, [1], self._admitted)
        self._publisher.keep(0)
        self._endpoint = self._publisher.endpoint
        self._is_away = False
        opened.callback(self._publisher_close)
        context = opened.enter_context(Context())
        self._receiver = UnicastReceiver(context, self._endpoint, SERVER.public, CLIENT, [1])
        opened.callback(self._receiver.close)

    def leave(self) -> None:
        self._publisher.close()
        self._is_away = True
        while self._receiver.receive() is not None:
            pass  # what had been sent

    def return_(self) -> None:
        self._publisher = UnicastPublisher(self._endpoint, SERVER, [1], self._admitted)
        self._is_away = False

    def attempt(self) -> bool:
        if not self._is_away:
            self._publisher.keep(time.monotonic_ns())  # the address of the former may be in use for a moment
            self._publisher.read_subscriptions()
            self._publisher.send([(1, b"datagram")])
        self._receiver.socket.poll(10)
        return self._receiver.receive() == b"datagram"

    def _publisher_close(self) -> None:
        if not self._is_away:
            self._publisher.close()


class Listening(Scenario):
    """`UnicastPublisher`: the peer is the address, which another process has taken."""

    def __init__(self, opened: ExitStack) -> None:
        super().__init__(opened)
        first = Listener("127.0.0.1:0")
        self._endpoint, self.now_ns = first.endpoint, 1
        first.close()
        self._other: Listener | None = None
        self._made: UnicastPublisher | None = None
        opened.callback(self._close)

    def leave(self) -> None:
        self._close()
        self._other = Listener(self._endpoint)

    def return_(self) -> None:
        assert self._other is not None
        self._other.close()

    def attempt(self) -> bool:
        if self._made is None:
            self._made = UnicastPublisher(self._endpoint, SERVER, [1], AdmittedClients())
        self.now_ns += LISTEN_AGAIN_NS + 1
        self._made.keep(self.now_ns)
        return self._made.endpoint == self._endpoint

    def _close(self) -> None:
        if self._made is not None:
            self._made.close()
            self._made = None


def _free_endpoint() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _happens(condition: Callable[[], bool], limit_s: float) -> bool:
    give_up_at_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > give_up_at_s:
            return False
        time.sleep(0.001)
    return True


SCENARIOS: list[type[Scenario]] = [AwayServers, Tokens, Channels, FirstCalls, Deaths, Grants, Unicast, Listening]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("failures", [1, 2, 5])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_is_served_again_after_its_peer_was_away_once_and_again(
    scenario: type[Scenario], failures: int, opened: ExitStack
) -> None:
    made = scenario(opened)
    made.await_service()
    for _ in range(2):
        made.leave()
        for _ in range(failures):
            assert not made.attempt(), "its peer is away"
        made.return_()
        made.await_service()
