"""The adapter's core: one lease, one replica per channel. Every decision of an adapter is made here.

Sans-I/O: the shell (`adapter`) and the simulator feed the same events and perform the same effects, in order. The
engine never reads a clock: `now_ns` is the caller's monotonic clock.

Invariant: an effect that transmits as active is returned only while `LeaseView.may_transmit(now_ns)` is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.hiccup import OwnPauses
from tandemfeed.feedcore.lease.admin_contact import AdminContact
from tandemfeed.feedcore.lease.failing import healthiest_synchronized, is_repeated, should_leave
from tandemfeed.feedcore.lease.lease_view import LeaseView
from tandemfeed.feedcore.lease.peers import Peers, known_epoch
from tandemfeed.feedcore.replica.channel_state import Answer, Buckets, ChannelSnapshot, PeerState, RunsReply
from tandemfeed.feedcore.replica.config import EngineConfig
from tandemfeed.feedcore.replica.effects import (
    ANY_HEIR,
    AcceptOffer,
    AdapterEffect,
    ReleaseLease,
    RequestHandOver,
    RequestSource,
    RequestToFail,
    ShowEpochProof,
    Transmit,
)
from tandemfeed.feedcore.replica.heard_adapters import HeardAdapters
from tandemfeed.feedcore.replica.input.decision_log import LoggedRuns
from tandemfeed.feedcore.replica.output.converter import Converter
from tandemfeed.feedcore.replica.replica import ChannelReplica
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.replica.sessions import NotActive, Sessions
from tandemfeed.feedcore.vouched_epochs import VouchedEpochs
from tandemfeed.feedcore.wire.output_packet import EPOCH_ENDED_BIT, FROM_ACTIVE_BIT, HEARTBEAT_BIT, OutputPacket
from tandemfeed.feedcore.wire.position import MessageStreamState, Run
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.feedcore.wire.source_packet import decode_source_packet

LEVEL = (ReplicaState.SYNCHRONIZED, ReplicaState.ACTIVE)
SHOW_PROOF_OFTEN_NS = 1_000_000_000  # a hundred heartbeats: a receiver that hears the channel at all hears one of them
SHOW_PROOF_EVERY_NS = 1_000_000_000
CATCHING_UP = (ReplicaState.JOINING, ReplicaState.RESYNCHRONIZING)


class AdapterEngine:
    """Active or backup of one feed.

    Args:
        converters: by channel_id, the converter that owns the channel's conversion state, which must be initial.

    Attributes:
        health: this adapter's score, as last measured by the shell.
        source_heard_at_ns: source_stream_id -> when its last packet arrived, heartbeats included.
        heard: which other adapters' multicast arrives.
        vouched: which epochs this adapter believes, and whose they are.
    """

    def __init__(
        self, config: EngineConfig, converters: Mapping[int, Converter], counters: CounterSet, now_ns: int
    ) -> None:
        self.config, self.counters = config, counters
        self.lease = LeaseView(config.lease_ttl_ns)
        self.vouched = VouchedEpochs()
        self.peers = Peers(config.adapter_id, config.consent)
        self.health = 1.0
        self.source_heard_at_ns: dict[int, int] = {}
        self.heard = HeardAdapters(converters, now_ns)
        self._sessions = Sessions(config, converters, counters, now_ns)
        self._contact = AdminContact(config.consent, config.previous_process_ended_ns, now_ns)
        self._promote_at_ns: int | None = None  # when to act on a grant that arrived while abstaining
        self._offer: tuple[int, int, int] | None = None  # (epoch, previous epoch, valid until)
        self._has_accepted = False  # accepted that offer; not while abstaining
        self._ask_to_fail_at_ns = 0
        self._has_handed_over = False
        self._pauses = OwnPauses(config.replica.pause_after_ns)
        self._served_at_ns = now_ns  # the time of the last event
        self._show_proof_at_ns = self._show_proof_often_until_ns = now_ns

    @property
    def session(self) -> int:
        """The current session."""
        return self._sessions.current.session

    @property
    def replicas(self) -> dict[int, ChannelReplica]:
        """The current session's replicas, by channel_id."""
        return self._sessions.current.replicas

    # ---- events: data ----

    def resume_from(self, snapshot: ChannelSnapshot, runs: Iterable[Run] = (), now_ns: int = 0) -> None:
        """Resume from the output journal of this adapter's previous process: a channel's newest saved state in the
        current session, and the decisions transmitted after it. Must come before any other event."""
        replica = self.replicas[snapshot.channel_id]
        replica.resume_from(snapshot, runs, now_ns)
        self.vouched.vouch(replica.intake.epoch, 0)  # the former process followed, and journaled, only vouched epochs

    def resume_final_heartbeats(self, heartbeats: Iterable[OutputPacket], now_ns: int) -> None:
        """Take this adapter's final heartbeats of earlier sessions, from its output journal. They announce the end of a
        channel, and are repeated for clients that have not received them."""
        self._sessions.resume_final_heartbeats(heartbeats, now_ns)

    def on_source_datagram(self, datagram: bytes, now_ns: int) -> list[AdapterEffect]:
        """Take a datagram of a source stream, from multicast or from the source journal. A bad one is only counted."""
        effects = self._fence(now_ns)
        try:
            packet = decode_source_packet(datagram, self.config.feed_id)
            sessions = self._sessions
            of_session = sessions.current
            if packet.session != of_session.session:
                of_session = sessions.on_source_session(packet.session, now_ns)
            found = of_session.readers.get(packet.source_stream_id)
            if found is None:
                raise PacketRefused(Refusal.UNKNOWN_STREAM, f"source stream {packet.source_stream_id}")
            converter, replicas = found
            if packet.message_count and not converter.check(datagram):
                raise PacketRefused(Refusal.MALFORMED, "the frames do not fill the packet exactly")
        except PacketRefused as refused:
            self.counters.refuse(refused.reason)
            return effects
        self.counters.counts[Counter.SOURCE_PACKETS] += 1
        self.source_heard_at_ns[packet.source_stream_id] = now_ns
        produced: list[AdapterEffect] = []
        for replica in replicas:
            produced += replica.on_source_packet(packet, now_ns)
        if sessions.coming:
            produced += self._change_session_if_due(now_ns)
        return effects + produced if effects else produced

    def on_output_packet(self, packet: OutputPacket, now_ns: int) -> list[AdapterEffect]:
        """Take another adapter's opened output packet."""
        effects = self._fence(now_ns)
        try:
            if packet.feed_id != self.config.feed_id:
                raise PacketRefused(Refusal.WRONG_FEED, f"feed {packet.feed_id}")
            if packet.channel_id not in self.replicas:
                raise PacketRefused(Refusal.WRONG_CHANNEL, f"channel {packet.channel_id}")
            if packet.adapter_id == self.config.adapter_id:
                return effects  # sent by this adapter or its previous process: nothing new
            self.heard.on_packet(packet.adapter_id, packet.channel_id, now_ns)
            self._check_vouched(packet.epoch, packet.adapter_id, is_active=bool(packet.flags & FROM_ACTIVE_BIT))
            sessions = self._sessions
            of_session = sessions.current
            if packet.session != of_session.session:
                of_session = sessions.on_adapter_session(packet.session, now_ns)
            replica = of_session.replicas[packet.channel_id]
            # What others send in its epoch says how far they are, which only the active itself needs.
            is_owner = self.vouched.owner_of(packet.epoch) == packet.adapter_id
            if is_owner or replica.state is ReplicaState.ACTIVE:
                effects += replica.on_output_packet(packet, now_ns)
            if sessions.coming:
                effects += self._change_session_if_due(now_ns)
        except PacketRefused as refused:
            self.counters.refuse(refused.reason)
            return effects
        is_ended = is_owner and bool(packet.flags & EPOCH_ENDED_BIT)
        if is_ended and self._offer and self._has_accepted and packet.epoch == self._offer[1]:
            effects += self._take_offer(*self._offer, now_ns)
        return effects

    def on_epoch_vouched(self, epoch: int, adapter_id: int, now_ns: int) -> list[AdapterEffect]:
        """The admin server has granted an epoch to an adapter, as its proof says, which was verified."""
        effects = self._fence(now_ns)
        return effects + self._note_vouched(epoch, adapter_id, f"it was granted to adapter {adapter_id}", now_ns)

    # ---- events: other adapters' calls ----

    def on_answer(self, channel_id: int, answer: Answer, now_ns: int) -> list[AdapterEffect]:
        """Take another adapter's answer to a request of this session for runs, a snapshot or buckets."""
        effects = self._fence(now_ns)
        if _epoch_of(answer) > self.vouched.newest:
            self.counters.refuse(Refusal.UNVOUCHED)
            return effects
        if answer.session in (0, self.session):
            effects += self.replicas[channel_id].on_answer(answer, now_ns)
        return effects

    def on_peer_state(self, state: PeerState, now_ns: int) -> list[AdapterEffect]:
        """Take another adapter's state, which it reports at every sync interval."""
        effects = self._fence(now_ns)
        if state.adapter_id == self.config.adapter_id:
            return effects
        try:
            if not self.peers.is_announced(state):
                raise PacketRefused(Refusal.UNANNOUNCED, f"start {state.incarnation} of adapter {state.adapter_id}")
            self._check_vouched(known_epoch(state), state.adapter_id, is_active=False)
            for status in state.channels:
                is_active = status.state is ReplicaState.ACTIVE
                self._check_vouched(status.position.epoch, state.adapter_id, is_active=is_active)
        except PacketRefused as refused:
            self.counters.refuse(refused.reason)
            return effects
        if not self.peers.note(state, now_ns):
            return effects
        try:
            is_here = state.session in (0, self.session)
            replicas = self.replicas if is_here else self._sessions.on_adapter_session(state.session, now_ns).replicas
        except PacketRefused:
            return effects  # it is in an old session, and will learn of the current one
        for status in state.channels:
            self.heard.on_status(state.adapter_id, status, now_ns)
            replica = replicas.get(status.channel_id)
            if replica is not None:
                effects += replica.on_peer_status(status, state.adapter_id, now_ns)
        effects += self._change_session_if_due(now_ns)
        return effects + self._consider_leaving(now_ns)

    # ---- events: the admin server ----

    def on_admin_message(self, now_ns: int) -> list[AdapterEffect]:
        """Note a message from an admin server, such as the answer to a report."""
        is_caught_up = all(replica.state in LEVEL for replica in self.replicas.values())
        if self._contact.on_message(self.lease.last_epoch, now_ns, is_caught_up=is_caught_up) and self.lease.is_held:
            self.lease.on_contact(self.peers.consent_until_ns(self.lease.epoch), now_ns)
        return self._fence(now_ns)

    def on_admin_disconnected(self, now_ns: int) -> list[AdapterEffect]:
        """The stream to the admin server broke."""
        self._contact.on_disconnected()
        return self._fence(now_ns)

    def on_cluster_changed(
        self, active_adapter_id: int, epoch: int, now_ns: int, others: Iterable[int] | None = None, session: int = 0
    ) -> list[AdapterEffect]:
        """The admin server reports the active adapter (0: none), its epoch, which other adapters the feed has, and the
        session by which it describes the feed (0: not reported)."""
        effects = self._fence(now_ns)
        self._sessions.on_described(session)
        if others is not None:
            self.peers.others = frozenset(others) - {self.config.adapter_id}
        why = f"the admin server granted it to adapter {active_adapter_id}"
        effects += self._note_vouched(epoch, active_adapter_id, why, now_ns)
        if active_adapter_id == self.config.adapter_id:
            return effects
        for replica in self.replicas.values():
            replica.on_active_known(active_adapter_id, epoch, now_ns)
        return effects

    def on_starts_announced(self, incarnations: Mapping[int, int]) -> None:
        """The admin server announces the newest start of each adapter, by adapter_id."""
        self.peers.announce(incarnations)

    def on_lease_granted(self, epoch: int, valid_until_ns: int, now_ns: int) -> list[AdapterEffect]:
        """Take the lease on a new epoch: every channel becomes active. A grant that arrives too late is ignored."""
        effects = self._fence(now_ns)
        if not self.lease.on_granted(epoch, valid_until_ns, now_ns):
            return effects
        self.vouched.vouch(epoch, self.config.adapter_id)
        self._offer = None
        if now_ns < self._contact.abstains_until_ns:
            self._promote_at_ns = self._contact.abstains_until_ns  # keep the promise to the active
            return effects
        return effects + self._promote(now_ns)

    def on_lease_offered(self, epoch: int, after_epoch: int, valid_until_ns: int, now_ns: int) -> list[AdapterEffect]:
        """Take the offer of the next epoch, which begins when `after_epoch` is given up."""
        effects = self._fence(now_ns)
        if epoch > self.lease.last_epoch:
            self._offer, self._has_accepted = (epoch, after_epoch, valid_until_ns), False
        return effects + self._accept_offer(now_ns)

    def _accept_offer(self, now_ns: int) -> list[AdapterEffect]:
        """Accept the current offer once the promise to the active has ended."""
        if self._offer is None or self._has_accepted or now_ns < self._contact.abstains_until_ns:
            return []
        epoch, _, valid_until_ns = self._offer
        self._has_accepted = now_ns < valid_until_ns and epoch > self.lease.last_epoch
        self._offer = self._offer if self._has_accepted else None
        return [AcceptOffer(epoch)] if self._has_accepted else []

    def on_hand_over(self, epoch: int, heir_adapter_id: int, now_ns: int) -> list[AdapterEffect]:
        """Give up this epoch now, in favour of the heir."""
        effects = self._fence(now_ns)
        is_beginning = any(replica.awaits_promotion for replica in self.replicas.values())
        if self.lease.epoch != epoch or self._promote_at_ns is not None or is_beginning:
            return effects  # the epoch has not begun here, so it cannot end: the heir's offer will expire
        self.lease.drop()
        self._has_handed_over = True
        effects += self._on_replicas(lambda replica: replica.hand_over(heir_adapter_id, now_ns))
        return [*effects, ReleaseLease(epoch)]

    def on_lease_renewed(self, epoch: int, valid_until_ns: int, now_ns: int) -> list[AdapterEffect]:
        """The lease store renewed the lease."""
        effects = self._fence(now_ns)
        self.lease.on_renewed(epoch, valid_until_ns)
        return effects

    def on_lease_lost(self, epoch: int, reason: str, now_ns: int) -> list[AdapterEffect]:
        """The lease store reports that this adapter has lost the lease or the offer."""
        if self._offer is not None and epoch == self._offer[0]:
            self._offer = None
        return self._lose(reason, now_ns) if epoch == self.lease.epoch else []

    def on_failed(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        """The admin server takes this adapter out of its group."""
        self.lease.drop()
        self._promote_at_ns = self._offer = None
        return self._on_replicas(lambda replica: replica.fail(reason, now_ns))

    def on_readmitted(self, now_ns: int) -> list[AdapterEffect]:
        """The admin server readmits this adapter to its group."""
        return self._on_replicas(lambda replica: replica.readmit(now_ns))

    def on_unfit(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        """This adapter has lost something that it needs, such as its disk or a thread, and must not stay in its group.
        The shell repeats it, and reports a health of 0.

        The active first hands over. The admin server decides: an adapter that no other can replace stays.
        """
        effects = self._fence(now_ns)
        if now_ns < self._ask_to_fail_at_ns:
            return effects
        request = self._hand_over_unfit(reason, now_ns) if self.lease.is_held else RequestToFail(reason)
        if request is None:
            return effects
        self._ask_to_fail_at_ns = now_ns + self.config.failing.ask_every_ns
        return [*effects, request]

    def _hand_over_unfit(self, reason: str, now_ns: int) -> RequestHandOver | None:
        """To the healthiest synchronized backup. One that hears no peer lets the admin server choose; but only until it
        has handed over: two unfit adapters must not pass the lease to and fro."""
        fresh = self.peers.fresh(now_ns)
        heir = healthiest_synchronized(fresh)
        if heir is not None:
            return RequestHandOver(self.lease.epoch, heir, reason)
        return None if fresh or self._has_handed_over else RequestHandOver(self.lease.epoch, ANY_HEIR, reason)

    # ---- events: time ----

    def on_timer(self, now_ns: int) -> list[AdapterEffect]:
        """Do everything that is due at `now_ns`."""
        effects = self._fence(now_ns)
        if self._promote_at_ns is not None and now_ns >= self._promote_at_ns:
            effects += self._promote(now_ns)
        effects += self._accept_offer(now_ns)
        if (renewal := self.lease.on_timer(now_ns)) is not None:
            effects.append(renewal)
        requested: set[RequestSource] = set()
        shows_proof = now_ns >= self._show_proof_at_ns
        for replica in self.replicas.values():
            replica.channel.has_admin = self.has_admin(now_ns)
            found = replica.on_timer(now_ns)
            if shows_proof and found and _has_heartbeat(found):
                effects += self._show_proof(replica.channel.channel_id, now_ns)
            for effect in found:
                if isinstance(effect, RequestSource):  # channels that read one stream lack the same messages at once
                    if effect in requested:
                        continue
                    requested.add(effect)
                effects.append(effect)
        return effects + self._sessions.on_timer(now_ns) + self._change_session_if_due(now_ns)

    def on_stop(self) -> list[AdapterEffect]:
        """Prepare for an orderly stop: return the states from which the next start can continue."""
        return self._on_replicas(ChannelReplica.on_stop)

    def next_deadline_ns(self) -> int | None:
        """When to call `on_timer` next; None: not before another event. The shell that asks calls it then, so an engine
        that is called much later was paused with its process."""
        due = [replica.next_deadline_ns() for replica in self.replicas.values()]
        due += [self.lease.next_deadline_ns(), self._promote_at_ns, self._sessions.next_deadline_ns()]
        is_early = self._offer is not None and not self._has_accepted
        deadline_ns = earliest(*due, self._contact.abstains_until_ns if is_early else None)
        self._pauses.expect(deadline_ns, self._served_at_ns)
        return deadline_ns

    @property
    def is_catching_up(self) -> bool:
        """True while a channel here is not yet where the active is, and this adapter neither holds the lease nor has an
        offer of it."""
        is_wanted = self.lease.is_held or self._offer is not None
        return not is_wanted and any(replica.state in CATCHING_UP for replica in self.replicas.values())

    # ---- queries, between events; `session`: the session that another adapter requests, 0: the current one ----

    def has_admin(self, now_ns: int) -> bool:
        """True while an admin server is in contact."""
        return self._contact.is_in_contact(now_ns)

    def report(self, now_ns: int, incarnation: int = 0) -> PeerState:
        """This adapter's state, to be sent to the others. Without contact to an admin server it promises to abstain."""
        hears_active = any(replica.hears_active(now_ns) for replica in self.replicas.values())
        settles = hears_active and self._contact.is_settling(self.lease.last_epoch, now_ns)
        abstains = (settles or not self.has_admin(now_ns)) and not self.lease.is_held
        if abstains:
            self._contact.abstain(now_ns)
        self.peers.on_report_sent(now_ns)
        return self._state(now_ns, incarnation, abstains=abstains)

    def snapshot(self, channel_id: int, session: int = 0) -> ChannelSnapshot:
        """The conversion state of a channel at its current position.

        Raises:
            NotActive: this adapter does not decide for the channel, or decisions wait for an acknowledgement.
        """
        replica = self._deciding(channel_id, session)
        if replica.is_holding:
            raise NotActive(f"channel {channel_id} waits for an acknowledgement; retry later")
        return replica.line.snapshot()

    def buckets(self, channel_id: int, chosen: tuple[int, ...], session: int = 0) -> Buckets:
        """Some buckets of the conversion state of a channel at its current position.

        Raises:
            NotActive: this adapter does not decide for the channel.
        """
        return self._deciding(channel_id, session).line.buckets(chosen)

    def runs_since(self, channel_id: int, position: MessageStreamState, session: int = 0) -> LoggedRuns:
        """Decisions after a position, in the current session or the previous one.

        Raises:
            NotActive: this adapter has no place in the channel, or is in another session.
            DecisionLogTooShort: the caller needs a snapshot.
        """
        replica = self._sessions.of(session, or_former=True).replicas[channel_id]
        if not replica.is_placed:
            raise self._not_active(replica)
        return replica.line.log.since(position, replica.line.lineage, replica.line.session)

    def _deciding(self, channel_id: int, session: int) -> ChannelReplica:
        replica = self._sessions.of(session).replicas[channel_id]
        if replica.state is not ReplicaState.ACTIVE:
            raise self._not_active(replica)
        return replica

    def _not_active(self, replica: ChannelReplica) -> NotActive:
        what = f"channel {replica.channel.channel_id} is {replica.state.value}"
        return NotActive(f"{what} at adapter {self.config.adapter_id}")

    # ---- inside ----

    def _fence(self, now_ns: int) -> list[AdapterEffect]:
        """Stop being active if the lease has run out. Runs first in every event: the process may have been paused."""
        if now_ns >= self._pauses.noticed_at_ns:
            self._on_own_pause(self._pauses.take(now_ns))
        self._served_at_ns = now_ns
        lease = self.lease
        if not lease.is_held or lease.may_transmit(now_ns):
            return []
        if not self.has_admin(now_ns) and self._promote_at_ns is None:
            until_ns = self.peers.consent_until_ns(lease.epoch)
            if until_ns > now_ns:
                if not lease.is_by_consent:
                    self.counters.add(Counter.LEASE_BY_CONSENT)
                lease.on_consent(until_ns)
                return []
        self.counters.add(Counter.LEASE_LAPSED)
        return self._lose(f"the lease on epoch {lease.epoch} ran out", now_ns)

    def _on_own_pause(self, pause_ns: int) -> None:
        """This process was paused: what others did meanwhile waits in its queues, so their silence does not count. The
        lease is not extended, nor is a promise, and a peer's old state is not taken for a recent one."""
        self.counters.add(Counter.OWN_PAUSES)
        self._contact.on_own_pause(pause_ns)
        self._sessions.on_own_pause(pause_ns)
        for stream in self.source_heard_at_ns:
            self.source_heard_at_ns[stream] += pause_ns

    def _show_proof(self, channel_id: int, now_ns: int) -> list[AdapterEffect]:
        """Show the proof of the newest epoch: at first with every heartbeat, because its loss delays a takeover; later
        once a second, for receivers that heard nothing meanwhile. Every adapter does, not only the active."""
        epoch = self.vouched.newest
        is_new = now_ns < self._show_proof_often_until_ns
        self._show_proof_at_ns = now_ns if is_new else now_ns + SHOW_PROOF_EVERY_NS
        owner = self.vouched.owner_of(epoch)
        return [ShowEpochProof(channel_id, epoch, owner)] if owner else []

    def _shown_first(self, effects: list[AdapterEffect], now_ns: int) -> list[AdapterEffect]:
        """What this adapter does as it begins an epoch, with the epoch's proof on every channel before all else."""
        self._show_proof_at_ns, self._show_proof_often_until_ns = now_ns, now_ns + SHOW_PROOF_OFTEN_NS
        if not effects:
            return effects
        return [*(each for channel_id in self.replicas for each in self._show_proof(channel_id, now_ns)), *effects]

    def _promote(self, now_ns: int) -> list[AdapterEffect]:
        self._promote_at_ns = None
        promoted = self._on_replicas(lambda replica: replica.promote(self.lease.epoch, now_ns))
        return self._shown_first(promoted, now_ns)

    def _take_offer(self, epoch: int, after_epoch: int, valid_until_ns: int, now_ns: int) -> list[AdapterEffect]:
        self._offer = None
        if not self.lease.on_granted(epoch, valid_until_ns, now_ns):
            return []
        self.vouched.vouch(epoch, self.config.adapter_id)
        self.lease.renew_at_once(now_ns)  # this reports to the store that the hand-over is done
        promoted = self._on_replicas(lambda replica: replica.promote_when_caught_up(epoch, after_epoch, now_ns))
        return self._shown_first(promoted, now_ns)

    def _check_vouched(self, epoch: int, adapter_id: int, *, is_active: bool) -> None:
        """Refuse what an adapter sends in an epoch that the admin server has not granted to any, or, as its active, to
        another one (protocol 6.11)."""
        vouched = self.vouched
        if epoch > vouched.newest or (is_active and not vouched.may_be_active(epoch, adapter_id)):
            detail = f"epoch {epoch} of adapter {adapter_id}; the newest that was granted is {vouched.newest}"
            raise PacketRefused(Refusal.UNVOUCHED, detail)

    def _note_vouched(self, epoch: int, adapter_id: int, why: str, now_ns: int) -> list[AdapterEffect]:
        """Note an epoch of which the admin server says that it granted it, and to which adapter (0: none holds it)."""
        if self.vouched.vouch(epoch, adapter_id):
            self._show_proof_at_ns, self._show_proof_often_until_ns = now_ns, now_ns + SHOW_PROOF_OFTEN_NS
        if not adapter_id or adapter_id == self.config.adapter_id:
            return []  # an epoch without an active adapter ends no term
        effects = self._note_epoch(epoch, why, now_ns)
        for replica in self.replicas.values():
            replica.on_active_known(adapter_id, epoch, now_ns)
        return effects

    def _note_epoch(self, epoch: int, why: str, now_ns: int) -> list[AdapterEffect]:
        """Note a granted epoch. If it is newer than the epoch held here, this adapter's term is over."""
        held = self.lease.epoch
        self.lease.note_epoch(epoch)
        if not held or epoch <= held:
            return []
        return self._lose(f"epoch {epoch} has begun: {why}", now_ns)

    def _lose(self, reason: str, now_ns: int) -> list[AdapterEffect]:
        self.lease.drop()
        self._promote_at_ns = self._offer = None
        return self._on_replicas(lambda replica: replica.demote(reason, now_ns))

    def _consider_leaving(self, now_ns: int) -> list[AdapterEffect]:
        if now_ns < self._ask_to_fail_at_ns:
            return []
        reason = should_leave(self._state(now_ns), self.peers.fresh(now_ns), self.config.failing)
        if reason is None:
            return []
        self._ask_to_fail_at_ns = now_ns + self.config.failing.ask_every_ns
        return [RequestToFail(reason)]

    def _state(self, now_ns: int, incarnation: int = 0, *, abstains: bool = False) -> PeerState:
        replicas = self.replicas.values()
        return PeerState(
            self.config.adapter_id,
            incarnation,
            self.peers.report_id,
            tuple(replica.status() for replica in replicas),
            self.peers.heard_report_ids(),
            abstains,
            any(is_repeated(replica.channel.out_of_sync_at_ns, self.config.failing, now_ns) for replica in replicas),
            self.health,
            self.session,
            self.heard.silences_ns(self.peers.others, now_ns),
        )

    def _on_replicas(self, do: Callable[[ChannelReplica], list[AdapterEffect]]) -> list[AdapterEffect]:
        return [effect for replica in self.replicas.values() for effect in do(replica)]

    def _change_session_if_due(self, now_ns: int) -> list[AdapterEffect]:
        is_deciding = self.lease.is_held and self._promote_at_ns is None
        return self._sessions.change_if_due(self.lease.epoch if is_deciding else 0, now_ns)


def _has_heartbeat(effects: list[AdapterEffect]) -> bool:
    return any(isinstance(effect, Transmit) and effect.packet.flags & HEARTBEAT_BIT for effect in effects)


def _epoch_of(answer: Answer) -> int:
    """The newest epoch that an answer names."""
    match answer:
        case RunsReply() | ChannelSnapshot():
            return answer.lineage.epoch
        case Buckets():
            return answer.position.epoch
    return 0
