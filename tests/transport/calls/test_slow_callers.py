"""Callers that do not read, do not send, or leave: what they hold at the server, and what they do not."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.serving import handling, lanes
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.call_context import in_thread
from tandemfeed.transport.calls.serving.limits import BURST_S, SECOND_NS, TURN_WAIT_NS_MAX, CallLimits
from tandemfeed.transport.calls.serving.open_streams import OpenStreams
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.tokens import TokenVerifier
from tests.client_lib.toy_cluster import make_certificates
from tests.transport.calls.announced_keys import announced
from tests.transport.calls.test_calls import KEY, SERVER_NAME, proved, token

WAIT_S = 60
PIECE = bytes(64 << 10)
PIECE_COUNT = 1_000
UNREAD_MAX = 200  # pieces that one connection's flow control may take: 12.5 MiB
CERTIFICATES = make_certificates(SERVER_NAME)


class Toy:
    """Handlers that a test observes."""

    def __init__(self) -> None:
        self.made_count = 0
        self.waiting = threading.Semaphore(0)
        self.released = threading.Event()
        self.left = threading.Event()
        self.watched = threading.Event()

    def make(self, _request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        """A long stream, made in threads."""
        for _ in range(PIECE_COUNT):
            self.made_count += 1
            yield PIECE

    def hold(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        """A call that occupies a thread."""
        self.waiting.release()
        assert self.released.wait(WAIT_S)
        return b""

    def echo(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        """A quick call."""
        return request

    async def watch(self, _request: bytes, context: grpc.ServicerContext) -> AsyncIterator[bytes]:
        """A stream that its caller leaves while a thread still begins it."""
        begun = await in_thread(context, self.hold, b"", context)
        try:
            self.watched.set()
            await asyncio.Event().wait()
            yield begun
        finally:
            self.left.set()

    def swallow(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        """A handler that continues after its call was aborted."""
        try:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        except Exception:  # noqa: BLE001 - as a library might
            return b"found"

    def register(self, server: Any) -> None:
        handlers = {
            "Make": grpc.unary_stream_rpc_method_handler(self.make),
            "Hold": grpc.unary_unary_rpc_method_handler(self.hold),
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch),
            "Swallow": grpc.unary_unary_rpc_method_handler(self.swallow),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("toy.All", handlers)])


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def server(toy: Toy) -> Iterator[RpcServer]:
    verifier = TokenVerifier(SERVER_NAME, announced(KEY))
    gates = [Authorization(verifier, {"toy.All": frozenset({"client", "adapter"})})]
    running = serve([toy.register], ["toy.All"], "127.0.0.1:0", CERTIFICATES[1], CERTIFICATES[2], gates)
    yield running
    toy.released.set()
    running.stop(0)


@pytest.fixture
def channels(server: RpcServer) -> Iterator[tuple[grpc.Channel, grpc.Channel]]:
    """Of a client and of an adapter."""
    with ExitStack() as opened:
        client, adapter = (
            opened.enter_context(
                open_channel(server.endpoint, CERTIFICATES[0], SERVER_NAME, proved(token(roles=(role,))))
            )
            for role in ("client", "adapter")
        )
        yield client, adapter


def test_streams_that_are_not_read_hold_no_thread_and_stop_their_producers(
    toy: Toy, channels: tuple[grpc.Channel, grpc.Channel]
) -> None:
    client, _ = channels
    unread = [client.unary_stream("/toy.All/Make")(b"") for _ in range(3 * lanes.THREADS_PER_LANE)]
    for stream in unread:
        next(stream)
    assert client.unary_unary("/toy.All/Echo")(b"here", timeout=WAIT_S) == b"here"  # needs a thread of the same lane
    assert toy.made_count < len(unread) * UNREAD_MAX < len(unread) * PIECE_COUNT
    for stream in unread:
        stream.cancel()


def test_a_lane_without_threads_and_places_delays_no_other_lane(
    toy: Toy, channels: tuple[grpc.Channel, grpc.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, adapter = channels
    monkeypatch.setattr(lanes, "OPEN_CALLS_MAX", lanes.THREADS_PER_LANE)
    held = [client.unary_unary("/toy.All/Hold").future(b"", timeout=WAIT_S) for _ in range(lanes.THREADS_PER_LANE)]
    for _ in held:
        assert toy.waiting.acquire(timeout=WAIT_S)
    with pytest.raises(grpc.RpcError) as refused:
        client.unary_unary("/toy.All/Echo")(b"", timeout=WAIT_S)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == f"{lanes.THREADS_PER_LANE} calls are open; try again later"
    assert adapter.unary_unary("/toy.All/Echo")(b"here", timeout=WAIT_S) == b"here"
    toy.released.set()
    for each in held:
        assert each.result() == b""


@pytest.fixture
def stranger(server: RpcServer) -> Iterator[grpc.Channel]:
    """Of another client."""
    bearer = proved(token(sub="bob", roles=("client",)))
    with open_channel(server.endpoint, CERTIFICATES[0], SERVER_NAME, bearer) as opened:
        yield opened


def test_an_identity_that_holds_every_thread_and_place_delays_no_other_identity(
    toy: Toy, channels: tuple[grpc.Channel, grpc.Channel], stranger: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "OPEN_CALLS_MAX", 32)
    hold = channels[0].unary_unary("/toy.All/Hold")
    held = [hold.future(b"", timeout=WAIT_S) for _ in range(lanes.OPEN_CALLS_MAX)]
    for _ in range(lanes.THREADS_PER_LANE):
        assert toy.waiting.acquire(timeout=WAIT_S)
    with pytest.raises(grpc.RpcError) as refused:  # when all of them have arrived
        hold(b"", timeout=WAIT_S)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stranger.unary_unary("/toy.All/Echo")(b"here", timeout=WAIT_S) == b"here"
    toy.released.set()
    for each in held:
        assert each.result() == b""


def test_an_identity_that_calls_too_often_is_served_at_its_rate_and_no_other_identity_waits(
    channels: tuple[grpc.Channel, grpc.Channel], stranger: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = CallLimits(per_second=1, open_max=64, stream_max=64)
    monkeypatch.setattr(handling, "OF_OTHERS", slow)
    echo = channels[0].unary_unary("/toy.All/Echo")
    calls = [echo.future(b"", timeout=WAIT_S) for _ in range(20)]
    codes = Counter(each.code() for each in calls if each.exception() is not None or each.code())
    served = BURST_S + TURN_WAIT_NS_MAX // SECOND_NS + 1  # and those that are due while the calls come
    assert served <= codes[grpc.StatusCode.OK] < 20
    assert codes[grpc.StatusCode.OK] + codes[grpc.StatusCode.RESOURCE_EXHAUSTED] == 20
    assert stranger.unary_unary("/toy.All/Echo")(b"here", timeout=WAIT_S) == b"here"


def silence() -> Iterator[bytes]:
    threading.Event().wait()
    yield b""


def test_the_oldest_silent_call_gives_way_to_a_new_one(
    channels: tuple[grpc.Channel, grpc.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = channels
    monkeypatch.setattr(lanes, "OPEN_CALLS_MAX", 1)
    silent: Any = client.stream_stream("/toy.All/Echo")(silence(), timeout=WAIT_S)
    ended = threading.Event()
    silent.add_callback(ended.set)
    while not ended.wait(0.01):  # the silent call may reach the server after some of these
        assert client.unary_unary("/toy.All/Echo")(b"here", timeout=WAIT_S) == b"here"
    assert silent.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_silent_calls_of_an_identity_give_way_to_its_own_calls(
    channels: tuple[grpc.Channel, grpc.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handling, "OF_OTHERS", CallLimits(per_second=1_000, open_max=4, stream_max=4))
    silent = [channels[0].stream_stream(f"/toy.All/{name}")(silence()) for name in ("Echo", "Make") for _ in range(8)]
    for _ in range(20):
        assert channels[0].unary_unary("/toy.All/Echo")(b"here", timeout=WAIT_S) == b"here"
    for each in silent:
        each.cancel()


def test_a_stream_that_is_left_while_it_begins_is_cleaned_up(
    toy: Toy, channels: tuple[grpc.Channel, grpc.Channel]
) -> None:
    stream = channels[0].unary_stream("/toy.All/Watch")(b"", timeout=WAIT_S)
    assert toy.waiting.acquire(timeout=WAIT_S)
    stream.cancel()
    toy.released.set()
    assert toy.left.wait(WAIT_S)


def test_a_caught_abort_still_ends_the_call(channels: tuple[grpc.Channel, grpc.Channel]) -> None:
    with pytest.raises(grpc.RpcError) as ended:
        channels[0].unary_unary("/toy.All/Swallow")(b"", timeout=WAIT_S)
    assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing")


class Refused(Exception):
    """What the context of this test raises."""


class Context:
    def abort(self, _code: grpc.StatusCode, details: str) -> None:
        raise Refused(details)


def test_streams_are_limited_in_all_and_for_each_identity() -> None:
    streams, context = OpenStreams(2, 1), Context()
    with streams.one_more("ann", context):
        with pytest.raises(Refused, match="ann has 1 such calls open"), streams.one_more("ann", context):
            pass
        with (
            streams.one_more("bob", context),
            pytest.raises(Refused, match="2 such calls are open"),
            streams.one_more("cid", context),
        ):
            pass
    with streams.one_more("ann", context):
        pass
