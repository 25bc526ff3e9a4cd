"""The loop: the one thread that owns the engine. Receives, feeds, performs, sends, re-arms one timer. Nothing else.

The hot path is per packet: a datagram in, one engine call, its effects in order. No sequence number is touched here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import zmq

from tandemfeed.adapter.idle_channels import IdleChannels
from tandemfeed.adapter.mailbox import Event, Mailbox
from tandemfeed.adapter.peers.epoch_knowledge import EpochKnowledge
from tandemfeed.adapter.peers.peer_calls import PeerCalls
from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.adapter.reporting.forged_packets import ForgedPackets
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot
from tandemfeed.feedcore.replica.config import PublishMode
from tandemfeed.feedcore.replica.effects import (
    AdapterEffect,
    CommitProvisional,
    RequestBuckets,
    RequestRuns,
    RequestSnapshot,
    RequestSource,
    RunsLost,
    ServerRequest,
    SessionBegun,
    ShowEpochProof,
    StateMoved,
    perform,
)
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.wire.output_packet import PROVISIONAL_BIT, OutputPacket
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.transport.multicast.sockets import MulticastReceiver, MulticastSender
from tandemfeed.transport.process_shell import StopSignal
from tandemfeed.transport.sealing.epoch_proofs import PROOF_MAGIC
from tandemfeed.transport.sealing.opening import ImpersonationRefused, Opener
from tandemfeed.transport.sealing.sealing import NoKey, NonceExhausted, Sealer
from tandemfeed.transport.unicast.publisher import UnicastPublisher

LOG = logging.getLogger("tandemfeed.adapter.loop")
# Datagrams per socket and turn, and events of other threads: after a flood, or while an adapter catches up, nothing
# waits long, and sending keeps pace with receiving.
DRAIN_COUNT_MAX = 16
# Packets of one segment of the journal. So many are sent together: a new active, which has much to send, does not wait
# for all of it.
PACKETS_MAX = 64
POLL_MS_MAX = 100
# A machine that is always busy may leave an adapter that yields too little to catch up.
JOIN_NS_MAX = 5_000_000_000


class SourceLine(Protocol):
    """A source of a source stream's datagrams."""

    socket: Any

    def receive(self) -> bytes | None:
        """The next source packet; None if there is none."""

    def close(self) -> None:
        """Stop hearing."""


class Inbox(Protocol):
    """Events for the loop."""

    def fileno(self) -> int:
        """Readable while events wait."""

    def take(self, count_max: int) -> list[Event]:
        """The next events, at most `count_max`."""


class AdapterLoop:
    """One adapter's loop.

    Args:
        groups: channel_id -> this adapter's own multicast group.
        epochs: the proofs of epochs; None: none is passed on, and only the admin server vouches for epochs.
        grants: grants of the lease that arrive ahead of the admin server's orders; None: the orders alone bring them.
        ask_server: sends an effect's request to the admin server. Called in the loop's thread; must not block.
        report_interval_ns: the interval between calls of `on_report_due`.
        ask_source: requests messages from the feed source itself; None: `peers` requests them from its journal.
        collect_refused: collects refused source messages; called once a turn.
        forged: notes the senders of forged packets; None: they are only counted, as every refusal is.
        unicast: sends the same datagrams to clients that multicast does not reach; None: it serves none.
        idle_channels: packets that need not be sent; None: all are sent.
        clock_ns: the monotonic clock.

    Owner: the thread that takes turns: that of `join`, then that of `run`. Others post to the mailbox, or call `hurry`.
    """

    def __init__(
        self,
        engine: AdapterEngine,
        counters: CounterSet,
        *,
        sources: Sequence[SourceLine],
        sender: MulticastSender,
        groups: Mapping[int, str],
        sealer: Sealer,
        opener: Opener,
        journal: OutputJournal,
        mailbox: Mailbox,
        peers: PeerCalls | None,
        stop: StopSignal,
        ask_server: Callable[[ServerRequest], None],
        on_report_due: Callable[[], None],
        report_interval_ns: int,
        epochs: EpochKnowledge | None = None,
        grants: Inbox | None = None,
        ask_source: Callable[[RequestSource], None] | None = None,
        collect_refused: Callable[[int], None] = lambda _now_ns: None,
        forged: ForgedPackets | None = None,
        unicast: UnicastPublisher | None = None,
        idle_channels: IdleChannels | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._engine, self._counters, self._clock_ns = engine, counters, clock_ns
        self._sender, self._sealer, self._opener, self._journal = sender, sealer, opener, journal
        self._groups = {channel: group.encode() for channel, group in groups.items()}
        self._mailbox, self._grants, self._peers, self._stop = mailbox, grants, peers, stop
        self._on_report_due = on_report_due
        self._report_interval_ns = report_interval_ns
        self._ask_source = ask_source
        self._collect_refused = collect_refused
        self._forged = forged
        self._unicast, self._idle_channels = unicast, idle_channels
        self._sources: dict[Any, SourceLine] = {}
        self._outputs: dict[Any, MulticastReceiver] = {}
        # This turn's packets, in order: those to be journaled, and those to be sent, which comes second.
        self._to_journal: list[OutputPacket] = []
        self._outgoing: list[OutputPacket] = []
        self._epochs = epochs
        self._proofs_to_send: list[tuple[int, bytes]] = []  # by channel_id; before the turn's packets
        self._moves: list[StateMoved] = []  # logged and reported after this turn's packets are sent
        self._report_at_ns = self._clock_ns()
        self._deadline_ns = engine.next_deadline_ns()
        self._is_joining = self._is_hurried = False
        self._ask_server = ask_server
        self._is_acked = engine.config.replica.publish is PublishMode.ACKED
        self._poller = zmq.Poller()  # in the order in which a turn takes what is ready
        if grants is not None:
            self._poller.register(grants.fileno(), zmq.POLLIN)
        self._poller.register(mailbox.fileno(), zmq.POLLIN)
        self._poller.register(stop.fileno(), zmq.POLLIN)
        if unicast is not None:
            self._poller.register(unicast.socket, zmq.POLLIN)
        for receiver in sources:
            self._sources[receiver.socket] = receiver
            self._poller.register(receiver.socket, zmq.POLLIN)

    def join(self) -> None:
        """Take turns until this adapter has caught up with the active, `hurry` is called, or `JOIN_NS_MAX` is over.
        Then call `run`.

        To be called in a thread with a lower priority, because catching up computes for as long as there is anything to
        catch up with, and other adapters and their clients must not wait for it. What the last turn reached is reported
        by `run`: until then the admin server does not take this adapter for a synchronized backup.
        """
        self._is_joining = True
        began_ns = now_ns = self._clock_ns()
        while (why := self._why_joined(now_ns - began_ns)) is None:
            self._report(now_ns)
            now_ns = self._take_turn()
        self._is_joining = False
        LOG.info("joined", extra={"why": why, "took_ms": (now_ns - began_ns) // 1_000_000})

    def hurry(self) -> None:
        """End `join` after its present turn: this adapter is needed. From any thread.

        Post an event next: it wakes the loop, and is left to `run`.
        """
        self._is_hurried = True

    def run(self) -> None:
        """Until the stop signal."""
        now_ns = self._clock_ns()
        while not self._stop.is_set:
            self._report(now_ns)
            now_ns = self._take_turn()
        self.perform(self._engine.on_stop())
        self._report_moves()

    def receive_outputs_from(self, receivers: list[MulticastReceiver]) -> None:
        """Receive these groups of other adapters too. Call it in the loop's thread."""
        for receiver in receivers:
            self._outputs[receiver.socket] = receiver
            self._poller.register(receiver.socket, zmq.POLLIN)

    def perform(self, effects: list[AdapterEffect]) -> None:
        """Perform effects in their order."""
        self._perform(effects)
        self._flush()

    def close(self) -> None:
        """Leave all groups."""
        for receiver in (*self._sources.values(), *self._outputs.values()):
            receiver.close()
        self._sender.close()

    # ---- inside ----

    def _why_joined(self, spent_ns: int) -> str | None:
        """Why to end the join; None: it goes on."""
        if self._stop.is_set:
            return "stopping"
        if self._is_hurried:
            return "this adapter is needed"
        if not self._engine.is_catching_up:
            return "caught up"
        return "this machine is too busy" if spent_ns >= JOIN_NS_MAX else None

    def _take_turn(self) -> int:
        """Wait for events or the next deadline, and take them; returns when that was."""
        deadline_ns = self._deadline_ns
        due_ns = self._report_at_ns if deadline_ns is None else min(deadline_ns, self._report_at_ns)
        pause_ns = due_ns - self._clock_ns()
        ready = self._poller.poll(min(max(0, -(-pause_ns // 1_000_000)), POLL_MS_MAX))
        now_ns = self._clock_ns()
        for handle, _ in ready:
            self._receive(handle, now_ns)
        deadline_ns = self._engine.next_deadline_ns()
        if deadline_ns is not None and now_ns >= deadline_ns:
            self.perform(self._engine.on_timer(now_ns))
            deadline_ns = self._engine.next_deadline_ns()
        self._deadline_ns = deadline_ns
        return now_ns

    def _report(self, now_ns: int) -> None:
        """Report the turn's moves, the state if that is due, and what was refused."""
        if self._moves:
            self._report_moves()
        if now_ns >= self._report_at_ns:
            self._report_at_ns = now_ns + self._report_interval_ns
            if self._unicast is not None:
                self._unicast.keep(now_ns)
            self._on_report_due()
        self._collect_refused(now_ns)

    def _perform(self, effects: list[AdapterEffect]) -> None:
        """In their order. Packets are journaled and then sent together: at the end of the turn, or before an effect of
        another kind.

        Together they are one segment of the journal, sealed while the processor's caches hold the code that seals. And
        a datagram that finds ZeroMQ's I/O thread asleep wakes it, which costs more than the sending; consecutive
        datagrams wake it once.
        """
        perform(effects, self)

    def _flush(self) -> None:
        """Journal the turn's packets, then send them in order, then the signatures that are due: one takes as long as
        fifty packets. Only heartbeats that repeat the previous ones wait for their signature, because each reader then
        wakes once for both."""
        if packets := self._to_journal:
            for first in range(0, len(packets), PACKETS_MAX):  # a full disk then refuses a few, not all that waited
                self._journal.append_all(packets[first : first + PACKETS_MAX])
            packets.clear()
        if self._is_acked:
            self._withhold_acknowledgements()
        if self._outgoing:
            datagrams = [*self._proofs_to_send, *self._sealed(self._outgoing)]
            self._proofs_to_send.clear()
            self._outgoing.clear()
            if self._sealer.has_news:
                self._send(datagrams)
                for signature in self._signatures():
                    self._send([signature])
            else:
                self._send([*datagrams, *self._signatures()])

    def _withhold_acknowledgements(self) -> None:
        """What a backup transmits acknowledges decisions (docs/protocol.md clause 5.6), so one that cannot journal them
        transmits only what it sends provisionally."""
        if self._journal.is_failing and not self._engine.lease.is_held:
            self._outgoing = [packet for packet in self._outgoing if packet.flags & PROVISIONAL_BIT]

    def _signatures(self) -> Iterator[tuple[int, bytes]]:
        """The signatures that are due, by channel_id."""
        while unsigned := self._sealer.channels_to_sign():
            for channel_id in unsigned:
                yield channel_id, self._sealer.sign(channel_id, time.time_ns())

    def _sealed(self, packets: Sequence[OutputPacket]) -> list[tuple[int, bytes]]:
        """The packets' datagrams, by channel_id."""
        datagrams = []
        seal, sent_at_ns = self._sealer.seal, time.time_ns()
        for packet in packets:
            try:
                datagrams.append((packet.channel_id, seal(packet, sent_at_ns)))
            except (NoKey, NonceExhausted) as missing:
                LOG.error("not transmitted", extra={"why": str(missing)})
        return datagrams

    def _send(self, datagrams: Sequence[tuple[int, bytes]]) -> None:
        send, groups = self._sender.send, self._groups
        for channel_id, datagram in datagrams:
            send(groups[channel_id], datagram)
        if self._unicast is not None and self._unicast.wants:
            self._unicast.send(datagrams)

    def _receive(self, handle: Any, now_ns: int) -> None:
        source = self._sources.get(handle)
        if source is not None:
            receive, take = source.receive, self._engine.on_source_datagram
            for _ in range(DRAIN_COUNT_MAX):
                datagram = receive()
                if datagram is None:
                    break
                effects = take(datagram, now_ns)
                if effects:
                    self._perform(effects)
            self._flush()
            return
        output = self._outputs.get(handle)
        if output is not None:
            self._receive_outputs(output, now_ns)
        elif self._unicast is not None and handle is self._unicast.socket:
            self._unicast.read_subscriptions()
        elif handle == self._mailbox.fileno():
            if not (self._is_joining and self._is_hurried):
                for event in self._mailbox.take(DRAIN_COUNT_MAX):
                    self.perform(event(now_ns))
        elif self._grants is not None and handle == self._grants.fileno():
            self._take_grants(self._grants, now_ns)

    def _take_grants(self, grants: Inbox, now_ns: int) -> None:
        for event in grants.take(DRAIN_COUNT_MAX):
            if self._is_joining:  # a promotion is left to `run`, like that of an order
                self.hurry()
                self._mailbox.post(event)
            else:
                self.perform(event(now_ns))

    def _receive_outputs(self, receiver: MulticastReceiver, now_ns: int) -> None:
        for _ in range(DRAIN_COUNT_MAX):
            datagram = receiver.receive()
            if datagram is None:
                break
            try:
                packet = self._opener.open(datagram)
            except PacketRefused as refused:
                self._on_refused(refused, receiver)
                continue
            if packet is None:  # a signature, which is for readers, or a proof of an epoch
                if self._epochs is not None and datagram.startswith(PROOF_MAGIC):
                    self._perform(self._epochs.take(datagram, receiver.last_sender, now_ns))
                continue
            effects = self._engine.on_output_packet(packet, now_ns)
            if effects:
                self._perform(effects)
        self._flush()

    def _on_refused(self, refused: PacketRefused, receiver: MulticastReceiver) -> None:
        self._counters.refuse(refused.reason)
        if isinstance(refused, ImpersonationRefused) and self._forged is not None:
            self._forged.note(refused.adapter_id, refused.incarnation, receiver.last_sender, time.time_ns())

    # ---- effects (feedcore.replica.effects.EffectHandler) ----

    def publish(self, packets: Sequence[OutputPacket]) -> None:
        """With the turn's other packets."""
        self._to_journal += packets
        if self._idle_channels is None:
            self._outgoing += packets
        else:
            for packet in packets:
                self.transmit(packet)
        if len(self._to_journal) >= PACKETS_MAX:
            self._flush()

    def append_to_journal(self, packet: OutputPacket) -> None:
        """With the turn's other packets."""
        self._to_journal.append(packet)

    def transmit(self, packet: OutputPacket) -> None:
        """With the turn's other packets."""
        if self._idle_channels is None or not self._idle_channels.may_leave_out(packet, self._clock_ns()):
            self._outgoing.append(packet)

    def save_state(self, snapshot: ChannelSnapshot) -> None:
        """In the output journal."""
        self._flush()
        self._journal.save(self._engine.config.feed_id, snapshot.session, snapshot)

    def request_source(self, request: RequestSource) -> None:
        """From the feed source, or its journal."""
        self._flush()
        if self._ask_source is not None:
            self._ask_source(request)
        elif self._peers is not None:
            self._peers.request_source(request)

    def request_runs(self, request: RequestRuns) -> None:
        """From the active."""
        self._flush()
        if self._peers is not None:
            self._peers.request_runs(request)

    def request_snapshot(self, request: RequestSnapshot) -> None:
        """From the active."""
        self._flush()
        if self._peers is not None:
            self._peers.request_snapshot(request)

    def request_buckets(self, request: RequestBuckets) -> None:
        """From the active."""
        self._flush()
        if self._peers is not None:
            self._peers.request_buckets(request)

    def commit_provisional(self, committed: CommitProvisional) -> None:
        """In the output journal."""
        self._flush()
        self._journal.commit_provisional(
            committed.channel_id,
            committed.epoch,
            committed.first_input_seq,
            committed.end_input_seq,
            committed.session,
        )

    def show_epoch_proof(self, shown: ShowEpochProof) -> None:
        """With the turn's packets, and before them."""
        if self._epochs is not None and (datagram := self._epochs.to_show(shown)) is not None:
            self._proofs_to_send.append((shown.channel_id, datagram))

    def ask_server(self, request: ServerRequest) -> None:
        """Without waiting for the answer."""
        self._flush()
        self._ask_server(request)

    def on_state_moved(self, moved: StateMoved) -> None:
        """Logged and reported at the end of the turn."""
        self._flush()
        self._moves.append(moved)

    def on_session_begun(self, begun: SessionBegun) -> None:
        """Logged, and reported to the admin server, which describes the feed with it."""
        self._flush()
        LOG.warning(
            "the session has changed",
            extra={"old": begun.old_session, "new": begun.new_session, "old_is_complete": begun.is_complete},
        )
        self._on_report_due()

    def on_runs_lost(self, lost: RunsLost) -> None:
        """An operator must see this."""
        self._flush()
        LOG.error(
            "source messages declared lost",
            extra={
                "channel": lost.channel_id,
                "stream": lost.source_stream_id,
                "first": lost.first_source_seq,
                "last": lost.last_source_seq,
            },
        )

    # ---- the end of a turn ----

    def _report_moves(self) -> None:
        """Log the turn's moves and report the result.

        This takes as long as sending a hundred packets, and all receivers wait for a new active's packets. So it comes
        at the end of the turn.
        """
        for move in self._moves:
            LOG.info(
                "state moved",
                extra={"channel": move.channel_id, "old": move.old.value, "new": move.new.value, "why": move.reason},
            )
        if self._moves:
            self._moves.clear()
            self._on_report_due()
