"""In any order of events, no two adapters may rely on the same lease (protocol 6, invariant 5).

The model tracks what each adapter may rely on, by the rules that adapters follow, and compares it with the store's
promises. The store may restart; its records then contain every promise except perhaps the newest grant.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tandemfeed.admin_server.lease.lease_core import FeedLease, Granted, LeaseDecision
from tandemfeed.admin_server.lease.lease_decisions import (
    HandedOver,
    HandOverRefused,
    Offered,
    OfferWithdrawn,
    Renewed,
    TermNoted,
    Vacated,
)
from tandemfeed.admin_server.lease.takeovers import TakeoverReason
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.admin_server.lease.lease_by_hand import CONFIG, MS
from tests.admin_server.lease.lease_model import Observer, Report

ADAPTERS = st.integers(1, 3)
ALL_ADAPTERS = frozenset({1, 2, 3})


class LeaseMachine(RuleBasedStateMachine):
    """Attributes:
    believed, offered: adapter_id -> (epoch, time until which its current process may rely on it).
    excused: adapters whose stream ended, so that the store need not wait for them.
    observer: the adapters' reports, and the best adapter according to them.
    vacant_since_ns: the time since which no adapter has held the lease although one could.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.lease = FeedLease(CONFIG, ALL_ADAPTERS)
        self.states: dict[int, ReplicaState] = {}
        self.observer = Observer(CONFIG.fresh_ns)
        self.vacant_since_ns: int | None = None
        self.holder = 0
        self.believed: dict[int, tuple[int, int]] = {}
        self.offered: dict[int, tuple[int, int, int]] = {}  # the third number is the preceding epoch
        self.excused: set[int] = set()
        self.promised: dict[int, int] = {}  # epoch -> adapter_id, of every grant and offer ever made
        self.forgotten: set[int] = set()  # of them, those to a process that has ended
        self.held: list[int] = []
        self.notes: list[tuple[int, int]] = []
        self.noted_ttl_ns = CONFIG.ttl_ns

    # ---- what the store decides ----

    def take(self, decisions: list[LeaseDecision]) -> None:
        for decision in decisions:
            match decision:
                case Granted(adapter_id, epoch):
                    self._take_grant(adapter_id, epoch)
                case Offered(heir, epoch, after_epoch):
                    assert epoch > max(self.promised), "an epoch is offered once"
                    assert after_epoch == self.held[-1]
                    self.promised[epoch] = heir
                    self.offered[heir] = (epoch, self.now_ns + self.announced_ttl_ns(), after_epoch)
                    self.notes.append((epoch, heir))
                case Vacated(_, reason):
                    if reason in (TakeoverReason.TERM_PASSED, TakeoverReason.RESTORED):
                        self.observer.forget(self.holder)
                    self.holder = 0
                case HandedOver(adapter_id, epoch, former):
                    assert former not in self.believed, "the lease was handed over before its holder let go"
                    self._hold(adapter_id, epoch)
                    offered = self.offered.pop(adapter_id)
                    assert offered[0] == epoch
                    self.believed[adapter_id] = offered[:2]
                case TermNoted(ttl_ns):
                    assert CONFIG.ttl_ns <= ttl_ns <= CONFIG.ttl_ns_max
                    self.noted_ttl_ns = ttl_ns
                case OfferWithdrawn(heir, epoch):
                    self._take_withdrawal(heir, epoch)
                case Renewed(adapter_id, epoch):
                    assert self.promised[epoch] == adapter_id
                    if adapter_id in self.offered and self.offered[adapter_id][0] == epoch:
                        assert self.was_restarted, "the store knew of the offer but handed nothing over"
                        self.held.append(epoch)  # a restarted store regards the heir as the holder
                        del self.offered[adapter_id]
                    assert epoch == max(self.held), "a later epoch was granted"
                    self.holder, self.is_extended = adapter_id, False
                    self.believed[adapter_id] = (epoch, self.now_ns + self.announced_ttl_ns())
                    self.excused.discard(adapter_id)

    def announced_ttl_ns(self) -> int:
        """The term announced with a grant, a renewal or an offer."""
        ttl_ns = self.lease.terms.ttl_ns
        assert ttl_ns <= self.noted_ttl_ns, "a restarted store waits for less than this term"
        return ttl_ns

    def _take_grant(self, adapter_id: int, epoch: int) -> None:
        assert adapter_id in self.states
        assert adapter_id not in self.observer.failed
        is_heir, is_own_request = adapter_id in self.offered, adapter_id == self.holder
        if not is_heir and not is_own_request:
            assert adapter_id == self.observer.best(self.now_ns), "another adapter was better"
        assert (
            is_heir
            or self.states[adapter_id] not in (ReplicaState.FAILED, ReplicaState.ACTIVE)
            or (
                adapter_id in self.believed  # a new epoch for itself
            )
        )
        for beliefs in (self.believed, self.offered):
            for other, (_, until_ns, *_rest) in beliefs.items():
                assert other in (adapter_id, *self.excused) or self.now_ns >= until_ns, f"{other} may rely on its lease"
        self._hold(adapter_id, epoch)
        self.offered.pop(adapter_id, None)
        self.believed[adapter_id] = (epoch, self.now_ns + self.announced_ttl_ns())
        self.excused.discard(adapter_id)

    def _hold(self, adapter_id: int, epoch: int) -> None:
        assert epoch > max(self.held, default=0), "epochs only grow"
        assert self.promised.setdefault(epoch, adapter_id) == adapter_id, "two adapters have the same epoch"
        self.held.append(epoch)
        self.holder, self.is_extended = adapter_id, False
        self.notes.append((epoch, adapter_id))

    def _take_withdrawal(self, heir: int, epoch: int) -> None:
        offered = self.offered.pop(heir, None)
        if offered is not None:  # its current process knows of the offer
            assert offered[0] == epoch
            assert heir in self.excused or self.now_ns >= offered[1]

    # ---- what adapters do ----

    @initialize()
    def all_adapters_start(self) -> None:
        for adapter in sorted(ALL_ADAPTERS):
            self.start(adapter)
        self.all_adapters_report()

    def _die(self, adapter: int) -> None:
        self.believed.pop(adapter, None)
        self.offered.pop(adapter, None)
        self.forgotten |= {epoch for epoch, owner in self.promised.items() if owner == adapter}

    def _forget(self, adapter: int) -> None:
        """An adapter's process or stream ended, so its reports no longer count."""
        self.observer.forget(adapter)
        if self.holder == adapter:
            self.holder = 0

    @rule(adapter=ADAPTERS, is_dead=st.booleans())
    def leave(self, adapter: int, is_dead: bool) -> None:
        if is_dead:
            self._die(adapter)
        if self.states.pop(adapter, None) is not None:
            self.excused.add(adapter)
        self._forget(adapter)
        self.take(self.lease.on_gone(adapter, self.now_ns))

    @rule(adapter=ADAPTERS)
    def start(self, adapter: int) -> None:
        self._die(adapter)
        self.states[adapter] = ReplicaState.JOINING
        self._forget(adapter)
        self.take(self.lease.on_attend(adapter, self.now_ns))

    @rule(adapter=ADAPTERS)
    def resume(self, adapter: int) -> None:
        if adapter not in self.states:
            self.states[adapter] = ReplicaState.ACTIVE
            self.observer.forget(adapter)
            self.lease.on_resume(adapter)

    @rule(
        adapter=ADAPTERS,
        state=st.sampled_from([*ReplicaState, ReplicaState.SYNCHRONIZED, ReplicaState.SYNCHRONIZED]),
        seq=st.integers(1, 9),
        health=st.sampled_from([0.25, 0.5]),
        history_epoch=st.integers(0, 1),
        abstains=st.sampled_from([False, False, False, True]),
    )
    def report(
        self, adapter: int, state: ReplicaState, seq: int, health: float, history_epoch: int, abstains: bool
    ) -> None:
        if adapter not in self.states:
            return
        if self._believes(adapter):
            state = ReplicaState.ACTIVE
        self.states[adapter] = state
        self.observer.reports[adapter] = Report(state, seq, health, history_epoch, abstains, self.now_ns)
        history = {"history_epoch": history_epoch, "abstains": abstains}
        self.take(self.lease.on_report(adapter, state, seq, health, self.now_ns, **history))

    @rule()
    def all_adapters_report(self) -> None:
        for adapter in sorted(self.states):
            self.report(adapter, ReplicaState.SYNCHRONIZED, 5, 0.5, 0, False)

    @rule(adapter=ADAPTERS)
    def renew(self, adapter: int) -> None:
        if adapter in self.states and self._believes(adapter):
            epoch, _ = self.believed[adapter]
            decisions = self.lease.renew(adapter, epoch, self.now_ns)
            if not decisions:
                del self.believed[adapter]  # it learns that the lease is lost
            self.take(decisions)

    @rule(adapter=ADAPTERS, place=st.integers(0, 4))
    def renew_an_old_promise(self, adapter: int, place: int) -> None:
        """A delayed report, or an adapter that resumed after a pause. Promises to an ended process do not count."""
        known = self.promised.keys() - self.forgotten
        epochs = sorted((epoch for epoch in known if self.promised[epoch] == adapter), reverse=True)
        if adapter not in self.states or place >= len(epochs) or adapter in self.offered:
            return
        if max(self.held) == self.lost_epoch:
            return  # the store does not know epochs after its last record
        epoch = epochs[place]
        is_stale = epoch != max(self.held) or adapter != self.promised[max(self.held)]
        newest = self.observer.reports.get(adapter)
        has_stopped = self.holder != adapter and newest is not None and newest.state is not ReplicaState.ACTIVE
        decisions = self.lease.renew(adapter, epoch, self.now_ns)
        assert not decisions or not (is_stale or has_stopped), "a former holder renewed"
        if decisions:
            self.take(decisions)

    @rule(pause_ms=st.integers(1, 90), is_renewed=st.booleans())
    def continue_for_a_while(self, pause_ms: int, is_renewed: bool) -> None:
        """For a while, all adapters report, and the holder may renew."""
        self.wait(pause_ms)
        self.all_adapters_report()
        for adapter in sorted(ALL_ADAPTERS) if is_renewed else ():
            self.renew(adapter)

    @rule(is_reported=st.booleans())
    def release(self, is_reported: bool) -> None:
        """A holder that was ordered to hand over ends its epoch; its report may be lost."""
        for adapter in [adapter for adapter in sorted(self.believed) if self._believes(adapter) and self.offered]:
            epoch, _ = self.believed.pop(adapter)
            if is_reported and adapter in self.states:
                self.states[adapter] = ReplicaState.SYNCHRONIZED
                self.take(self.lease.on_released(adapter, epoch, self.now_ns))

    @rule()
    def open_an_offered_epoch(self) -> None:
        for adapter in sorted(set(self.offered) & set(self.states)):
            epoch, until_ns, after_epoch = self.offered[adapter]
            former = self.promised[after_epoch]
            if self.now_ns >= until_ns or self.believed.get(former, (0, 0))[0] == after_epoch:
                continue
            decisions = self.lease.renew(adapter, epoch, self.now_ns)
            if decisions:
                self.take(decisions)
            else:
                del self.offered[adapter]
                assert adapter in self.excused or self.was_restarted, "an heir must be able to open an offered epoch"

    @rule(adapter=ADAPTERS)
    def ask_for_a_new_epoch(self, adapter: int) -> None:
        if adapter in self.states and self._believes(adapter):
            self.take(self.lease.next_epoch(adapter, self.believed[adapter][0], self.now_ns))

    # ---- what administrators do ----

    @rule(to=st.one_of(st.none(), ADAPTERS))
    def hand_over(self, to: int | None) -> None:
        decisions = self.lease.hand_over(to, self.now_ns)
        if not isinstance(decisions[0], HandOverRefused):
            self.take(decisions)

    @rule(adapter=ADAPTERS)
    def accept(self, adapter: int) -> None:
        if adapter in self.states and adapter in self.offered:
            self.take(self.lease.on_offer_accepted(adapter, self.offered[adapter][0], self.now_ns))

    @rule()
    def all_adapters_are_healthy_and_hand_over(self) -> None:
        self.all_adapters_report()
        for adapter in sorted(ALL_ADAPTERS):
            self.renew(adapter)
        self.hand_over(None)

    @rule(adapter=ADAPTERS, is_own_request=st.booleans(), is_forced=st.booleans())
    def fail(self, adapter: int, is_own_request: bool, is_forced: bool) -> None:
        refusal = self.lease.refusal_to_fail(adapter, self.now_ns, is_own_request=is_own_request, is_forced=is_forced)
        assert bool(refusal) == self._must_stay(adapter, is_own_request, is_forced), refusal
        if refusal is None:
            self.observer.failed.add(adapter)
            self.take(self.lease.fail(adapter, "by hand", self.now_ns))

    def _must_stay(self, adapter: int, is_own_request: bool, is_forced: bool) -> bool:
        if adapter == self.lease.holder or (self.lease.offer is not None and self.lease.offer.heir == adapter):
            return True
        in_sync = self.observer.in_sync(self.lease.holder, self.now_ns)
        if is_forced:
            return False
        is_alone = not [each for each in in_sync if each != adapter]
        return is_alone and (adapter in in_sync or (is_own_request and self.lease.holder <= 0))

    @rule(adapter=ADAPTERS)
    def readmit(self, adapter: int) -> None:
        self.observer.failed.discard(adapter)
        self.observer.forget(adapter)
        self.lease.readmit(adapter)

    # ---- time, and restarts of the store ----

    was_restarted = False
    is_extended = False  # a pause of the store has extended the present term
    lost_epoch = 0  # its grant was lost when the store restarted

    @rule(pause_ms=st.sampled_from([20, 120, 200, 260, 310, 340, 1_000]))
    def wait(self, pause_ms: int) -> None:
        """The store is awake: it serves every deadline."""
        end_ns = self.now_ns + pause_ms * MS
        while (deadline_ns := self.lease.next_deadline_ns()) is not None and deadline_ns <= end_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            self.take(self.lease.on_timer(self.now_ns))
        self.now_ns = end_ns
        self.take(self.lease.on_timer(self.now_ns))
        self.a_feed_with_a_candidate_soon_has_an_active()

    @rule(pause_ms=st.sampled_from([20, 120, 340, 1_000, 5_000]))
    def the_store_is_paused(self, pause_ms: int) -> None:
        """What adapters send meanwhile waits in the store's queues, so no adapter is silent."""
        deadline_ns = self.lease.next_deadline_ns()
        due_ns = None if deadline_ns is None else max(deadline_ns, self.now_ns)
        self.now_ns += pause_ms * MS
        is_noticed = due_ns is not None and self.now_ns - due_ns >= CONFIG.pause_after_ns
        if due_ns is not None and is_noticed:
            self.observer.on_own_pause(self.now_ns - due_ns)
            if self.vacant_since_ns is not None:
                self.vacant_since_ns += self.now_ns - due_ns
        former, may_end = self.lease.holder, self.is_extended or not is_noticed or not self.lease.holder
        self.take(self.lease.on_timer(self.now_ns))
        assert may_end or self.lease.holder == former, "judged by its own pause"
        self.is_extended = self.is_extended or (is_noticed and self.lease.holder == former)

    @rule(pause_ms=st.sampled_from([700, 1_300, 2_500]))
    def all_adapters_are_late(self, pause_ms: int) -> None:
        """No adapter reports for longer than a term, then all report."""
        self.wait(pause_ms)
        self.all_adapters_report()

    @rule()
    def a_quiet_period(self) -> None:
        """Half a quiet period, with timely renewals."""
        for _ in range(3):
            self.continue_for_a_while(90, True)
        self.wait(CONFIG.quiet_ns // 2 // MS)

    @rule(is_newest_lost=st.booleans())
    def restart(self, is_newest_lost: bool) -> None:
        if not self.notes:
            return
        notes = list(self.notes)
        if is_newest_lost and len(notes) > 1 and not self.offered:
            self.lost_epoch, _ = notes.pop()
            epoch, holder = notes[-1]
            if self.promised[self.held[-1]] != holder:
                self._die(holder)  # the lost grant was possible only after the end of the holder's stream
        epoch, holder = notes[-1]
        self.lease = FeedLease(CONFIG, ALL_ADAPTERS)
        failed = dict.fromkeys(self.observer.failed, "by hand")
        self.lease.restore(epoch, holder, self.now_ns, max(self.promised) + 10, failed, self.noted_ttl_ns)
        self.states.clear()
        self.observer.reports.clear()
        self.holder, self.vacant_since_ns = holder, None
        self.excused.clear()  # a restarted server must wait for every holder again
        self.was_restarted = True

    def _believes(self, adapter: int) -> bool:
        return adapter in self.believed and self.now_ns < self.believed[adapter][1]

    # ---- always ----

    @invariant()
    def no_two_adapters_rely_on_one_epoch(self) -> None:
        epochs = [epoch for adapter, (epoch, _) in self.believed.items() if self._believes(adapter)]
        assert len(epochs) == len(set(epochs))

    @invariant()
    def the_holder_was_promised_its_epoch(self) -> None:
        assert self.lease.holder <= 0 or self.promised[self.lease.epoch] == self.lease.holder

    @invariant()
    def a_feed_with_a_candidate_soon_has_an_active(self) -> None:
        best = self.observer.best(self.now_ns)
        if self.lease.holder or best is None:
            self.vacant_since_ns = None
            return
        if self.vacant_since_ns is None:
            self.vacant_since_ns = self.now_ns
        # A good candidate waits only for a holder that has not yet reported to a restarted store.
        assert self.was_restarted or not self.observer.is_up_to_date(best), f"{best} waits without a reason"
        assert self.now_ns - self.vacant_since_ns < CONFIG.grace_ns, f"{best} waits too long"

    @invariant()
    def no_deadline_has_passed(self) -> None:
        deadline_ns = self.lease.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self.take(self.lease.on_timer(self.now_ns))
            deadline_ns = self.lease.next_deadline_ns()
        assert deadline_ns is None or deadline_ns > self.now_ns, "the shell would spin"


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=150, stateful_step_count=50)
