"""Any order of events: what adapters may believe of their leases never contradicts (protocol 6, invariant 5).

The model keeps what each adapter may believe, by the rules that adapters follow, and compares it with what the store
promises. The store may restart, having written down every promise but perhaps the newest grant.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from admin_server.lease_core import FeedLease, Granted, LeaseDecision
from admin_server.lease_decisions import (
    HandedOver,
    HandOverRefused,
    Offered,
    OfferWithdrawn,
    Renewed,
    TermNoted,
    Vacated,
)
from admin_server.takeovers import TakeoverReason
from feedcore.replica.states import ReplicaState
from tests.admin_server.lease_by_hand import CONFIG, MS
from tests.admin_server.lease_model import Observer, Told

ADAPTERS = st.integers(1, 3)
EVERYBODY = frozenset({1, 2, 3})


class LeaseMachine(RuleBasedStateMachine):
    """Attributes:
    believed, offered: adapter_id -> (epoch, until when its present life may believe in it).
    excused: whose stream ended: the store need not wait for its belief.
    observer: what adapters told, and who is best by that.
    vacant_since_ns: nobody holds the lease, and somebody could.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.lease = FeedLease(CONFIG, EVERYBODY)
        self.states: dict[int, ReplicaState] = {}
        self.observer = Observer(CONFIG.fresh_ns)
        self.vacant_since_ns: int | None = None
        self.holder = 0
        self.believed: dict[int, tuple[int, int]] = {}
        self.offered: dict[int, tuple[int, int, int]] = {}  # with the epoch behind which it begins
        self.excused: set[int] = set()
        self.promised: dict[int, int] = {}  # epoch -> adapter_id, of every grant and offer ever made
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
                    self.offered[heir] = (epoch, self.now_ns + self.told_ttl_ns(), after_epoch)
                    self.notes.append((epoch, heir))
                case Vacated(_, reason):
                    if reason in (TakeoverReason.TERM_PASSED, TakeoverReason.RESTORED):
                        self.observer.forget(self.holder)
                    self.holder = 0
                case HandedOver(adapter_id, epoch, former):
                    assert former not in self.believed, "who has not let go was followed by another"
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
                        assert self.was_restarted, "the store knew of the offer, and yet hands nothing over"
                        self.held.append(epoch)  # to a restarted store the heir is who holds the lease
                        del self.offered[adapter_id]
                    assert epoch == max(self.held), "another epoch was granted since"
                    self.holder = adapter_id
                    self.believed[adapter_id] = (epoch, self.now_ns + self.told_ttl_ns())
                    self.excused.discard(adapter_id)

    def told_ttl_ns(self) -> int:
        """The term that goes with a grant, a renewal or an offer."""
        ttl_ns = self.lease.terms.ttl_ns
        assert ttl_ns <= self.noted_ttl_ns, "longer than what a restarted store will wait"
        return ttl_ns

    def _take_grant(self, adapter_id: int, epoch: int) -> None:
        assert adapter_id in self.states
        assert adapter_id not in self.observer.failed
        is_heir, is_own_request = adapter_id in self.offered, adapter_id == self.holder
        if not is_heir and not is_own_request:
            assert adapter_id == self.observer.best(self.now_ns), "another was better"
        assert (
            is_heir
            or self.states[adapter_id] not in (ReplicaState.FAILED, ReplicaState.ACTIVE)
            or (
                adapter_id in self.believed  # a new epoch for itself
            )
        )
        for beliefs in (self.believed, self.offered):
            for other, (_, until_ns, *_rest) in beliefs.items():
                assert other in (adapter_id, *self.excused) or self.now_ns >= until_ns, f"{other} may believe"
        self._hold(adapter_id, epoch)
        self.offered.pop(adapter_id, None)
        self.believed[adapter_id] = (epoch, self.now_ns + self.told_ttl_ns())
        self.excused.discard(adapter_id)

    def _hold(self, adapter_id: int, epoch: int) -> None:
        assert epoch > max(self.held, default=0), "epochs only grow"
        assert self.promised.setdefault(epoch, adapter_id) == adapter_id, "one epoch, two adapters"
        self.held.append(epoch)
        self.holder = adapter_id
        self.notes.append((epoch, adapter_id))

    def _take_withdrawal(self, heir: int, epoch: int) -> None:
        offered = self.offered.pop(heir, None)
        if offered is not None:  # its present life knows of the offer
            assert offered[0] == epoch
            assert heir in self.excused or self.now_ns >= offered[1]

    # ---- what adapters do ----

    @initialize()
    def everybody_starts(self) -> None:
        for adapter in sorted(EVERYBODY):
            self.start(adapter)
        self.everybody_reports()

    def _die(self, adapter: int) -> None:
        self.believed.pop(adapter, None)
        self.offered.pop(adapter, None)

    def _forget(self, adapter: int) -> None:
        """Its life, or its stream, ended: what it told then says nothing of a later one."""
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
        self.observer.told[adapter] = Told(state, seq, health, history_epoch, abstains, self.now_ns)
        history = {"history_epoch": history_epoch, "abstains": abstains}
        self.take(self.lease.on_report(adapter, state, seq, health, self.now_ns, **history))

    @rule()
    def everybody_reports(self) -> None:
        for adapter in sorted(self.states):
            self.report(adapter, ReplicaState.SYNCHRONIZED, 5, 0.5, 0, False)

    @rule(adapter=ADAPTERS)
    def renew(self, adapter: int) -> None:
        if adapter in self.states and self._believes(adapter):
            epoch, _ = self.believed[adapter]
            decisions = self.lease.renew(adapter, epoch, self.now_ns)
            if not decisions:
                del self.believed[adapter]  # it hears that the lease is lost
            self.take(decisions)

    @rule(adapter=ADAPTERS, place=st.integers(0, 4))
    def renew_what_was_once_promised(self, adapter: int, place: int) -> None:
        """A report that was long on its way, or an adapter that woke up from a pause."""
        epochs = sorted((epoch for epoch, owner in self.promised.items() if owner == adapter), reverse=True)
        if adapter not in self.states or place >= len(epochs) or adapter in self.offered:
            return
        if max(self.held) == self.lost_epoch:
            return  # the store cannot know that anything came after what it has written down
        epoch = epochs[place]
        is_stale = epoch != max(self.held) or adapter != self.promised[max(self.held)]
        told = self.observer.told.get(adapter)
        has_stopped = self.holder != adapter and told is not None and told.state is not ReplicaState.ACTIVE
        decisions = self.lease.renew(adapter, epoch, self.now_ns)
        assert not decisions or not (is_stale or has_stopped), "a former holder renewed"
        if decisions:
            self.take(decisions)

    @rule(pause_ms=st.integers(1, 90), is_renewed=st.booleans())
    def go_on(self, pause_ms: int, is_renewed: bool) -> None:
        """A while in which everybody reports, and perhaps whoever holds a lease has it renewed."""
        self.wait(pause_ms)
        self.everybody_reports()
        for adapter in sorted(EVERYBODY) if is_renewed else ():
            self.renew(adapter)

    @rule(is_told=st.booleans())
    def release(self, is_told: bool) -> None:
        """Whoever was told to hand over ends its epoch; whether or not the store hears of it."""
        for adapter in [adapter for adapter in sorted(self.believed) if self._believes(adapter) and self.offered]:
            epoch, _ = self.believed.pop(adapter)
            if is_told and adapter in self.states:
                self.states[adapter] = ReplicaState.SYNCHRONIZED
                self.take(self.lease.on_released(adapter, epoch, self.now_ns))

    @rule()
    def open_what_was_offered(self) -> None:
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
                assert adapter in self.excused or self.was_restarted, "what is offered may be opened"

    @rule(adapter=ADAPTERS)
    def ask_for_a_new_epoch(self, adapter: int) -> None:
        if adapter in self.states and self._believes(adapter):
            self.take(self.lease.next_epoch(adapter, self.believed[adapter][0], self.now_ns))

    # ---- what admins do ----

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
    def everybody_is_well_and_hands_over(self) -> None:
        self.everybody_reports()
        for adapter in sorted(EVERYBODY):
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

    # ---- time, and the store's own fate ----

    was_restarted = False
    lost_epoch = 0  # its grant was not written down when the store restarted

    @rule(pause_ms=st.sampled_from([20, 120, 200, 260, 310, 340, 1_000]))
    def wait(self, pause_ms: int) -> None:
        self.now_ns += pause_ms * MS
        self.take(self.lease.on_timer(self.now_ns))
        self.a_feed_whose_adapters_are_well_is_not_long_without_an_active()

    @rule(pause_ms=st.sampled_from([700, 1_300, 2_500]))
    def everybody_is_late(self, pause_ms: int) -> None:
        """Longer than a term nobody is heard, then everybody is."""
        self.wait(pause_ms)
        self.everybody_reports()

    @rule()
    def a_quiet_while(self) -> None:
        """Half a quiet time with renewals in time."""
        for _ in range(3):
            self.go_on(90, True)
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
                self._die(holder)  # it had to be gone for the lost grant to be made
        epoch, holder = notes[-1]
        self.lease = FeedLease(CONFIG, EVERYBODY)
        failed = dict.fromkeys(self.observer.failed, "by hand")
        self.lease.restore(epoch, holder, self.now_ns, max(self.promised) + 10, failed, self.noted_ttl_ns)
        self.states.clear()
        self.observer.told.clear()
        self.holder, self.vacant_since_ns = holder, None
        self.excused.clear()  # to the server's mind; whoever holds goes on believing
        self.was_restarted = True

    def _believes(self, adapter: int) -> bool:
        return adapter in self.believed and self.now_ns < self.believed[adapter][1]

    # ---- always ----

    @invariant()
    def nobody_else_holds_what_somebody_believes_in(self) -> None:
        epochs = [epoch for adapter, (epoch, _) in self.believed.items() if self._believes(adapter)]
        assert len(epochs) == len(set(epochs))

    @invariant()
    def the_holder_is_one_that_was_promised_its_epoch(self) -> None:
        assert self.lease.holder <= 0 or self.promised[self.lease.epoch] == self.lease.holder

    @invariant()
    def a_feed_whose_adapters_are_well_is_not_long_without_an_active(self) -> None:
        best = self.observer.best(self.now_ns)
        if self.lease.holder or best is None:
            self.vacant_since_ns = None
            return
        if self.vacant_since_ns is None:
            self.vacant_since_ns = self.now_ns
        # A good candidate waits for nobody but a holder that a restarted store may not have heard of yet.
        assert self.was_restarted or not self.observer.is_good(best), f"{best} waits for nobody"
        assert self.now_ns - self.vacant_since_ns < CONFIG.grace_ns, f"{best} waits for ever"

    @invariant()
    def no_deadline_has_passed(self) -> None:
        deadline_ns = self.lease.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self.take(self.lease.on_timer(self.now_ns))
            deadline_ns = self.lease.next_deadline_ns()
        assert deadline_ns is None or deadline_ns > self.now_ns, "the shell would spin"


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=150, stateful_step_count=50)
