"""The calls that an adapter makes to its peers and to the feed source. Threads wait for the answers and post them to
the loop.

This module decides nothing: the engine says what to request and from which adapter, and repeats requests that get no
answer. The adapter follows each of its peers for as long as it is a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import grpc

from tandemfeed.adapter.mailbox import Mailbox
from tandemfeed.adapter.peers.epoch_knowledge import EpochKnowledge
from tandemfeed.adapter.peers.peer_input import PeerInput
from tandemfeed.adapter.peers.peer_link import CallLine, PeerLink
from tandemfeed.adapter.peers.translation import position_to_proto
from tandemfeed.feedcore.replica.channel_state import Answer, PeerState, RunsRefused
from tandemfeed.feedcore.replica.effects import RequestBuckets, RequestRuns, RequestSnapshot, RequestSource
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.runtime.threads import OnFailure
from tandemfeed.transport.calls.channels import BearerFor, open_channel
from tandemfeed.transport.scheduling import started_pool
from tandemfeed.v1 import common_pb2, replay_pb2, replay_pb2_grpc, sync_pb2

QUICK_TIMEOUT_S = 1.0  # decisions and buckets: some milliseconds' work
BULK_TIMEOUT_S = 10.0  # a snapshot of hundreds of megabytes takes seconds
SNAPSHOT_SIZE_MAX = 1 << 30  # bytes; no conversion state is larger


class ServerAddress(NamedTuple):
    """Where a server listens, and what its certificate must name."""

    endpoint: str
    server_name: str


class PeerCalls:
    """Outgoing calls of one adapter. Use it in the loop's thread, which may have a lower priority at first: all threads
    have the priority of the one that makes this object.

    Args:
        sources: source_stream_id -> where its gaps are filled: of two contribution gateways, by the one that holds it.
        on_thread_failed: called if a thread that follows a peer ends by an unexpected exception.
        epochs: takes the proofs of epochs that come with peers' states.

    Owner: the loop's thread. The threads of its lines and links call `on_state` and the mailbox, nothing else here.
    """

    def __init__(
        self,
        engine: AdapterEngine,
        mailbox: Mailbox,
        peer_input: PeerInput,
        ca_pem: bytes,
        tokens: BearerFor,
        sources: Mapping[int, Sequence[ServerAddress]],
        on_thread_failed: OnFailure,
        epochs: EpochKnowledge,
    ) -> None:
        self._engine, self._mailbox, self._input, self._epochs = engine, mailbox, peer_input, epochs
        self._ca_pem, self._tokens, self._on_thread_failed = ca_pem, tokens, on_thread_failed
        found = {address for addresses in sources.values() for address in addresses}
        lines = {each: CallLine("source", self._open_channel(each)) for each in found}
        self._sources = {stream_id: [lines[each] for each in addresses] for stream_id, addresses in sources.items()}
        self._links: dict[int, tuple[ServerAddress, PeerLink]] = {}
        self._starter = started_pool(1, "peers")  # starts what follows a peer, with the priority of this thread

    # ---- the engine's requests ----

    def request_source(self, wanted: RequestSource) -> None:
        """Source messages from the source journal, a chunk at a time as the loop takes them."""
        stream = wanted.source_stream_id
        ranges = [common_pb2.SequenceRange(first_seq=first, last_seq=end - 1) for first, end in wanted.ranges]
        request = replay_pb2.FillRequest(source_stream_id=stream, ranges=ranges, session=wanted.session)

        def call(line: CallLine) -> None:
            stub = replay_pb2_grpc.SourceReplayStub(line.channel)
            for chunk in stub.Fill(request, timeout=BULK_TIMEOUT_S):
                self._mailbox.post_all(partial(self._engine.on_source_datagram, each) for each in chunk.datagrams)
                # The call goes on until the loop has taken them: the engine still lacks what waits in the mailbox, and
                # would request it again, the more often the later the loop is.
                with suppress(TimeoutError):  # a loop that is later still gets the rest all the same
                    self._mailbox.ask(lambda: None)

        for line in self._sources[stream]:  # a gateway without the stream refuses the connection
            line.submit(("source", stream), partial(call, line), _raise, is_bulk=True)

    def request_runs(self, wanted: RequestRuns) -> None:
        """Decisions after a position."""
        channel_id, position, session = wanted.channel_id, position_to_proto(wanted.position), wanted.session
        request = sync_pb2.GetRunsRequest(channel_id=channel_id, position=position, session=session)

        def call(link: PeerLink) -> None:
            answer: Answer
            try:
                answer = self._input.runs(channel_id, link.stub.GetRuns(request, timeout=QUICK_TIMEOUT_S))
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.OUT_OF_RANGE:
                    raise
                answer = RunsRefused(str(error.details()), session)
            self._hear(channel_id, answer)

        self._ask(wanted.adapter_id, "runs", channel_id, call)

    def request_snapshot(self, wanted: RequestSnapshot) -> None:
        """Conversion state at a position."""
        channel_id = wanted.channel_id
        request = sync_pb2.GetSnapshotRequest(channel_id=channel_id, session=wanted.session)

        def call(link: PeerLink) -> None:
            chunks = _bounded(link.stub.GetSnapshot(request, timeout=BULK_TIMEOUT_S))
            self._hear(channel_id, self._input.snapshot(channel_id, chunks))

        self._ask(wanted.adapter_id, "snapshot", channel_id, call, is_bulk=True)

    def request_buckets(self, wanted: RequestBuckets) -> None:
        """Some buckets of the conversion state at a position."""
        channel_id = wanted.channel_id
        request = sync_pb2.GetBucketsRequest(channel_id=channel_id, buckets=wanted.buckets, session=wanted.session)

        def call(link: PeerLink) -> None:
            chunks = _bounded(link.stub.GetBuckets(request, timeout=QUICK_TIMEOUT_S))
            self._hear(channel_id, self._input.buckets(channel_id, chunks))

        self._ask(wanted.adapter_id, "buckets", channel_id, call)

    # ---- the cluster ----

    def set_peers(self, addresses: dict[int, ServerAddress]) -> None:
        """Set the peers' present addresses: follow each of them, and drop the peers that are gone."""
        for adapter_id in [known for known, (address, _) in self._links.items() if addresses.get(known) != address]:
            self._links.pop(adapter_id)[1].close()
        for adapter_id, address in addresses.items():
            if address.endpoint and adapter_id not in self._links:
                self._links[adapter_id] = address, self._starter.submit(self._link, adapter_id, address).result()

    def stop(self) -> None:
        """Cancel all calls."""
        self.set_peers({})
        for line in {line for lines in self._sources.values() for line in lines}:
            line.close()
        self._starter.shutdown()

    # ---- inside ----

    def _link(self, adapter_id: int, address: ServerAddress) -> PeerLink:
        return PeerLink(
            adapter_id,
            self._open_channel(address),
            self._engine.config.adapter_id,
            self._input.state,
            self._on_state,
            self._input.refuse,
            self._on_thread_failed,
        )

    def _open_channel(self, address: ServerAddress) -> grpc.Channel:
        return open_channel(address.endpoint, self._ca_pem, address.server_name, self._tokens)

    def _hear(self, channel_id: int, answer: Answer) -> None:
        self._mailbox.post(partial(self._engine.on_answer, channel_id, answer))

    def _ask(
        self, adapter_id: int, what: str, channel_id: int, call: Callable[[PeerLink], None], *, is_bulk: bool = False
    ) -> None:
        found = self._links.get(adapter_id)
        if found is None:
            return  # unknown yet, or gone; the engine repeats the request
        link = found[1]
        link.line.submit(
            (what, channel_id), lambda: call(link), partial(self._input.refuse, adapter_id, what), is_bulk=is_bulk
        )

    def _on_state(self, state: PeerState, epoch_proof: bytes) -> None:
        if epoch_proof:
            sender = f"adapter {state.adapter_id}"
            self._mailbox.post(partial(self._epochs.take, epoch_proof, sender))
        self._mailbox.post(partial(self._engine.on_peer_state, state))


def _bounded(chunks: Iterable[sync_pb2.SnapshotChunk]) -> list[sync_pb2.SnapshotChunk]:
    """All chunks of an answer; PacketRefused if its size differs from the announced size."""
    taken: list[sync_pb2.SnapshotChunk] = []
    size = 0
    for chunk in chunks:
        taken.append(chunk)
        size += len(chunk.data)
        announced = taken[0].total_size
        if announced > SNAPSHOT_SIZE_MAX or size > announced:
            raise PacketRefused(
                Refusal.MALFORMED,
                f"the answer announced {announced} bytes and has {size}; at most {SNAPSHOT_SIZE_MAX} are allowed",
            )
    return taken


def _raise(refused: PacketRefused) -> None:
    raise AssertionError("the engine itself checks source messages") from refused
