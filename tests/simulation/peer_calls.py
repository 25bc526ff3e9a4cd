"""The calls of an adapter to the source and to its peers, over connections with delays; it makes no decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tandemfeed.feedcore.replica.channel_state import Answer, Buckets, ChannelSnapshot, PeerState, RunsRefused
from tandemfeed.feedcore.replica.effects import RequestBuckets, RequestRuns, RequestSnapshot, RequestSource
from tandemfeed.feedcore.replica.input.decision_log import DecisionLogTooShort
from tandemfeed.feedcore.replica.sessions import NotActive
from tests.simulation.proofs import EpochProof
from tests.simulation.world import SOURCE, World

BUCKET_SUM_OFFSET = 8  # in tests.simulation.toy_feed.BUCKET

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor
    from tests.simulation.cluster import Cluster


class PeerCalls:
    """The calls of one adapter."""

    def __init__(self, world: World, cluster: Cluster, adapter: AdapterActor) -> None:
        self._world, self._cluster, self._adapter = world, cluster, adapter

    def request_source(self, effect: RequestSource) -> None:
        """Request source messages from the source journal."""
        self._trace("requests {} of source {}", effect.ranges, effect.source_stream_id)
        life, adapter, source = self._adapter.life, self._adapter, self._cluster.source

        def answer(_: object) -> None:
            stream, session = effect.source_stream_id, effect.session
            datagrams = [each for first, end in effect.ranges for each in source.fill(session, stream, first, end)]
            if datagrams:
                self._world.call(adapter.from_source, hear, datagrams)

        def hear(datagrams: list[bytes]) -> None:
            for datagram in datagrams:
                adapter.on_message(life, adapter.engine.on_source_datagram, datagram)

        self._world.call(self._world.link(adapter.name, SOURCE), answer)

    def request_runs(self, effect: RequestRuns) -> None:
        """Request the decisions after a position."""
        channel = effect.channel_id
        self._trace(
            "requests from adapter {} the decisions of channel {} after {}", effect.adapter_id, channel, effect.position
        )

        def question(peer: AdapterActor) -> Answer:
            try:
                return peer.engine.runs_since(channel, effect.position, effect.session).reply()
            except DecisionLogTooShort as short:
                return RunsRefused(str(short), effect.session)

        self._ask(effect, question)

    def request_snapshot(self, effect: RequestSnapshot) -> None:
        """Request a snapshot of the conversion state."""
        self._trace("requests from adapter {} a snapshot of channel {}", effect.adapter_id, effect.channel_id)
        self._ask(effect, lambda peer: self._snapshot(peer, effect))

    def request_buckets(self, effect: RequestBuckets) -> None:
        """Request some buckets of the conversion state."""
        text = "requests from adapter {} buckets {} of channel {}"
        self._trace(text, effect.adapter_id, effect.buckets, effect.channel_id)
        self._ask(effect, lambda peer: _buckets(peer, effect))

    def tell_state(self) -> None:
        """Send its state to all peers, at every sync interval."""
        adapter, world = self._adapter, self._world
        for peer in self._cluster.adapters:
            if peer is not adapter and peer.is_alive:
                state, proof = adapter.engine.report(adapter.clock_ns(), adapter.life), adapter.newest_proof
                if (liar := adapter.liar) is not None:
                    state, proof = liar.to_peer(state, is_active=adapter.is_active), liar.proof(proof)
                link = world.link(adapter.name, peer.name)
                world.call(link, self._deliver_state, (peer, peer.life, state, proof))

    # ---- inside ----

    def _deliver_state(self, message: tuple[AdapterActor, int, PeerState, EpochProof | None]) -> None:
        peer, life, state, proof = message
        if peer.life == life and peer.is_alive:
            peer.on_peer_state(state, proof)

    def _ask(
        self, effect: RequestRuns | RequestSnapshot | RequestBuckets, question: Callable[[AdapterActor], Answer]
    ) -> None:
        """Send a request to the peer's engine; the reply arrives as an event. Without a reply, it is sent again."""
        adapter, world, life = self._adapter, self._world, self._adapter.life
        peer = next((each for each in self._cluster.adapters if each.adapter_id == effect.adapter_id), None)
        if peer is None or peer is adapter:
            return

        def answer(_: object) -> None:
            if not peer.is_alive or peer.is_paused:
                return
            try:
                reply = question(peer)
            except NotActive:
                return
            world.call(world.link(peer.name, adapter.name), hear, reply)

        def hear(reply: Answer) -> None:
            adapter.on_message(life, adapter.engine.on_answer, effect.channel_id, reply)

        world.call(world.link(adapter.name, peer.name), answer)

    def _snapshot(self, peer: AdapterActor, effect: RequestSnapshot) -> ChannelSnapshot:
        """The snapshot of a peer; damaged while the peer has the fault DAMAGE."""
        snapshot = peer.engine.snapshot(effect.channel_id, effect.session)
        self._cluster.on_state_given(peer, snapshot)
        if peer.is_damaging:
            snapshot = replace(snapshot, conversion_state=_damaged(snapshot.conversion_state, 0))
        return snapshot

    def _trace(self, text: str, *values: object) -> None:
        if self._world.is_verbose:
            self._world.log("{} " + text, self._adapter.name, *values)


def _buckets(peer: AdapterActor, effect: RequestBuckets) -> Buckets:
    buckets = peer.engine.buckets(effect.channel_id, effect.buckets, effect.session)
    return replace(buckets, data=_damaged(buckets.data, BUCKET_SUM_OFFSET)) if peer.is_damaging else buckets


def _damaged(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 0x55]) + data[offset + 1 :]
