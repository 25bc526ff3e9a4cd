"""The admin server of a run: the real lease core, reached over connections that break; the server can die and restart.

Links and a few fields that survive the process (such as the reserved epochs and the notes of grants) take the place of
the queues and the database of `admin_server.feed.broker.FeedBroker`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tandemfeed.adapter.peers.translation import peer_state_to_proto
from tandemfeed.adapter.reporting.health import Health
from tandemfeed.admin_server.feed.feed_state import ANNOUNCE_PAUSE_NS
from tandemfeed.admin_server.feed.members.claims import EPOCH_JUMP_MAX, Claims, Grounds, SessionVerdict, impossible_in
from tandemfeed.admin_server.lease.lease_core import FeedLease, LeaseConfig
from tandemfeed.admin_server.lease.lease_decisions import (
    Granted,
    HandedOver,
    HandOverRefused,
    LeaseDecision,
    Offered,
    OfferWithdrawn,
    OrderedHandOver,
    Renewed,
    TermNoted,
    Vacated,
)
from tandemfeed.admin_server.records.lease_records import EPOCH_BLOCK
from tandemfeed.feedcore.replica.channel_state import PeerState
from tandemfeed.feedcore.replica.effects import AdapterEffect, RequestHandOver
from tandemfeed.feedcore.replica.heard_adapters import unheard
from tests.simulation.admin_parts import WORST, Attendance, change, deliver
from tests.simulation.checkers.terms import PASSED
from tests.simulation.client import Announced
from tests.simulation.plan import MS, FaultKind, Plan
from tests.simulation.proofs import EpochProof, ProofBook
from tests.simulation.toy_feed import FIRST_SESSION
from tests.simulation.world import ADMIN, World

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor
    from tests.simulation.cluster import Cluster

HEALTH = Health(1.0, 0.0, 0, 0, 0)
RETRY_NS = 20 * MS  # how often an adapter that lost its connection retries


class AdminActor:
    """Receives the adapters' messages and performs the decisions of the lease core."""

    name = ADMIN

    def __init__(self, world: World, cluster: Cluster, plan: Plan) -> None:
        timing = plan.timing
        self._world, self._cluster = world, cluster
        self._config = LeaseConfig(
            ttl_ns=timing.lease_ttl_ns,
            allowance_ns=timing.lease_ttl_ns // 10,
            grace_ns=timing.grace_ns,
            pause_after_ns=timing.lease_ttl_ns // 30,  # as the defaults of both
            read_ns=timing.lease_ttl_ns // 12,
            fresh_ns=max(timing.lease_ttl_ns, 4 * timing.sync_interval_ns),
        )
        self._adapter_ids = frozenset(own.adapter_id for own in plan.adapters)
        self._channel_ids = range(1, len(plan.channels) + 1)
        self._has_liars = plan.has(FaultKind.LIE)  # to translate every state takes time
        self.is_up = True
        self._paused_at_ns: int | None = None
        self._inbox: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.lease = FeedLease(self._config, self._adapter_ids)
        self._attending: dict[int, Attendance] = {}
        self._connecting: list[tuple[AdapterActor, int]] = []  # adapters that are connecting
        self._wake_at_ns: int | None = None
        # These survive the process:
        self._reserved_end = EPOCH_BLOCK
        self._notes: list[tuple[int, int]] = []  # (epoch, adapter_id) of every grant
        self._noted_ttl_ns = timing.lease_ttl_ns
        self._failed: dict[int, str] = {}
        self.claims = Claims()
        self.proofs = ProofBook()
        self.session = FIRST_SESSION  # the latest session that an adapter has reported
        self._registered: dict[int, int] = {}  # adapter_id -> the life that registered last

    @property
    def holder(self) -> AdapterActor | None:
        """The holder of the lease, as known to this server."""
        attendance = self._attending.get(self.lease.holder)
        return attendance.adapter if attendance else None

    # ---- life ----

    def crash(self, notes_lost: int, *, is_silent: bool) -> None:
        """The process dies, and loses its newest notes. With `is_silent` its host dies too, so that no stream ends."""
        if not self.is_up:
            return
        self.is_up, self._paused_at_ns = False, None
        self._inbox.clear()
        lost = min(notes_lost, len(self._notes))
        del self._notes[len(self._notes) - lost :]
        how = "vanishes" if is_silent else "dies"
        self._world.log("the admin server {} and loses {} notes of grants", how, lost)
        former, self._attending = list(self._attending.values()), {}
        for attendance in former if not is_silent else ():
            adapter = attendance.adapter
            adapter.on_message(attendance.life, adapter.engine.on_admin_disconnected)
            self.on_connect(adapter)

    def restart(self, _: object = None) -> None:
        """Start a new server from what survived, as `FeedBroker` does."""
        if self.is_up:
            return
        self.is_up = True
        self._world.log("the admin server starts")
        self.lease = FeedLease(self._config, self._adapter_ids)
        now_ns, next_epoch = self._world.now_ns, self._reserved_end + 1
        epoch, holder = self._notes[-1] if self._notes else (self._reserved_end, 0)
        noted = self._noted_ttl_ns
        self._cluster.checks.grants.restart(holder)
        self.lease.restore(epoch, holder, now_ns, next_epoch=next_epoch, failed=self._failed, noted_ttl_ns=noted)
        self._reserved_end += EPOCH_BLOCK
        for adapter in self._cluster.adapters:  # streams that had fallen silent now break
            if adapter.is_alive:
                self.on_connect(adapter)
        self._schedule()

    def pause(self) -> None:
        """Pause: what arrives waits, and nothing that is due is done."""
        if self.is_up and self._paused_at_ns is None:
            self._paused_at_ns = self._world.now_ns
            self._world.log("the admin server is paused")

    def resume(self, _: object = None) -> None:
        """Resume: first do what is due, and only then, which is the worst order, take what waits."""
        if self._paused_at_ns is None:
            return
        self._world.log("the admin server resumes")
        self._cluster.checks.grants.on_paused(self._world.now_ns - self._paused_at_ns)
        self._paused_at_ns = None
        deadline_ns = self.lease.next_deadline_ns()
        is_late = deadline_ns is not None and self._world.now_ns - deadline_ns >= self._config.pause_after_ns
        if (pauses := self._cluster.checks.pauses) is not None and not is_late:
            pauses.on_unnoticed(self._world.now_ns)
        self._perform(self.lease.on_timer(self._world.now_ns))
        self._schedule()
        waiting, self._inbox = self._inbox, deque()
        for each in waiting:
            self._world.after(0, self._take_waiting, each)

    def _take_waiting(self, entry: tuple[Callable[[Any], None], Any]) -> None:
        action, argument = entry
        action(argument)

    def _waits(self, action: Callable[[Any], None], argument: Any) -> bool:
        """True if the server is paused; then it will take the message later."""
        if self._paused_at_ns is not None:
            self._inbox.append((action, argument))
        return self._paused_at_ns is not None

    # ---- connections ----

    def on_connect(self, adapter: AdapterActor) -> None:
        """An adapter connects, because it is new or its connection broke."""
        who = (adapter, adapter.life)
        if who not in self._connecting:
            self._connecting.append(who)
            self._try_to_connect(who)

    def on_disconnect(self, adapter: AdapterActor) -> None:
        """An adapter's process died, which ended its connection."""
        self._world.call(self._world.link(adapter.name, ADMIN), self._leave, (adapter, adapter.life))

    def on_broken(self, adapter: AdapterActor) -> None:
        """The connection of a running adapter broke, and both ends notice."""
        if self.is_up:
            self._world.after(0, self._leave, (adapter, adapter.life))
        adapter.on_message(adapter.life, adapter.engine.on_admin_disconnected)

    def _leave(self, who: tuple[AdapterActor, int]) -> None:
        if self._waits(self._leave, who):
            return
        adapter, life = who
        attendance = self._attending.get(adapter.adapter_id)
        if self.is_up and attendance is not None and attendance.life == life:
            del self._attending[adapter.adapter_id]
            self._cluster.checks.grants.forget(adapter.adapter_id)
            for decision in self.lease.on_gone(adapter.adapter_id, self._world.now_ns):
                self._perform_one(decision)
            self._world.after(ANNOUNCE_PAUSE_NS, self._announce_later, self.lease)  # as FeedState does

    def _try_to_connect(self, who: tuple[AdapterActor, int]) -> None:
        adapter, life = who
        there, back = self._world.link(adapter.name, ADMIN), self._world.link(ADMIN, adapter.name)
        is_alive = adapter.is_alive and adapter.life == life
        is_answering = self.is_up and self._paused_at_ns is None
        if is_alive and (
            not is_answering or adapter.is_paused or any((there.cuts, there.holds, back.cuts, back.holds))
        ):
            self._world.after(RETRY_NS, self._try_to_connect, who)
            return
        self._connecting.remove(who)
        if is_alive:
            self._world.call(there, self._attend, (adapter, life, adapter.stamp()))

    def _attend(self, who: tuple[AdapterActor, int, int]) -> None:
        if self._waits(self._attend, who):
            return
        adapter, life, report_id = who
        if not self.is_up or not adapter.is_alive or adapter.life != life:
            return
        adapter_id = adapter.adapter_id
        is_resumed = self._registered.get(adapter_id) == life
        self._registered[adapter_id] = life
        self._attending[adapter_id] = Attendance(adapter, life, report_id)
        if is_resumed:
            self.lease.on_resume(adapter_id)
        else:
            self._cluster.checks.grants.forget(adapter_id)
            self._perform(self.lease.on_attend(adapter_id, self._world.now_ns))
        if (reason := self._failed.get(adapter_id)) is not None:
            self._send(adapter, adapter.engine.on_failed, reason)
        self._announce_roles()
        self._schedule()

    # ---- reports ----

    def on_report(self, adapter: AdapterActor) -> None:
        """An adapter reports its state."""
        state, proof = adapter.engine.report(adapter.clock_ns(), adapter.life), adapter.newest_proof
        adapter.abstains = state.abstains
        if (liar := adapter.liar) is not None:
            state, proof = liar.to_server(state), liar.proof(proof)
        report = (adapter, adapter.life, adapter.stamp(), state, proof)
        self._world.call(self._world.link(adapter.name, ADMIN), self._take_report, report)

    def on_renew(self, adapter: AdapterActor, epoch: int) -> None:
        """An adapter asks to renew its lease; the new term counts from the request."""
        self._ask(adapter, lambda who: self._renew(adapter, who, epoch))

    def on_next_epoch(self, adapter: AdapterActor, epoch: int) -> None:
        """The holder asks for a new epoch for itself."""
        self._ask(adapter, lambda who: self.lease.next_epoch(who, epoch, self._world.now_ns))

    def on_offer_accepted(self, adapter: AdapterActor, epoch: int) -> None:
        """An heir accepts its offer."""
        self._ask(adapter, lambda who: self.lease.on_offer_accepted(who, epoch, self._world.now_ns))

    def on_released(self, adapter: AdapterActor, epoch: int) -> None:
        """The holder released its epoch."""
        self._world.log("{} releases epoch {}", adapter.name, epoch)
        self._ask(adapter, lambda who: self.lease.on_released(who, epoch, self._world.now_ns))

    def on_hand_over_wish(self, adapter: AdapterActor, wish: RequestHandOver) -> None:
        """The holder asks to be replaced."""
        self._world.log("{} asks to hand over epoch {}: {}", adapter.name, wish.epoch, wish.reason)
        self._ask(adapter, lambda who: self._hand_over_from(who, wish))

    def hand_over(self, heir: int | None) -> None:
        """An operator orders a planned hand-over; None: to the best candidate."""
        if self.is_up and not self._waits(self.hand_over, heir):
            self._perform(self._hand_over(heir))
            self._schedule()

    def on_ask_to_fail(self, adapter: AdapterActor, reason: str) -> None:
        """An adapter asks to leave the group."""
        self._world.log("{} asks to fail: {}", adapter.name, reason)
        self._world.call(
            self._world.link(adapter.name, ADMIN), self._take_request_to_fail, (adapter, adapter.life, reason)
        )

    def _take_request_to_fail(self, request: tuple[AdapterActor, int, str]) -> None:
        if self._waits(self._take_request_to_fail, request):
            return
        adapter, life, reason = request
        attendance, now_ns = self._attending.get(adapter.adapter_id), self._world.now_ns
        if not self.is_up or attendance is None or attendance.life != life:
            return
        refusal = self.lease.refusal_to_fail(adapter.adapter_id, now_ns, is_own_request=True)
        if refusal is not None:
            self._world.log("{} may not fail: it {}", adapter.name, refusal)
            return
        self._cluster.checks.grants.on_fail(adapter.adapter_id, self.lease.holder, now_ns)
        self._cluster.checks.grants.forget(adapter.adapter_id)
        self._failed[adapter.adapter_id] = reason
        self._world.log("{} is failed: {}", adapter.name, reason)
        if (pauses := self._cluster.checks.pauses) is not None:
            pauses.on_failed(adapter, reason)
        self._send(adapter, adapter.engine.on_failed, reason)
        self._perform(self.lease.fail(adapter.adapter_id, reason, now_ns))
        self._schedule()

    def readmit_all(self) -> None:
        """An operator readmits every failed adapter."""
        for adapter_id in list(self._failed):
            del self._failed[adapter_id]
            self.lease.readmit(adapter_id)
            self._cluster.checks.grants.forget(adapter_id)
            if (attendance := self._attending.get(adapter_id)) is not None:
                self._send(attendance.adapter, attendance.adapter.engine.on_readmitted)

    def _take_report(self, report: tuple[AdapterActor, int, int, PeerState, EpochProof | None]) -> None:
        if self._waits(self._take_report, report):
            return
        adapter, life, report_id, state, proof = report
        if not self._note(adapter, life, report_id):
            return
        self._send(adapter, adapter.engine.on_admin_message)
        if adapter.liar is not None and state.report_id in adapter.liar.refusable:
            self._cluster.checks.lies.on_refusable(adapter.adapter_id)
        if not self._believes(adapter.adapter_id, state, proof):
            self._schedule()
            return
        if self._believes_session(adapter.adapter_id, state.session):
            self.session = state.session
            self._cluster.checks.lies.on_session(self.session, self._cluster.source.session)
        if adapter.adapter_id not in self._failed:
            self._cluster.checks.grants.on_report(adapter.adapter_id, state, self._world.now_ns)
        decisions = self.lease.on_report(
            adapter.adapter_id,
            min((channel.state for channel in state.channels), key=WORST.index),
            sum(channel.position.next_input_seq for channel in state.channels),
            state.health,
            self._world.now_ns,
            history_epoch=min(channel.position.epoch for channel in state.channels),
            abstains=state.abstains,
            session=state.session,
            unheard=unheard(state.silences_ns),
        )
        self._perform(decisions)
        self._schedule()

    def _believes(self, adapter_id: int, state: PeerState, proof: EpochProof | None) -> bool:
        """Whether a report counts, as `FeedBroker.report` and `FeedState.report` find out."""
        lies, epoch = self._cluster.checks.lies, max(channel.position.epoch for channel in state.channels)
        if epoch > self._reserved_end:
            is_proved = proof is not None and proof.epoch >= epoch and self.proofs.is_genuine(proof)
            members = self._adapter_ids - self._failed.keys()
            known = self._reserved_end
            grounds, believed = self.claims.judge("epoch", adapter_id, epoch, known, members, is_proved=is_proved)
            if grounds is Grounds.NONE or believed > known + EPOCH_JUMP_MAX:
                self.claims.refuse("epoch", adapter_id, f"was in epoch {epoch}", self._world.now_ns)
                return False
            lies.on_epoch_believed(adapter_id, believed, grounds)
        found = impossible_in(peer_state_to_proto(state, HEALTH), self._channel_ids) if self._has_liars else None
        if found is not None:
            self.claims.refuse("state", adapter_id, f"reports {found}", self._world.now_ns)
            return False
        return True

    def _believes_session(self, adapter_id: int, session: int) -> bool:
        """Whether the feed is in a new session, as `FeedState` finds out; the source reports immediately."""
        now_ns, source = self._world.now_ns, self._cluster.source.session
        attending = self._attending.keys() - self._failed.keys()
        verdict = self.claims.judge_session(adapter_id, session, self.session, source, attending, now_ns)
        if verdict is SessionVerdict.REFUSED:
            self.claims.refuse("session", adapter_id, f"is in session {session}", now_ns)
        return verdict is SessionVerdict.BELIEVED

    def _ask(self, adapter: AdapterActor, hear: Callable[[int], list[LeaseDecision]]) -> None:
        """Send an adapter's request to the lease core, which replies with decisions."""
        request = (adapter, adapter.life, adapter.stamp(), hear)
        self._world.call(self._world.link(adapter.name, ADMIN), self._hear, request)

    def _hear(self, request: tuple[AdapterActor, int, int, Callable[[int], list[LeaseDecision]]]) -> None:
        if self._waits(self._hear, request):
            return
        adapter, life, report_id, hear = request
        if self._note(adapter, life, report_id):
            self._perform(hear(adapter.adapter_id))
            self._schedule()

    def _renew(self, adapter: AdapterActor, adapter_id: int, epoch: int) -> list[LeaseDecision]:
        decisions = self.lease.renew(adapter_id, epoch, self._world.now_ns)
        if not decisions:
            self._send(adapter, adapter.engine.on_lease_lost, epoch, "this adapter no longer holds the lease")
        return decisions

    def _hand_over_from(self, adapter_id: int, wish: RequestHandOver) -> list[LeaseDecision]:
        is_holder = (adapter_id, wish.epoch) == (self.lease.holder, self.lease.epoch)
        return self._hand_over(wish.heir_adapter_id or None) if is_holder else []

    def _hand_over(self, heir: int | None) -> list[LeaseDecision]:
        decisions = self.lease.hand_over(heir, self._world.now_ns)
        if decisions and isinstance(decisions[0], HandOverRefused):
            self._world.log("no hand-over: {}", decisions[0].reason)
            return []
        return decisions

    def _note(self, adapter: AdapterActor, life: int, report_id: int) -> bool:
        """Note an adapter's message, which the next order answers; returns False if its stream has already ended."""
        attendance = self._attending.get(adapter.adapter_id)
        if not self.is_up or attendance is None or attendance.life != life:
            return False
        attendance.report_id = report_id
        return True

    # ---- decisions ----

    def _schedule(self) -> None:
        if self.is_up:
            self._cluster.checks.grants.look(self.lease.holder, self._world.now_ns)
        deadline = self.lease.next_deadline_ns()
        if deadline is None or not self.is_up:
            return
        when = max(deadline, self._world.now_ns)
        if self._wake_at_ns is None or when < self._wake_at_ns or self._wake_at_ns < self._world.now_ns:
            self._wake_at_ns = when
            self._world.at(when, self._wake, when)

    def _wake(self, when: int) -> None:
        if self._wake_at_ns == when:
            self._wake_at_ns = None
            if self.is_up and self._paused_at_ns is None:
                self._perform(self.lease.on_timer(self._world.now_ns))
                self._schedule()

    def _perform(self, decisions: list[LeaseDecision]) -> None:
        for decision in decisions:
            self._perform_one(decision)
        if any(not isinstance(decision, Renewed | TermNoted | Offered | OrderedHandOver) for decision in decisions):
            self._announce_roles()

    def _perform_one(self, decision: LeaseDecision) -> None:
        """Perform a decision, as `admin_server.lease.lease_keeper` does."""
        terms, grants, log = self._cluster.checks.terms, self._cluster.checks.grants, self._world.log
        match decision:
            case Granted():
                self._grant(decision)
            case Renewed(adapter_id, epoch):
                attendance = self._attending[adapter_id]
                grants.on_held(adapter_id)
                renewed = (epoch, attendance.report_id, self.lease.terms.ttl_ns)
                self._send(attendance.adapter, attendance.adapter.on_lease_renewed, *renewed)
            case Vacated(epoch, reason):
                log("epoch {} is vacant: {}", epoch, reason)
                terms.on_vacated(epoch, reason)
                if (pauses := self._cluster.checks.pauses) is not None:
                    pauses.on_vacated(epoch, reason, self._holder_of(epoch), self._world.now_ns)
                grants.on_vacated(has_passed=reason in PASSED)
            case TermNoted(ttl_ns):
                log("the term of a lease is {} ms", ttl_ns // MS)
                self._noted_ttl_ns = ttl_ns
            case Offered(heir, epoch, after_epoch):
                attendance = self._attending[heir]
                log("epoch {} is offered to {}, after {}", epoch, attendance.adapter.name, after_epoch)
                self.proofs.make(epoch, heir)
                terms.on_offered(epoch)
                grants.on_offered(heir)
                self._cluster.checks.hand_overs.on_offered(epoch, after_epoch)
                offered = (epoch, after_epoch, attendance.report_id, self.lease.terms.ttl_ns)
                self._send(attendance.adapter, attendance.adapter.on_lease_offered, *offered)
            case OrderedHandOver(holder, epoch, heir):
                adapter = self._attending[holder].adapter
                self._send(adapter, adapter.engine.on_hand_over, epoch, heir)
            case HandedOver(adapter_id, epoch, former):
                log("epoch {} is granted to adapter {}, handed over by {}", epoch, adapter_id, former)
                self._notes.append((epoch, adapter_id))
                grants.on_held(adapter_id)
            case OfferWithdrawn(heir, epoch, reason):
                log("the offer of epoch {} is withdrawn: {}", epoch, reason)
                grants.on_offered(0)
                terms.on_withdrawn(epoch, reason)
                if (former_heir := self._attending.get(heir)) is not None:
                    self._send(former_heir.adapter, former_heir.adapter.engine.on_lease_lost, epoch, reason)

    def _holder_of(self, epoch: int) -> AdapterActor | None:
        owner = dict(self._notes).get(epoch)
        return next((each for each in self._cluster.adapters if each.adapter_id == owner), None)

    def _grant(self, granted: Granted) -> None:
        assert granted.epoch <= self._reserved_end, "no run grants enough epochs to need another block"
        attendance = self._attending[granted.adapter_id]
        adapter, epoch = attendance.adapter, granted.epoch
        self._notes.append((epoch, granted.adapter_id))
        self.proofs.make(epoch, granted.adapter_id)
        self._cluster.checks.terms.on_grant(epoch)
        self._cluster.checks.hand_overs.on_granted(epoch)
        self._cluster.checks.grants.on_grant(granted.adapter_id, self._world.now_ns)
        self._world.log("epoch {} is granted to {}", epoch, adapter.name)
        grant = (epoch, attendance.report_id, self.lease.terms.ttl_ns)
        notice = (adapter, attendance.life, adapter.on_lease_granted, grant)
        self._world.multicast(self._world.link(ADMIN, adapter.name), deliver, notice)  # may be lost, late or repeated
        self._send(adapter, adapter.on_lease_granted, *grant)

    def _announce_later(self, lease: FeedLease) -> None:
        if self._waits(self._announce_later, lease):
            return
        if self.is_up and lease is self.lease:  # the same server
            self._announce_roles()

    @property
    def roles(self) -> tuple[int, int]:
        """The active adapter (0: none) and the newest epoch."""
        return max(self.lease.holder, 0), self.lease.epoch

    def _announce_roles(self) -> None:
        active, epoch = self.roles
        group = frozenset(adapter.adapter_id for adapter in self._cluster.adapters)
        for attendance in self._attending.values():
            adapter = attendance.adapter
            self._send(adapter, partial(change, adapter, group, dict(self._registered), self.session), active, epoch)
        for client in self._cluster.clients:
            link = self._world.link(ADMIN, client.name)
            self._world.call(link, client.on_announced, Announced(active, epoch, self.session))

    def _send(self, adapter: AdapterActor, order: Callable[..., list[AdapterEffect]], *arguments: object) -> None:
        message = (adapter, self._attending[adapter.adapter_id].life, order, arguments)
        self._world.call(self._world.link(ADMIN, adapter.name), deliver, message)
