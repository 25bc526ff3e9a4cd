"""Calls to peers over real connections: a peer that hangs or is gone delays no other; invalid messages are refused."""

from __future__ import annotations

import asyncio
import logging
import queue
import select
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest

from tandemfeed.adapter.mailbox import Mailbox
from tandemfeed.adapter.peers.epoch_knowledge import EpochKnowledge
from tandemfeed.adapter.peers.peer_calls import SNAPSHOT_SIZE_MAX as SIZE_MAX
from tandemfeed.adapter.peers.peer_calls import PeerCalls, ServerAddress, _bounded, _raise
from tandemfeed.adapter.peers.peer_input import LOG_INTERVAL_NS, PeerInput
from tandemfeed.adapter.peers.peer_link import CallLine
from tandemfeed.adapter.peers.translation import peer_state_to_proto, runs_to_proto
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.replica.channel_state import Answer, ChannelStatus, PeerState, RunsReply
from tandemfeed.feedcore.replica.config import ChannelConfig, EngineConfig
from tandemfeed.feedcore.replica.effects import AdapterEffect, RequestBuckets, RequestRuns, RequestSource
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.position import MessageStreamState, Run
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.calls.server_names import adapter_server
from tandemfeed.v1 import common_pb2, replay_pb2, replay_pb2_grpc, sync_pb2, sync_pb2_grpc
from tests.adapter.peers.rpc_by_hand import CA, SERVER_NAME, serve_by_hand, token
from tests.adapter.peers.test_peer_input import HEALTH

WAIT_S = 60
POSITION = MessageStreamState(1, 1, 1, {1: 1})
STATUS = ChannelStatus(1, ReplicaState.ACTIVE, POSITION, Lineage().opened(1, 1, 1))
SESSION = 20_261_121
REPLY = RunsReply(Lineage().opened(1, 1, 1), (Run(1, 1, 1, 1, 1, 2, 2),))


class Peer(sync_pb2_grpc.AdapterSyncServicer):
    """Another adapter; hangs on request."""

    def __init__(self, adapter_id: int, *, says_id: int | None = None) -> None:
        self.released = threading.Event()
        self.released.set()
        self.followers: queue.SimpleQueue[str] = queue.SimpleQueue()  # "came", "left"
        self._says_id = adapter_id if says_id is None else says_id
        self.reply = REPLY
        self.chunks: list[sync_pb2.SnapshotChunk] = []
        self.server = serve_by_hand(lambda server: sync_pb2_grpc.add_AdapterSyncServicer_to_server(self, server))

    async def Follow(  # noqa: N802
        self, _request: sync_pb2.FollowRequest, _context: grpc.ServicerContext
    ) -> AsyncIterator[common_pb2.FeedAdapterState]:
        """Send one state, and keep the stream open."""
        self.followers.put("came")
        try:
            yield peer_state_to_proto(PeerState(self._says_id, 1, 1, (STATUS,)), HEALTH)
            await asyncio.sleep(WAIT_S)
        finally:
            self.followers.put("left")

    def GetBuckets(  # noqa: N802
        self, _request: sync_pb2.GetBucketsRequest, _context: grpc.ServicerContext
    ) -> Iterator[sync_pb2.SnapshotChunk]:
        """The chunks of an answer."""
        yield from self.chunks

    def GetRuns(  # noqa: N802
        self, _request: sync_pb2.GetRunsRequest, _context: grpc.ServicerContext
    ) -> sync_pb2.GetRunsReply:
        """Reply when released."""
        assert self.released.wait(WAIT_S)
        return runs_to_proto(self.reply)


class Source(replay_pb2_grpc.SourceReplayServicer):
    """A feed's source, which answers with a text for each range."""

    def __init__(self) -> None:
        self.call_count = 0
        self.server = serve_by_hand(lambda server: replay_pb2_grpc.add_SourceReplayServicer_to_server(self, server))

    def Fill(  # noqa: N802
        self, request: replay_pb2.FillRequest, _context: grpc.ServicerContext
    ) -> Iterator[replay_pb2.FillChunk]:
        """One chunk."""
        self.call_count += 1
        stream, session = request.source_stream_id, request.session
        texts = [f"{stream} {session} {each.first_seq} to {each.last_seq}" for each in request.ranges]
        yield replay_pb2.FillChunk(datagrams=[each.encode() for each in texts])


def address(endpoint: str) -> ServerAddress:
    """Where a server by hand listens."""
    return ServerAddress(endpoint, SERVER_NAME)


class Caller:
    """PeerCalls with a mailbox that this object reads in place of the loop."""

    def __init__(self, source: str = "") -> None:
        self.mailbox = Mailbox()
        self.is_paused = False
        self.counters = CounterSet()
        self.heard: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        config = EngineConfig(1, 1, SESSION, (ChannelConfig(1, (1,)),))
        engine = _RecordingEngine(config, self.heard)
        peer_input = PeerInput({1: frozenset({1})}, self.counters, self.mailbox.post)
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            sources = {1: [address(source or f"127.0.0.1:{unused.getsockname()[1]}")]}
        bearer = token("adapter", feeds=("equities",))
        self.failed: queue.SimpleQueue[str] = queue.SimpleQueue()  # threads
        calls = PeerCalls(
            engine,
            self.mailbox,
            peer_input,
            CA,
            bearer,
            sources,
            lambda name, _failure: self.failed.put(name),
            EpochKnowledge(engine, self.counters, ()),
        )
        self.calls = calls
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._turn, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.calls.stop()
        self._ended.set()
        self._thread.join()

    def _turn(self) -> None:
        while not self._ended.wait(0.005):
            if self.is_paused:
                continue
            for event in self.mailbox.take(100):
                event(0)


class _RecordingEngine(AdapterEngine):
    """Has a real configuration, and records the calls that it receives."""

    def __init__(self, config: EngineConfig, heard: queue.SimpleQueue[tuple[str, Any]]) -> None:
        self.config, self._heard = config, heard

    def on_answer(self, channel_id: int, answer: Answer, now_ns: int) -> list[AdapterEffect]:
        self._heard.put(("runs", answer))
        return []

    def on_source_datagram(self, datagram: bytes, now_ns: int) -> list[AdapterEffect]:
        self._heard.put(("source", datagram))
        return []

    def on_peer_state(self, state: PeerState, now_ns: int) -> list[AdapterEffect]:
        self._heard.put(("state", state.adapter_id))
        return []


@pytest.fixture
def caller() -> Iterator[Caller]:
    made = Caller()
    yield made
    made.close()


@pytest.fixture
def peer_of() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def make(*args: Any, **options: Any) -> Peer:
        made.append(Peer(*args, **options))
        return made[-1]

    yield make
    for peer in made:
        peer.released.set()
        peer.server.stop(0)


def take(caller: Caller, kind: str, count: int = 1) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        each, value = caller.heard.get(timeout=WAIT_S)
        if each == kind:
            found.append(value)
    return found


def test_a_peer_that_hangs_does_not_delay_calls_to_others(caller: Caller, peer_of: Callable[..., Peer]) -> None:
    hanging, well = peer_of(2), peer_of(3)
    hanging.released.clear()
    caller.calls.set_peers({2: address(hanging.server.endpoint), 3: address(well.server.endpoint)})
    assert sorted(take(caller, "state", 2)) == [2, 3]
    for channel_id in (1, 2, 3, 4):
        caller.calls.request_runs(RequestRuns(channel_id, 2, POSITION, SESSION))
    caller.calls.request_runs(RequestRuns(1, 3, POSITION, SESSION))
    assert take(caller, "runs") == [REPLY]  # while the other call still hangs


def test_all_gaps_of_a_source_stream_are_filled_by_one_call() -> None:
    source = Source()
    caller = Caller(source.server.endpoint)
    try:
        caller.calls.request_source(RequestSource(1, ((1, 3), (5, 6), (8, 20)), SESSION))
        assert take(caller, "source", 3) == [b"1 20261121 1 to 2", b"1 20261121 5 to 5", b"1 20261121 8 to 19"]
    finally:
        caller.close()
        source.server.stop(0)


def test_source_messages_that_wait_for_the_loop_are_not_requested_again() -> None:
    source = Source()
    caller = Caller(source.server.endpoint)
    wanted = RequestSource(1, ((1, 3),), SESSION)
    try:
        caller.is_paused = True
        caller.calls.request_source(wanted)
        assert select.select([caller.mailbox.fileno()], [], [], WAIT_S)[0]
        (line,) = caller.calls._sources[1]
        with line._ended:
            assert not line._ended.wait_for(lambda: not line._busy, 0.3), "the call did not wait for the loop"
        caller.calls.request_source(wanted)  # the engine repeats what it still lacks
        caller.is_paused = False
        assert take(caller, "source") == [b"1 20261121 1 to 2"]
        with line._ended:
            assert line._ended.wait_for(lambda: not line._busy, WAIT_S)
        caller.calls.request_source(RequestSource(1, ((3, 5),), SESSION))
        assert take(caller, "source") == [b"1 20261121 3 to 4"]
        assert source.call_count == 2
    finally:
        caller.close()
        source.server.stop(0)


def test_a_call_that_hangs_is_cancelled_so_that_the_next_one_gets_through(
    caller: Caller, peer_of: Callable[..., Peer]
) -> None:
    peer = peer_of(2)
    caller.calls.set_peers({2: address(peer.server.endpoint)})
    take(caller, "state")
    peer.released.clear()
    caller.calls.request_runs(RequestRuns(1, 2, POSITION, SESSION))
    line = caller.calls._links[2][1].line
    assert line._busy
    with line._ended:
        assert line._ended.wait_for(lambda: not line._busy, WAIT_S)
    peer.released.set()
    caller.calls.request_runs(RequestRuns(1, 2, POSITION, SESSION))
    assert take(caller, "runs") == [REPLY]


def test_following_ends_when_a_peer_leaves_or_changes_its_address(caller: Caller, peer_of: Callable[..., Peer]) -> None:
    before, after = peer_of(2), peer_of(2)
    caller.calls.set_peers({2: address(before.server.endpoint)})
    take(caller, "state")
    caller.calls.set_peers({2: address(after.server.endpoint)})
    take(caller, "state")
    assert [before.followers.get(timeout=WAIT_S) for _ in range(2)] == ["came", "left"]
    link = caller.calls._links[2][1]
    caller.calls.set_peers({})
    assert [after.followers.get(timeout=WAIT_S) for _ in range(2)] == ["came", "left"]
    link._thread.join(WAIT_S)
    assert not link._thread.is_alive()


def test_a_server_with_the_certificate_of_another_adapter_receives_no_call(
    caller: Caller, peer_of: Callable[..., Peer]
) -> None:
    impostor, well = peer_of(2), peer_of(3)
    named = ServerAddress(impostor.server.endpoint, adapter_server("equities", "b"))
    caller.calls.set_peers({2: named, 3: address(well.server.endpoint)})
    caller.calls.request_runs(RequestRuns(1, 2, POSITION, SESSION))
    assert take(caller, "state") == [3]
    line = caller.calls._links[2][1].line
    with line._ended:
        assert line._ended.wait_for(lambda: not line._busy, WAIT_S)
    assert impostor.followers.empty()


def test_a_state_in_another_adapters_name_or_with_unknown_streams_is_refused_and_counted(
    caller: Caller, peer_of: Callable[..., Peer]
) -> None:
    impostor, invalid, valid = peer_of(2, says_id=3), peer_of(3), peer_of(4)
    invalid.reply = RunsReply(REPLY.lineage, (REPLY.runs[0]._replace(source_stream_id=9),))
    caller.calls.set_peers(
        {2: address(impostor.server.endpoint), 3: address(invalid.server.endpoint), 4: address(valid.server.endpoint)}
    )
    assert sorted(take(caller, "state", 2)) == [3, 4]
    assert impostor.followers.get(timeout=WAIT_S) == "came"
    caller.calls.request_runs(RequestRuns(1, 3, POSITION, SESSION))
    line = caller.calls._links[3][1].line
    with line._ended:
        assert line._ended.wait_for(lambda: not line._busy, WAIT_S)
    caller.calls.request_runs(RequestRuns(1, 4, POSITION, SESSION))
    assert take(caller, "runs") == [REPLY]  # only that of the valid peer
    refusals = caller.counters.refusals
    assert refusals[Refusal.UNKNOWN_STREAM] == 1
    assert refusals[Refusal.WRONG_ADAPTER] >= 1


def test_buckets_of_a_peers_state_are_heard(
    caller: Caller, peer_of: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peer_of(2)
    peer.chunks = [sync_pb2.SnapshotChunk(total_size=4, data=b"ab"), sync_pb2.SnapshotChunk(data=b"cd")]

    def joined(channel_id: int, chunks: list[sync_pb2.SnapshotChunk]) -> object:
        return channel_id, b"".join(each.data for each in chunks)

    monkeypatch.setattr(caller.calls._input, "buckets", joined)
    caller.calls.set_peers({2: address(peer.server.endpoint)})
    caller.calls.request_buckets(RequestBuckets(1, 2, (3,), SESSION))
    assert take(caller, "runs") == [(1, b"abcd")]


@pytest.mark.parametrize(
    ("announced", "sizes", "is_allowed"),
    [(8, (4, 4), True), (8, (8, 1), False), (SIZE_MAX, (4,), True), (SIZE_MAX + 1, (4,), False), (0, (0,), True)],
)
def test_an_answer_is_at_most_as_large_as_it_announced_and_as_any_state_can_be(
    announced: int, sizes: tuple[int, ...], is_allowed: bool
) -> None:
    chunks = [sync_pb2.SnapshotChunk(total_size=announced, data=bytes(size)) for size in sizes]
    if is_allowed:
        assert _bounded(chunks) == chunks
    else:
        with pytest.raises(PacketRefused, match=f"announced {announced} bytes and has {sum(sizes)}"):
            _bounded(chunks)


def test_a_source_message_that_is_refused_before_the_engine_saw_it_is_a_fault_of_this_program() -> None:
    with pytest.raises(AssertionError, match="the engine itself checks source messages"):
        _raise(PacketRefused(Refusal.MALFORMED, "short"))


def test_a_thread_that_cannot_follow_a_peer_any_more_is_reported(
    caller: Caller, peer_of: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peer_of(2)
    monkeypatch.setattr(caller.calls._input, "state", lambda _adapter_id, _message: 1 // 0)
    caller.calls.set_peers({2: address(peer.server.endpoint)})
    assert caller.failed.get(timeout=WAIT_S) == "follow-2"


class Failing(grpc.RpcError):
    """A call that failed."""


@pytest.fixture
def line() -> Iterator[tuple[CallLine, list[int]]]:
    now_ns = [0]
    made = CallLine("adapter-2", grpc.insecure_channel("127.0.0.1:1"), lambda: now_ns[0])
    yield made, now_ns
    made.close()


def submit(line: CallLine, call: Callable[[], None]) -> None:
    """Have a line make a call, and wait for its end."""
    line.submit("runs", call, lambda _refused: None)
    with line._ended:
        assert line._ended.wait_for(lambda: not line._busy, WAIT_S)


def test_calls_that_fail_are_logged_at_intervals_with_their_count(
    line: tuple[CallLine, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    calls, now_ns = line

    def fail() -> None:
        raise Failing("no answer")

    with caplog.at_level(logging.INFO, "tandemfeed.adapter.peers.peer_link"):
        for now_ns[0] in (0, 1, LOG_INTERVAL_NS - 1, LOG_INTERVAL_NS):
            submit(calls, fail)
    logged = [(record.message, vars(record)["whom"], vars(record)["kind"], vars(record)["why"], vars(record)["count"])
              for record in caplog.records]  # fmt: skip
    text = "a call failed; it will be repeated"
    assert logged == [(text, "adapter-2", "runs", "no answer", 1), (text, "adapter-2", "runs", "no answer", 3)]


def test_a_call_that_fails_by_a_fault_of_this_program_is_logged_as_an_error_and_the_line_goes_on(
    line: tuple[CallLine, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    calls, _ = line
    submit(calls, lambda: {}["missing"])
    done: list[int] = []
    submit(calls, lambda: done.append(1))
    assert done == [1]
    calls._quick.shutdown()  # what a thread says of a call comes after the call
    bugs = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.message for record in bugs] == ["a call failed because of a bug"]
    assert bugs[0].exc_info is not None
    assert "missing" in str(bugs[0].exc_info[1])


def test_a_line_that_was_closed_logs_no_failure_and_makes_no_call(
    line: tuple[CallLine, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    calls, _ = line
    going, let_go = threading.Event(), threading.Event()

    def hang() -> None:
        going.set()
        assert let_go.wait(WAIT_S)
        raise Failing("cancelled")

    with caplog.at_level(logging.INFO, "tandemfeed.adapter.peers.peer_link"):
        calls.submit("runs", hang, lambda _refused: None)
        assert going.wait(WAIT_S)
        calls.close()
        let_go.set()
        with calls._ended:
            assert calls._ended.wait_for(lambda: not calls._busy, WAIT_S)
    assert not caplog.records
    calls.submit("runs", lambda: pytest.fail("called"), lambda _refused: None)
    assert not calls._busy
