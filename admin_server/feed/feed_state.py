"""The changing state of one feed, and the one lock that guards it.

Public methods take the lock, and are steps that other threads see as a whole; private methods run with the lock held.
No method waits for the disk or the network while holding it. Decisions come from the lease core and the objects
that this one owns (`LeaseKeeper`, `AdapterStarts`, `CurrentSession`, `RegisteredProcesses`); none of them knows of the
lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.feed.conversions import Conversions
from tandemfeed.admin_server.feed.current_session import CurrentSession
from tandemfeed.admin_server.feed.descriptions import (
    AWAY,
    absent_adapters,
    copy_of,
    describe_adapter,
    history_epoch,
    total_position,
    unheard_adapters,
    worst_state,
)
from tandemfeed.admin_server.feed.grants import FeedView
from tandemfeed.admin_server.feed.keys.key_ring import KeyRing
from tandemfeed.admin_server.feed.members.adapter_starts import AdapterStarts
from tandemfeed.admin_server.feed.members.claims import Claims, Grounds, SessionVerdict, impossible_in
from tandemfeed.admin_server.feed.members.feed_reports import FeedReports
from tandemfeed.admin_server.feed.members.registered_processes import RegisteredProcesses
from tandemfeed.admin_server.feed.members.registrations import (
    ENDPOINT_LENGTH_MAX,
    AnotherProcess,
    ProcessStart,
    StartsTooOften,
)
from tandemfeed.admin_server.feed.members.replay_limits import ReplayLimits
from tandemfeed.admin_server.feed.members.start_limits import StartLimits
from tandemfeed.admin_server.feed.streams import Attendance, Subscriber
from tandemfeed.admin_server.feed.subscriber_streams import SubscriberStreams
from tandemfeed.admin_server.lease.lease_core import FeedLease, Offer
from tandemfeed.admin_server.lease.lease_decisions import HandOverRefused, LeaseDecision
from tandemfeed.admin_server.lease.lease_keeper import LeaseKeeper
from tandemfeed.admin_server.policy.rules import Extent
from tandemfeed.admin_server.records.lease_records import ClusterRecords, HistoryEvent
from tandemfeed.admin_server.settings import AdapterSettings, FeedSettings
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.calls.notices import TAKEOVER_S
from tandemfeed.transport.calls.revoked_tokens import RevokedTokens
from tandemfeed.transport.calls.server_proofs import Prover
from tandemfeed.v1 import admin_pb2, common_pb2

LOG = logging.getLogger("tandemfeed.admin_server.feed.feed_state")
# A new active and its clients first finish a takeover, for which they need the processors; then they hear who has left.
ANNOUNCE_PAUSE_NS = round(TAKEOVER_S * 1e9)
RETRY_S = 1.0  # until keys that are due are asked for again
PAUSE_S_MAX = 600.0  # the validity of keys follows the wall clock, which may be changed; leases do not depend on it


class OperationRefused(Exception):
    """The feed's present state does not allow the operation; the text says why."""


class FeedState:
    """The changing state of one feed. Safe to call from any thread.

    Attributes:
        processes: the registered processes; only their record is saved without the lock.
        replay_limits: of the adapters; only their record is saved, and without the lock.
        sources: the processes that send the feed's source packets; needs no lock.
    """

    def __init__(
        self,
        feed: FeedSettings,
        records: ClusterRecords,
        audit: AuditLog,
        keys: KeyRing,
        revoked: RevokedTokens,
        token_keys: Callable[[], list[common_pb2.TokenKey]],
        prove: Prover = lambda _statement: b"",
    ) -> None:
        self._feed, self._keys, self._revoked, self._token_keys = feed, keys, revoked, token_keys
        self.ended_source_starts: Callable[[], list[bytes]] = list  # replaced by the broker
        self._attending: dict[int, Attendance] = {}
        self._keeper = LeaseKeeper(feed, records, audit, self._attending, prove)
        self._keeper.restore()
        self.processes = RegisteredProcesses(feed, records, self.lease.config.term_ns)
        self._known = absent_adapters(feed, records.registrations(feed.feed_id))
        self.replay_limits = ReplayLimits(records, feed.feed_id)
        self._reports = FeedReports(feed, self._keeper, self.processes, self.replay_limits)
        self.sources = self._reports.sources
        channel_ids = [channel.channel_id for channel in feed.channels]
        self._starts = AdapterStarts(records.starts(feed.feed_id), channel_ids, time.monotonic_ns())
        self._conversions = Conversions(feed)
        self._resumed: dict[int, int] = {}  # adapter_id -> incarnation of a start that registered again
        self._sessions = CurrentSession(feed, records)
        self._claims, self._start_limits = Claims(), StartLimits()
        self._channel_ids = frozenset(channel_ids)
        self._subscribers = SubscriberStreams(self._attending)
        self._announce_at_ns: int | None = None
        self._is_stopped = False
        self._changed = threading.Condition(threading.Lock())

    @property
    def lease(self) -> FeedLease:
        """The feed's lease."""
        return self._keeper.lease

    @property
    def session(self) -> int:
        """The present session."""
        return self._sessions.session

    @property
    def reserved_end(self) -> int:
        """The last epoch that may be granted now."""
        return self._keeper.reserved_end

    def resumed_at_ns(self) -> int:
        """When this server's last pause ended; 0: it was never paused."""
        with self._changed:
            self.lease.note_time(time.monotonic_ns())
            return self.lease.resumed_at_ns

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._is_stopped

    def name_of(self, adapter_id: int) -> str:
        """An adapter's name."""
        return next((each.name for each in self._feed.adapters if each.adapter_id == adapter_id), str(adapter_id))

    def note(self, event: str, **fields: object) -> None:
        """Log and audit an event of this feed."""
        self._keeper.note(event, **fields)

    # ---- registrations: check, record (without the lock), claim, record, begin ----

    def check_registration(
        self, adapter: AdapterSettings, request: admin_pb2.RegisterRequest, process: ProcessStart
    ) -> common_pb2.AdapterStart | None:
        """The start that this registration resumes; None: it needs a new start.

        Raises:
            AnotherProcess, ReturnAwaited, StartsTooOften: the process may not register.
            OtherConversion: it is a new start, and it would convert otherwise than an attending adapter.
        """
        with self._changed:
            self._check(adapter, request, process)
            resumed = self._starts.resumable(adapter.adapter_id, request)
            if resumed is None:
                self._conversions.check(adapter.adapter_id, request.conversions, self._attending.keys())
                if wait_ns := self._start_limits.begin(adapter.adapter_id, time.monotonic_ns()):
                    what = f"{adapter.name} begins new starts in a loop"
                    self._refuse("starts", adapter.adapter_id, what.partition(" ")[2])
                    raise StartsTooOften(f"{what}; the next one may begin in {wait_ns / 1e9:.1f} s")
            return resumed

    def claim_registration(
        self, adapter: AdapterSettings, request: admin_pb2.RegisterRequest, process: ProcessStart, incarnation: int
    ) -> Attendance | None:
        """Make this process the registered one; return the open stream of the process that it replaces.

        Raises:
            AnotherProcess, ReturnAwaited: another process has registered since the first check.
        """
        with self._changed:
            self._check(adapter, request, process)
            self.processes.note_registered(adapter.adapter_id, process, incarnation)
            replaced = self._attending.get(adapter.adapter_id)
            if replaced is None or replaced.incarnation == incarnation:
                return None
            if self.lease.holder == adapter.adapter_id:
                reason = f"another process has replaced this one as {adapter.name}"
                replaced.order(lease_lost=admin_pb2.LeaseLost(epoch=self.lease.epoch, reason=reason))
            return replaced

    def begin_start(
        self,
        adapter: AdapterSettings,
        request: admin_pb2.RegisterRequest,
        start: common_pb2.AdapterStart,
        *,
        is_resumed: bool,
    ) -> common_pb2.AdapterDescription:
        """Announce a start to all adapters and subscribers; return the adapter's description.

        Raises:
            AnotherProcess: another process has registered since this one claimed its registration.
        """
        adapter_id = adapter.adapter_id
        with self._changed:
            if not self.processes.is_registered(adapter_id, start.incarnation):
                raise AnotherProcess(f"another process has registered as {adapter.name}, and replaces this one")
            if is_resumed:
                self._starts.note_counters(adapter_id, start.incarnation, request.next_packet_counters)
                self._resumed[adapter_id] = start.incarnation
            else:
                self._starts.begin(adapter_id, start, time.monotonic_ns())
            self._conversions.note(adapter_id, request.conversions)
            self._known[adapter_id] = describe_adapter(
                adapter,
                start.incarnation,
                request.rpc_endpoint,
                ReplicaState.JOINING.value,
                unicast_endpoint=request.unicast_endpoint,
                unicast_server_key=request.unicast_server_key,
            )
            self._announce()
            return self._described(adapter_id)

    def contradicts(self, request: admin_pb2.RegisterRequest) -> bool:
        """Whether a registration resumes a start that the records know as another one."""
        with self._changed:
            return self._starts.contradicts(request)

    def newest_start(self, adapter_id: int) -> common_pb2.AdapterStart | None:
        """The start of an adapter that registered last."""
        with self._changed:
            known = self._starts.announced(adapter_id, time.monotonic_ns())
            return known[-1] if known else None

    # ---- claims beyond the records ----

    def judge_claim(
        self, kind: str, adapter: AdapterSettings, claimed: int, known: int, *, is_proved: bool
    ) -> tuple[Grounds, int]:
        """Why, and up to which number, a number beyond the records is believed."""
        with self._changed:
            return self._claims.judge(kind, adapter.adapter_id, claimed, known, self._members(), is_proved=is_proved)

    def refuse_claim(self, kind: str, adapter: AdapterSettings, what: str) -> None:
        """Note that what an adapter said is not believed."""
        with self._changed:
            self._refuse(kind, adapter.adapter_id, what)

    def hear(self, attendance: Attendance, report_id: int) -> None:
        """An adapter reported something that is not believed: it lives, and nothing else of the report counts."""
        with self._changed:
            if self._attending.get(attendance.adapter.adapter_id) is attendance:
                attendance.report_id, attendance.heard_at_ns = report_id, time.monotonic_ns()
                attendance.order_if_room(report_heard=admin_pb2.ReportHeard(report_id=report_id))

    def _members(self) -> frozenset[int]:
        """The adapters that are not failed."""
        return frozenset(each.adapter_id for each in self._feed.adapters) - self.lease.candidates.failed.keys()

    def _refuse(self, kind: str, adapter_id: int, what: str) -> None:
        if self._claims.refuse(kind, adapter_id, what, time.time_ns()):
            self.note("claim refused", adapter=self.name_of(adapter_id), reason=what)

    def skip_epochs(self, after: int, reserved_end: int) -> None:
        """Grant only epochs after this one from now on."""
        with self._changed:
            self._keeper.skip_epochs(after, reserved_end)

    # ---- adapters' streams ----

    def attend(self, attendance: Attendance) -> bool:
        """An adapter's stream began. False if the stream has ended: this server is stopping, or another process has
        registered since this one did."""
        adapter_id = attendance.adapter.adapter_id
        with self._changed:
            is_replaced = self._known[adapter_id].incarnation != attendance.incarnation
            if self._is_stopped or is_replaced:  # since the call was admitted
                attendance.end()
                return False
            former = self._attending.get(adapter_id)
            self._attending[adapter_id] = attendance
            self.processes.note_attended(attendance, True)
            self._reports.on_attend(adapter_id)
            if self._resumed.get(adapter_id) == attendance.incarnation:
                self.lease.on_resume(adapter_id)
            else:
                self._perform(self.lease.on_attend(adapter_id, time.monotonic_ns()))
            if former is not None:
                former.end()
            if (reason := self.lease.candidates.failed.get(adapter_id)) is not None:
                attendance.order(failed=admin_pb2.AdapterFailed(reason=reason))
            self._order_replay_limit(attendance)
            self._announce()
            self._subscribers.announce()
            return True

    def report(self, attendance: Attendance, report: admin_pb2.AdapterReport) -> bool:
        """Process a report: the adapter's state, its requests, or both. False if the stream has been replaced."""
        adapter_id = attendance.adapter.adapter_id
        with self._changed:
            if self._attending.get(adapter_id) is not attendance:
                return False
            attendance.report_id, attendance.heard_at_ns = report.report_id, time.monotonic_ns()
            if (what := impossible_in(report.state, self._channel_ids)) is not None:
                self._refuse("state", adapter_id, f"reports {what}")
                return False
            if report.renew_epoch and self._keeper.renew(attendance, report):
                self._announce()
            self._starts.note_counters(adapter_id, attendance.incarnation, report.next_packet_counters)
            if report.HasField("state"):
                attendance.order_if_room(report_heard=admin_pb2.ReportHeard(report_id=report.report_id))
                self._note_state(adapter_id, report.state)
                self._note_unicast_endpoint(adapter_id, report.unicast_endpoint)
            if not attendance.knows_subscriptions:
                self._subscribers.announce()
            if report.accepted_epoch:
                self._perform(self.lease.on_offer_accepted(adapter_id, report.accepted_epoch, time.monotonic_ns()))
            if report.released_epoch:
                self._perform(self.lease.on_released(adapter_id, report.released_epoch, time.monotonic_ns()))
            if report.next_epoch_after:
                self._perform(self.lease.next_epoch(adapter_id, report.next_epoch_after, time.monotonic_ns()))
            if report.hand_over_epoch and (adapter_id, report.hand_over_epoch) == (self.lease.holder, self.lease.epoch):
                self._hand_over_on_request(adapter_id, report.hand_over_heir)
            return True

    def leave(self, attendance: Attendance, *, has_ended: bool = False) -> bool:
        """An adapter's stream ended. False if this changes nothing. Args: has_ended: its process has ended."""
        adapter_id = attendance.adapter.adapter_id
        with self._changed:
            if self._attending.get(adapter_id) is not attendance or self._is_stopped:
                return False  # a server that stops ends all streams: this says nothing about the adapters
            del self._attending[adapter_id]
            self.processes.note_attended(attendance, False)
            if adapter_id in self._known:
                self._known[adapter_id].replica_state = AWAY
            self._keeper.perform(self.lease.on_gone(adapter_id, time.monotonic_ns(), has_ended=has_ended))
            self._announce_soon()
            self._reports.on_leave(adapter_id)  # last, because a takeover is urgent
            return True

    def other_conversion(self, adapter_id: int) -> str | None:
        """What distinguishes the conversion of an adapter from that of one that attends; None: nothing."""
        with self._changed:
            return self._conversions.difference(adapter_id, self._attending.keys())

    def endpoint_of(self, adapter_id: int) -> str:
        """Where an adapter that has registered serves calls: host:port."""
        with self._changed:
            return self._known[adapter_id].rpc_endpoint

    def attendance_of(self, incarnation: int) -> Attendance | None:
        """The open stream of a start."""
        with self._changed:
            return next((each for each in self._attending.values() if each.incarnation == incarnation), None)

    def attendances(self) -> list[Attendance]:
        """The open streams of adapters."""
        with self._changed:
            return list(self._attending.values())

    # ---- subscribers ----

    def add_subscriber(self, subscriber: Subscriber) -> None:
        """A subscription began."""
        with self._changed:
            self._subscribers.add(subscriber)
            if self._is_stopped:  # it began while this server was becoming a standby
                subscriber.end("")

    def remove_subscriber(self, subscriber: Subscriber) -> None:
        """A subscription ended."""
        with self._changed:
            self._subscribers.remove(subscriber)
            self._changed.notify_all()  # the timekeeper waits for the end of its time to return

    def limit_subscribers(self, extent: Callable[[str, int], Extent]) -> None:
        """Withdraw what is no longer granted, and have every subscription compare its grant with what it is now."""
        with self._changed:
            self._subscribers.limit(extent)
            self._subscribers.notify()

    def subscribers(self) -> list[Subscriber]:
        """The open subscriptions, the oldest first."""
        with self._changed:
            return self._subscribers.streams()

    def end_subscribers(self, is_to_end: Callable[[Subscriber], bool], reason: str) -> list[Subscriber]:
        """End the calls of these subscriptions, refusing them with this text, and return the subscriptions."""
        with self._changed:
            return self._subscribers.end_revoked(is_to_end, reason)

    # ---- operations ----

    def hand_over(self, heir_id: int | None, by: str, *, is_failing: bool) -> tuple[int, int]:
        """Offer the next epoch to a backup, and wait until it holds the lease; return (epoch, its adapter_id).

        Raises:
            OperationRefused: the hand-over is not possible, or its offer was withdrawn.
        """
        with self._changed:
            offer = self._offer(heir_id, by, is_failing=is_failing)
            while self.lease.offer is offer and not self._is_stopped:
                self._changed.wait()  # the timekeeper ends the offer at its deadline
            if self.lease.holder != offer.heir or self.lease.epoch < offer.epoch:
                raise OperationRefused(
                    f"{self.name_of(offer.heir)} did not take over within the lease term; the audit log says why"
                )
            return self.lease.epoch, offer.heir

    def heirs_of(self, adapter_id: int) -> list[int] | None:
        """The adapters that could take over from this one; None if it is not active."""
        with self._changed:
            if self.lease.holder != adapter_id:
                return None
            return self.lease.candidates.heirs(adapter_id, time.monotonic_ns())

    def is_failed(self, adapter_id: int) -> bool:
        """Whether an adapter is failed here."""
        with self._changed:
            return adapter_id in self.lease.candidates.failed

    def is_drained(self, adapter_id: int) -> bool:
        """Whether an adapter is drained."""
        with self._changed:
            return adapter_id in self.lease.candidates.drained

    def may_readmit(self, adapter_id: int) -> bool:
        """Whether an adapter is failed here, or reports that it is."""
        with self._changed:
            candidates = self.lease.candidates
            return adapter_id in candidates.failed or candidates.reports_failed(adapter_id)

    def refusal_to_fail(self, adapter: AdapterSettings, *, is_own_request: bool, is_forced: bool) -> str | None:
        """Why an adapter may not be failed now; None if it may."""
        with self._changed:
            return self._refusal_to_fail(adapter, is_own_request=is_own_request, is_forced=is_forced)

    def fail(
        self, adapter: AdapterSettings, reason: str, by: str, *, is_own_request: bool, is_forced: bool
    ) -> str | None:
        """Fail an adapter whose failure is recorded; or return why it may no longer be failed."""
        with self._changed:
            refusal = self._refusal_to_fail(adapter, is_own_request=is_own_request, is_forced=is_forced)
            if refusal is None:
                decisions = self.lease.fail(adapter.adapter_id, reason, time.monotonic_ns())
                if (attendance := self._attending.get(adapter.adapter_id)) is not None:
                    attendance.order(failed=admin_pb2.AdapterFailed(reason=reason))
                self.note("adapter failed", adapter=adapter.name, reason=reason, by=by)
                self._perform(decisions, announces=True)
            return refusal

    def drain(self, adapter: AdapterSettings, reason: str, by: str, *, is_forced: bool) -> str | None:
        """Drain an adapter whose draining is recorded; or return why it may no longer be drained."""
        with self._changed:
            refusal = self._refusal_to_fail(adapter, is_own_request=False, is_forced=is_forced)
            if refusal is None:
                decisions = self.lease.drain(adapter.adapter_id, reason, time.monotonic_ns())
                self.note("adapter drained", adapter=adapter.name, reason=reason, by=by)
                self._perform(decisions)
            return refusal

    def undrain(self, adapter: AdapterSettings, by: str) -> None:
        """Let an adapter become active again, after that was recorded."""
        with self._changed:
            decisions = self.lease.undrain(adapter.adapter_id, time.monotonic_ns())
            self.note("adapter undrained", adapter=adapter.name, by=by)
            self._perform(decisions)

    def readmit(self, adapter: AdapterSettings, by: str) -> None:
        """Return an adapter to the feed, after its readmission was recorded."""
        with self._changed:
            self.lease.readmit(adapter.adapter_id)
            self._claims.forget(adapter.adapter_id)
            if (attendance := self._attending.get(adapter.adapter_id)) is not None:
                attendance.order(readmitted=admin_pb2.AdapterReadmitted())
            self.note("adapter readmitted", adapter=adapter.name, by=by)
            self._announce()

    def announce_replay_limit(self, adapter: AdapterSettings, by: str) -> None:
        """Order an adapter to keep the limit that was recorded."""
        with self._changed:
            if (attendance := self._attending.get(adapter.adapter_id)) is not None:
                self._order_replay_limit(attendance)
            bytes_per_s = self.replay_limits.of(adapter.adapter_id)
            reason = f"to {bytes_per_s / 1e6:g} MB/s" if bytes_per_s else "not any more"
            self.note("replay limited", adapter=adapter.name, reason=reason, by=by)

    # ---- views ----

    def adapters(self) -> list[common_pb2.AdapterDescription]:
        """Every adapter that has ever registered."""
        with self._changed:
            return self._descriptions()

    def view(self) -> FeedView:
        """What subscribers may know of the feed's state, all of one moment."""
        with self._changed:
            lease = self.lease
            active = admin_pb2.ActiveAdapter(adapter_id=max(lease.holder, 0), epoch=lease.epoch)
            if lease.takeovers.last and lease.takeovers.last[-1].epoch == lease.epoch:
                active.takeover_reason = lease.takeovers.last[-1].reason.name.lower()
            return FeedView(self.session, self._descriptions(), active)

    def status(self) -> admin_pb2.FeedStatus:
        """The feed's status for administrators, with every configured adapter."""
        with self._changed:
            status = self._reports.status(self.session, self._known, self._attending, len(self._subscribers))
            for row in status.adapters:
                row.doubts.extend(
                    admin_pb2.DoubtedClaim(what=each.what, count=each.count, last_unix_ns=each.last_unix_ns)
                    for each in self._claims.doubts(row.adapter.adapter_id)
                )
            return status

    def history(self) -> list[HistoryEvent]:
        """The last events, the newest last."""
        with self._changed:
            return self._keeper.history.events()

    def note_alert(self, event: str, text: str) -> None:
        """Keep in the history that an alert began or ended."""
        with self._changed:
            self._keeper.history.note(event, {"reason": text}, time.time_ns())

    # ---- time ----

    def run_timers(self) -> bool:
        """Perform what is due; True if epochs must be reserved."""
        with self._changed:
            if self._is_stopped:
                return False
            self._perform(self.lease.on_timer(time.monotonic_ns()))
            is_due = self._announce_at_ns is not None and time.monotonic_ns() >= self._announce_at_ns
            if self._starts.withdraw(time.monotonic_ns()) or is_due:
                self._announce()
            self._subscribers.run_timers()
            return self._keeper.needs_epochs

    def reserve_epochs(self) -> None:
        """Reserve epochs if they are needed. Waits for the disk or the network, without the lock."""
        with self._changed:
            if self._is_stopped or not self._keeper.needs_epochs:
                return
        reserved_end = self._keeper.reserve()
        with self._changed:
            self._keeper.note_reserved(reserved_end)

    def announce(self) -> None:
        """Announce the present keys and adapters to all adapters and subscribers."""
        with self._changed:
            self._announce()

    def wait_for_change(self) -> None:
        """Wait until the state changes, or until something is due."""
        with self._changed:
            if not self._is_stopped:
                self._changed.wait(self._pause_s())

    def stop(self) -> None:
        """End every stream and every wait."""
        with self._changed:
            self._is_stopped = True
            for attendance in self._attending.values():
                attendance.end()
            self._subscribers.end()
            self._changed.notify_all()

    # ---- inside; the lock is held ----

    def _check(self, adapter: AdapterSettings, request: admin_pb2.RegisterRequest, process: ProcessStart) -> None:
        """Raise unless this process may register."""
        self.lease.note_time(time.monotonic_ns())
        attendance, resumed_at_ns = self._attending.get(adapter.adapter_id), self.lease.resumed_at_ns
        self.processes.check(adapter, process, attendance, is_replacing=request.replace, resumed_at_ns=resumed_at_ns)

    def _described(self, adapter_id: int) -> common_pb2.AdapterDescription:
        """A copy of an adapter's description, with its starts that are valid now."""
        description = copy_of(self._known[adapter_id])
        description.starts.extend(self._starts.announced(adapter_id, time.monotonic_ns()))
        return description

    def _descriptions(self) -> list[common_pb2.AdapterDescription]:
        """Every adapter that has ever registered."""
        return [self._described(adapter_id) for adapter_id in self._known]

    def _note_state(self, adapter_id: int, state: common_pb2.FeedAdapterState) -> None:
        self._reports.note(adapter_id, state)
        self._claims.withdraw("epoch", adapter_id)
        session_changed = self._believes_session(adapter_id, state.session) and self._sessions.note(state.session)
        worst = worst_state(state)
        if worst is None:
            return
        known = self._known[adapter_id]
        moved, known.replica_state = known.replica_state != worst.value, worst.value
        decisions = self.lease.on_report(
            adapter_id,
            worst,
            total_position(state),
            state.health.score,
            time.monotonic_ns(),
            history_epoch=history_epoch(state),
            abstains=state.abstains,
            session=state.session,
            unheard=unheard_adapters(state),
        )
        self._perform(decisions)
        if session_changed:
            self._announce()
        elif moved:
            self._announce_soon()
        elif not self.lease.holder:
            self._changed.notify_all()  # the adapter is a candidate again, so the lease may have a deadline now

    def _believes_session(self, adapter_id: int, session: int) -> bool:
        """Whether adapters may be in this session: the source is, or more than half of those that attend."""
        known, source, attending = self.session, self.sources.newest_session, self._members() & self._attending.keys()
        verdict = self._claims.judge_session(adapter_id, session, known, source, attending, time.monotonic_ns())
        if verdict is SessionVerdict.REFUSED:
            self._refuse("session", adapter_id, f"is in session {session}; the feed's is {max(known, source)}")
        return verdict is SessionVerdict.BELIEVED

    def _note_unicast_endpoint(self, adapter_id: int, endpoint: str) -> None:
        known = self._known[adapter_id]
        if known.unicast_endpoint != endpoint and len(endpoint) <= ENDPOINT_LENGTH_MAX:
            known.unicast_endpoint = endpoint
            self._announce()

    def _perform(self, decisions: list[LeaseDecision], *, announces: bool = False) -> None:
        """Perform decisions of the lease core. Args: announces: announce the feed's state even if it is unchanged."""
        if self._keeper.perform(decisions) or announces:
            self._announce()
        elif decisions:
            self._changed.notify_all()  # the next deadline may be earlier now

    def _announce_soon(self) -> None:
        """Announce what is not urgent, together with what else changes meanwhile."""
        if self._announce_at_ns is None:
            self._announce_at_ns = time.monotonic_ns() + ANNOUNCE_PAUSE_NS
        self._changed.notify_all()

    def _announce(self) -> None:
        self._announce_at_ns = None
        changed = admin_pb2.ClusterChanged(
            adapters=self._descriptions(),
            keys=self._keys.keys(channel.channel_id for channel in self._feed.channels),
            decision_keys=self._keys.decision_keys(),
            source_keys=self._keys.source_keys(),
            ended_source_starts=self.ended_source_starts(),
            token_keys=self._token_keys(),
            revoked_tokens=self._revoked.messages(),
            active_adapter_id=max(self.lease.holder, 0),
            epoch=self.lease.epoch,
            epoch_proof=self._keeper.epoch_proof,
            session=self._sessions.session,
        )
        for attendance in self._attending.values():
            attendance.order_if_room(cluster_changed=changed)
        self._subscribers.notify()
        self._changed.notify_all()

    def _refusal_to_fail(self, adapter: AdapterSettings, *, is_own_request: bool, is_forced: bool) -> str | None:
        refusal = self.lease.refusal_to_fail(
            adapter.adapter_id, time.monotonic_ns(), is_own_request=is_own_request, is_forced=is_forced
        )
        return None if refusal is None else f"{adapter.name} {refusal}"

    def _order_replay_limit(self, attendance: Attendance) -> None:
        limit = self.replay_limits.of(attendance.adapter.adapter_id)
        attendance.order(replay_limited=admin_pb2.ReplayLimited(bytes_per_s=limit))

    def _hand_over_on_request(self, adapter_id: int, heir_id: int) -> None:
        """Begin a hand-over that the active requested; it repeats the request if no backup can take over now."""
        try:
            self._offer(heir_id or None, self.name_of(adapter_id))
        except OperationRefused as refused:
            LOG.info("refused the active's hand-over request", extra={"feed": self._feed.name, "why": str(refused)})

    def _offer(self, heir_id: int | None, by: str, *, is_failing: bool = False) -> Offer:
        """Offer the next epoch to a backup (None: the best), or raise OperationRefused."""
        if not self._keeper.may_offer:
            raise OperationRefused("this server cannot offer an epoch now, because it cannot use its records")
        decisions = self.lease.hand_over(heir_id, time.monotonic_ns(), is_failing=is_failing)
        if isinstance(refused := decisions[0], HandOverRefused):
            who = f"{self.name_of(refused.adapter_id)} " if refused.adapter_id else ""
            raise OperationRefused(who + refused.reason)
        offer = self.lease.offer
        assert offer is not None
        self.note("hand-over requested", by=by, heir=self.name_of(offer.heir))
        self._perform(decisions)
        return offer

    def _pause_s(self) -> float:
        pause_ns = self._keys.pause_ns()
        pause_s = pause_ns / 1e9 if pause_ns > 0 else RETRY_S
        deadlines = self._starts.next_deadline_ns(), self._subscribers.next_deadline_ns(), self._announce_at_ns
        for deadline_ns in (self.lease.next_deadline_ns(), *deadlines):
            if deadline_ns is None:
                continue
            pause_s = min(pause_s, max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9))
        return min(pause_s, PAUSE_S_MAX)
