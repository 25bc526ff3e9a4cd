"""The replay service over a real connection: by number and by source message, within limits, for authorised callers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.adapter.records.replay_pace import ReplayPace
from tandemfeed.adapter.records.replay_service import RANGES_OF_STEP, REPLAY_COUNT_MAX, REPLAY_RANGES_MAX, ReplayService
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket, decode_output_packet
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.serving.server import RpcServer
from tandemfeed.v1 import replay_pb2, replay_pb2_grpc
from tests.adapter.peers.rpc_by_hand import CA, SERVER_NAME, channel_to, serve_by_hand, token
from tests.adapter.records.test_output_journal import BLOCK, packet

ADAPTER = token("adapter", feeds=("equities",))
CLIENT = token("client", topics=("ticks.#",))


class Served(NamedTuple):
    """The server of the tests."""

    rpc: RpcServer
    service: ReplayService


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    journal = OutputJournal(Path(tmp_path_factory.mktemp("journal")), block_size=BLOCK)
    for first in (1, 4, 7):
        journal.append(packet(1, first, 3))
    for first in (10, 13):
        journal.append(packet(1, first, 3)._replace(flags=OutputFlag.PROVISIONAL))
    service = ReplayService(journal)
    service.feed, service.topics = "equities", {1: "ticks.us", 2: "ticks.eu"}
    running = serve_by_hand(lambda server: replay_pb2_grpc.add_ReplayServicer_to_server(service, server))
    yield Served(running, service)
    running.stop()
    journal.close()


@pytest.fixture
def server(served: Served) -> RpcServer:
    return served.rpc


@pytest.fixture
def pace(served: Served) -> Iterator[ReplayPace]:
    yield served.service.pace
    served.service.pace.limit(0)


def span(first: int, end: int) -> replay_pb2.NumberRange:
    return replay_pb2.NumberRange(first=first, end=end)


def source_span(first: int, end: int, stream: int = 1) -> replay_pb2.SourceRange:
    return replay_pb2.SourceRange(source_stream_id=stream, range=span(first, end))


def replay(server: RpcServer, bearer: str, request: replay_pb2.ReplayRequest) -> list[OutputPacket]:
    with channel_to(server, bearer) as channel:
        chunks = replay_pb2_grpc.ReplayStub(channel).Replay(request, timeout=20)
        return [decode_output_packet(data) for chunk in chunks for data in chunk.packets]


@pytest.mark.parametrize("bearer", [ADAPTER, CLIENT])
def test_numbered_packets_come_by_number_and_provisional_ones_by_source_message(server: RpcServer, bearer: str) -> None:
    found = replay(
        server,
        bearer,
        replay_pb2.ReplayRequest(channel_id=1, input_ranges=[span(4, 21)], source_ranges=[source_span(12, 14)]),
    )
    numbered, provisional = found[:2], found[2:]
    assert [each.first_input_seq for each in numbered] == [4, 7]
    assert not any(each.flags & OutputFlag.PROVISIONAL for each in numbered)
    assert [each.runs[0].first_source_seq for each in provisional] == [10, 13]
    assert all(each.flags == OutputFlag.PROVISIONAL | OutputFlag.RETRANSMISSION for each in provisional)


def test_a_packet_named_by_several_ranges_comes_once(server: RpcServer) -> None:
    found = replay(
        server,
        CLIENT,
        replay_pb2.ReplayRequest(
            channel_id=1,
            input_ranges=[span(7, 10), span(1, 6), span(2, 9), span(7, 10)],
            source_ranges=[source_span(13, 15), source_span(10, 14), source_span(13, 16)],
        ),
    )
    assert [each.first_input_seq for each in found[:3]] == [1, 4, 7]
    assert [each.runs[0].first_source_seq for each in found[3:]] == [10, 13]


def test_a_client_without_an_input_seq_requests_by_message_seq(server: RpcServer) -> None:
    found = replay(server, CLIENT, replay_pb2.ReplayRequest(channel_id=1, message_range=span(5, 8)))
    assert [each.first_input_seq for each in found] == [4, 7]


def test_packets_that_are_not_in_the_journal_are_left_out(server: RpcServer) -> None:
    for wanted in (source_span(40, 51), source_span(10, 13, stream=2)):
        assert replay(server, CLIENT, replay_pb2.ReplayRequest(channel_id=1, source_ranges=[wanted])) == []
    assert replay(server, CLIENT, replay_pb2.ReplayRequest(channel_id=2, source_ranges=[source_span(10, 13)])) == []


@pytest.mark.parametrize(
    "request_",
    [
        replay_pb2.ReplayRequest(input_ranges=[span(5, 5)]),
        replay_pb2.ReplayRequest(input_ranges=[span(0, 4)]),
        replay_pb2.ReplayRequest(message_range=span(5, 4)),
        replay_pb2.ReplayRequest(message_range=span(0, 0)),
        replay_pb2.ReplayRequest(source_ranges=[source_span(5, 4)]),
        replay_pb2.ReplayRequest(input_ranges=[span(1, REPLAY_COUNT_MAX + 2)]),
        replay_pb2.ReplayRequest(input_ranges=[span(1, REPLAY_COUNT_MAX + 1)], source_ranges=[source_span(1, 2)]),
        replay_pb2.ReplayRequest(input_ranges=[span(1, REPLAY_COUNT_MAX + 1)], message_range=span(1, 2)),
        replay_pb2.ReplayRequest(input_ranges=[span(REPLAY_COUNT_MAX + 9, 1), span(1, REPLAY_COUNT_MAX + 9)]),
        replay_pb2.ReplayRequest(source_ranges=[source_span(1, 2)] * (REPLAY_RANGES_MAX + 1)),
    ],
)
def test_invalid_ranges_and_too_many_numbers_are_refused(server: RpcServer, request_: replay_pb2.ReplayRequest) -> None:
    request_.channel_id = 1
    with pytest.raises(grpc.RpcError) as refused:
        replay(server, CLIENT, request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "bearer",
    [
        token("adapter", feeds=("bonds",)),
        token("adapter"),
        token("client", feeds=("equities",)),
        token("client", topics=("futures.#",)),
    ],
)
def test_neither_an_adapter_of_another_feed_nor_a_client_of_other_topics_is_served(
    server: RpcServer, bearer: str
) -> None:
    for request in (
        replay_pb2.ReplayRequest(channel_id=1, input_ranges=[span(1, 2)]),
        replay_pb2.ReplayRequest(channel_id=1, source_ranges=[source_span(10, 11)]),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            replay(server, bearer, request)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]


def chunks_of(channel: grpc.Channel) -> Iterator[replay_pb2.ReplayChunk]:
    """A replay of everything."""
    request = replay_pb2.ReplayRequest(channel_id=1, input_ranges=[span(1, 21)], source_ranges=[source_span(1, 30)])
    return replay_pb2_grpc.ReplayStub(channel).Replay(request, timeout=60)


def packets_of(chunks: Iterable[replay_pb2.ReplayChunk]) -> list[bytes]:
    return [packet for chunk in chunks for packet in chunk.packets]


def test_limited_replays_wait_for_each_other_say_that_they_live_and_lose_nothing(
    server: RpcServer, pace: ReplayPace
) -> None:
    with channel_to(server, CLIENT) as one, channel_to(server, CLIENT) as other, channel_to(server, ADAPTER) as adapter:
        everything = packets_of(chunks_of(one))
        assert len(everything) == 5
        pace.limit(1)  # a byte a second: nothing but the first packet comes for minutes
        first = chunks_of(one)
        assert len(next(first).packets) == 1
        second, third = chunks_of(other), chunks_of(other)
        for waiting in (first, second, third):
            assert not next(waiting).packets
        third.cancel()  # type: ignore[attr-defined]  # while it waits, which costs the others nothing
        assert packets_of(chunks_of(adapter)) == everything, "adapters of the feed are not slowed down"
        pace.limit(50_000)
        assert packets_of(first) == everything[1:]
        assert packets_of(second) == everything


def test_a_limit_is_lifted_for_replays_that_wait(server: RpcServer, pace: ReplayPace) -> None:
    with channel_to(server, CLIENT) as channel:
        pace.limit(1)
        chunks = chunks_of(channel)
        while next(chunks).packets:
            pass
        pace.limit(0)
        assert len(packets_of(chunks)) == 4


def silence() -> Iterator[bytes]:
    threading.Event().wait()
    yield b""


def test_silent_callers_starve_neither_a_client_nor_an_adapter(server: RpcServer) -> None:
    """With a token, and without one, at every service that a stranger can reach."""
    request = replay_pb2.ReplayRequest(channel_id=1, message_range=span(5, 8))
    methods = [
        f"/{service}"
        for service in (
            "tandemfeed.v1.Replay/Replay",
            "tandemfeed.v1.AdapterSync/GetSnapshot",
            "grpc.health.v1.Health/Check",
            "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        )
    ]
    with channel_to(server, CLIENT) as client, open_channel(server.endpoint, CA, SERVER_NAME) as stranger:
        calls = [
            channel.stream_stream(method)(silence(), wait_for_ready=True)
            for method in methods
            for channel in (client, stranger)
            for _ in range(40)
        ]
        for bearer in (CLIENT, ADAPTER):
            assert [each.first_input_seq for each in replay(server, bearer, request)] == [4, 7]
        for call in calls:
            call.cancel()


def test_a_place_is_located_by_time_for_callers_that_may_replay_it(server: RpcServer) -> None:
    stranger = token("client", topics=("other.#",))
    with channel_to(server, CLIENT) as channel:
        found = replay_pb2_grpc.ReplayStub(channel).Locate(replay_pb2.LocateRequest(channel_id=1), timeout=20)
    (place,) = found.sessions
    assert (place.position.next_message_seq, place.is_oldest) == (1, True)
    assert decode_output_packet(place.heartbeat).flags == OutputFlag.HEARTBEAT
    with channel_to(server, stranger) as channel, pytest.raises(grpc.RpcError) as refused:
        replay_pb2_grpc.ReplayStub(channel).Locate(replay_pb2.LocateRequest(channel_id=1), timeout=20)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


# ---- one identity does not hold what others need ----

OTHER = token("client", topics=("ticks.#",), identity="other")


class Locating:
    """Searches for places that take until a test ends them."""

    def __init__(self, journal: OutputJournal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()  # the number of searches that run then
        self.let_go = threading.Semaphore(0)
        self._running = 0
        self._locate = journal.locate
        monkeypatch.setattr(journal, "locate", self._search)

    def _search(self, *arguments: Any, **named: Any) -> Any:
        self._running += 1
        self.begun.put(self._running)
        assert self.let_go.acquire(timeout=60)
        self._running -= 1
        return self._locate(*arguments, **named)


def locate(channel: grpc.Channel) -> Any:
    """Begin to locate a place."""
    return replay_pb2_grpc.ReplayStub(channel).Locate.future(replay_pb2.LocateRequest(channel_id=1), timeout=60)


def test_searches_for_places_hold_up_neither_repairs_of_others_nor_of_their_own_caller(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = Locating(served.service._journal, monkeypatch)
    request = replay_pb2.ReplayRequest(channel_id=1, message_range=span(5, 8))
    with channel_to(served.rpc, CLIENT) as greedy, channel_to(served.rpc, OTHER) as other:
        waiting = [locate(greedy) for _ in range(20)]
        assert searches.begun.get(timeout=60) == 1
        for bearer in (CLIENT, OTHER, ADAPTER):
            assert [each.first_input_seq for each in replay(served.rpc, bearer, request)] == [4, 7]
        late = locate(other)
        while not late.done():
            searches.let_go.release()
            assert searches.begun.get(timeout=60) == 1  # one at a time
            assert sum(each.done() for each in waiting) <= 10, "the other identity waits for all of one"
        for _ in waiting:
            searches.let_go.release()
        for each in (*waiting, late):
            assert each.result().sessions


def test_a_table_of_last_values_that_takes_long_to_copy_holds_up_no_repairs(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()

    class Slow:
        """A table, and the keeper that has it."""

        feed_id = 1

        def table(self, _channel_id: int, _key: str) -> Slow:
            return self

        def newest(self, _session: int) -> None:
            assert let_go.wait(60)

    monkeypatch.setattr(served.service, "last_values", Slow())
    request = replay_pb2.ReplayRequest(channel_id=1, message_range=span(5, 8))
    with channel_to(served.rpc, CLIENT) as greedy:
        wanted = replay_pb2.LastValuesRequest(channel_id=1, key="symbol")
        calls = [replay_pb2_grpc.ReplayStub(greedy).LastValues(wanted, timeout=60) for _ in range(12)]
        for call in calls:
            assert not next(call).packets  # alive
        for bearer in (CLIENT, OTHER, ADAPTER):
            assert [each.first_input_seq for each in replay(served.rpc, bearer, request)] == [4, 7]
        let_go.set()
        for call in calls:
            assert not [chunk for chunk in call if chunk.packets]


def test_an_identity_with_many_replays_leaves_others_their_share_of_the_limit(served: Served, pace: ReplayPace) -> None:
    with channel_to(served.rpc, CLIENT) as greedy, channel_to(served.rpc, OTHER) as other:
        everything = packets_of(chunks_of(other))
        pace.limit(20 * len(everything[0]))  # about twenty packets a second, so each is a chunk
        arrived: queue.SimpleQueue[str] = queue.SimpleQueue()

        def read(who: str, chunks: Iterable[replay_pb2.ReplayChunk]) -> None:
            for _ in packets_of_each(chunks):
                arrived.put(who)
            arrived.put(f"end of {who}")

        with ThreadPoolExecutor(9) as pool:
            for _ in range(8):
                pool.submit(read, "greedy", chunks_of(greedy))
            assert arrived.get(timeout=60) == "greedy"
            pool.submit(read, "other", chunks_of(other))
            order = list(iter(lambda: arrived.get(timeout=60), "end of other"))
            pace.limit(0)
    assert order.count("other") == len(everything)
    assert order.count("greedy") <= 4 * len(everything)  # of 8 times as many


def packets_of_each(chunks: Iterable[replay_pb2.ReplayChunk]) -> Iterator[bytes]:
    """As they arrive."""
    for chunk in chunks:
        yield from chunk.packets


def test_a_request_of_many_ranges_that_are_not_here_lets_others_in_after_some_of_them(served: Served) -> None:
    ranges = [span(first, first + 1) for first in range(1_000, 1_000 + 2 * REPLAY_RANGES_MAX, 2)]
    ranges[-1] = span(1, 2)
    request = replay_pb2.ReplayRequest(channel_id=1, input_ranges=ranges)
    with channel_to(served.rpc, CLIENT) as channel:
        chunks = list(replay_pb2_grpc.ReplayStub(channel).Replay(request, timeout=60))
    assert len(chunks) >= REPLAY_RANGES_MAX // RANGES_OF_STEP
    assert [decode_output_packet(data).first_input_seq for data in packets_of(chunks)] == [1]
