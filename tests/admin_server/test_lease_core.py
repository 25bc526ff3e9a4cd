"""The lease store's decisions under virtual time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from admin_server.lease_core import FeedLease, Granted, LeaseConfig, Vacated
from feedcore.states import ReplicaState

MS = 1_000_000
CONFIG = LeaseConfig(ttl_ns=300 * MS, allowance_ns=30 * MS, grace_ns=2_000 * MS)


def test_a_cold_start_grants_the_first_adapter_at_once() -> None:
    assert FeedLease(CONFIG).on_attend(1, 0) == [Granted(1, 1)]


def test_the_holders_end_grants_the_synchronised_candidate_at_once() -> None:
    lease = FeedLease(CONFIG)
    lease.on_attend(1, 0)
    lease.on_attend(2, 0)
    lease.on_report(2, ReplicaState.SYNCHRONIZED, 10, 1.0, 1)
    assert lease.on_gone(1, 5)[-1] == Granted(2, 2)


def test_silence_grants_only_after_term_and_allowance() -> None:
    lease = FeedLease(CONFIG)
    lease.on_attend(1, 0)
    lease.on_attend(2, 0)
    lease.on_report(2, ReplicaState.SYNCHRONIZED, 10, 1.0, 300 * MS)
    assert lease.on_timer(330 * MS - 1) == []
    assert [type(decision) for decision in lease.on_timer(330 * MS)] == [Vacated, Granted]


def test_a_renewal_begins_a_new_term() -> None:
    lease = FeedLease(CONFIG)
    lease.on_attend(1, 0)
    assert lease.renew(1, 1, 200 * MS)
    assert lease.on_timer(400 * MS) == []
    assert not lease.renew(1, 1, 600 * MS)


def test_the_furthest_synchronised_candidate_is_chosen_then_the_healthiest() -> None:
    lease = FeedLease(CONFIG)
    for adapter in (1, 2, 3, 4):
        lease.on_attend(adapter, 0)
    lease.on_report(2, ReplicaState.RESYNCHRONIZING, 99, 1.0, 1)
    lease.on_report(3, ReplicaState.SYNCHRONIZED, 50, 0.5, 1)
    lease.on_report(4, ReplicaState.DETACHED, 50, 0.9, 1)
    assert lease.on_gone(1, 5)[-1] == Granted(4, 2)


def test_a_joining_adapter_waits_out_the_grace_and_a_failed_one_forever() -> None:
    lease = FeedLease(CONFIG)
    lease.on_attend(1, 0)
    lease.on_attend(2, 0)
    assert [type(decision) for decision in lease.on_gone(1, 0)] == [Vacated]
    assert lease.next_deadline_ns() == 2_000 * MS
    lease.on_report(2, ReplicaState.FAILED, 1, 1.0, 9_999 * MS)
    assert lease.on_timer(10_000 * MS) == []
    assert lease.on_report(2, ReplicaState.JOINING, 1, 1.0, 10_000 * MS) == [Granted(2, 2)]


def test_a_holder_that_fell_silent_is_not_granted_again_before_it_reports() -> None:
    lease = FeedLease(CONFIG)
    lease.on_attend(1, 0)
    assert [type(decision) for decision in lease.on_timer(500 * MS)] == [Vacated]
    assert lease.on_timer(5_000 * MS) == []
    assert lease.on_report(1, ReplicaState.SYNCHRONIZED, 1, 1.0, 6_000 * MS) == [Granted(1, 2)]


def test_a_restarted_store_lets_an_unknown_holders_term_pass_and_skips_its_epochs() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=0, now_ns=0, next_epoch=65)
    assert lease.on_attend(1, 1) == []
    lease.on_report(1, ReplicaState.SYNCHRONIZED, 1, 1.0, 300 * MS)
    assert lease.on_timer(330 * MS)[-1] == Granted(1, 65)


def test_a_restored_holder_goes_on_in_its_epoch() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_resume(1)
    assert lease.renew(1, 7, 100 * MS)


def test_a_holder_that_fell_silent_does_not_win_against_a_candidate_that_speaks() -> None:
    lease = FeedLease(CONFIG)
    lease.on_attend(2, 0)
    lease.on_attend(1, 0)
    lease.on_report(1, ReplicaState.SYNCHRONIZED, 50, 1.0, 1)
    assert lease.on_gone(2, 2)[-1] == Granted(1, 2)
    lease.on_attend(2, 3)
    lease.on_report(2, ReplicaState.SYNCHRONIZED, 50, 1.0, 320 * MS)  # a quiet feed: no further than the holder
    assert lease.on_timer(330 * MS + 2)[-1] == Granted(2, 3)


def test_a_candidate_that_hangs_leaves_no_deadline_behind() -> None:
    lease = FeedLease(CONFIG)
    lease.on_attend(1, 0)
    lease.on_attend(2, 0)
    lease.on_gone(1, 5 * MS)
    assert lease.next_deadline_ns() == 2_005 * MS
    assert lease.on_timer(2_005 * MS) == []  # its only report is two seconds old
    assert lease.next_deadline_ns() is None
    assert lease.on_report(2, ReplicaState.JOINING, 1, 1.0, 3_000 * MS) == [Granted(2, 2)]


def test_a_restored_lease_ends_only_with_its_term_until_its_holder_has_renewed_it() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_attend(3, 1)
    lease.on_report(3, ReplicaState.SYNCHRONIZED, 50, 1.0, 300 * MS)
    assert lease.on_attend(1, 301 * MS) == [], "2 may hold epoch 8, granted when nothing could be written down"
    assert lease.on_gone(1, 302 * MS) == []
    assert lease.on_timer(330 * MS)[-1] == Granted(3, 65)


def test_a_restored_holder_that_renewed_ends_with_its_stream_again() -> None:
    lease = FeedLease(CONFIG)
    lease.restore(epoch=7, holder=1, now_ns=0, next_epoch=65)
    lease.on_resume(1)
    lease.on_attend(3, 1)
    lease.on_report(3, ReplicaState.SYNCHRONIZED, 50, 1.0, 2)
    assert lease.renew(1, 7, 3)
    assert lease.on_gone(1, 4)[-1] == Granted(3, 65)


class LeaseMachine(RuleBasedStateMachine):
    """Any order of events: one holder at a time, epochs grow, no grant while a lease may be believed.

    The store may restart, having written down every grant but perhaps the newest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lease = FeedLease(CONFIG)
        self.now_ns = 0
        self.epochs: list[int] = []
        self.holder = 0
        self.states: dict[int, ReplicaState] = {}
        self.believed_until_ns = 0
        self.stream_ended = True
        self.written: tuple[int, int] | None = None

    def take(self, decisions: list[Granted | Vacated]) -> None:
        for decision in decisions:
            if isinstance(decision, Granted):
                assert decision.epoch > max(self.epochs, default=0)
                assert decision.adapter_id in self.states
                assert self.states[decision.adapter_id] is not ReplicaState.FAILED
                assert self.stream_ended or self.now_ns >= self.believed_until_ns
                assert not self.lease.renew(decision.adapter_id, decision.epoch - 1, self.now_ns)
                self.written = (self.epochs[-1], self.holder) if self.epochs else None
                self.holder = decision.adapter_id
                self.epochs.append(decision.epoch)
                self.stream_ended = False
                self.believed_until_ns = self.now_ns + CONFIG.ttl_ns

    @rule(is_newest_written=st.booleans())
    def restart(self, is_newest_written: bool) -> None:
        if not self.epochs:
            return
        epoch, holder = (self.epochs[-1], self.holder) if is_newest_written else (self.written or (self.epochs[-1], 0))
        self.lease = FeedLease(CONFIG)
        self.lease.restore(epoch, holder, self.now_ns, next_epoch=self.epochs[-1] + 10)
        self.states.clear()
        self.stream_ended = False  # to the server's mind; the holder goes on believing

    @rule(adapter=st.integers(1, 4))
    def attend(self, adapter: int) -> None:
        self.stream_ended |= self.holder == adapter  # it holds nothing in its new life
        self.states[adapter] = ReplicaState.JOINING
        self.take(self.lease.on_attend(adapter, self.now_ns))

    @rule(adapter=st.integers(1, 4))
    def leave(self, adapter: int) -> None:
        self.stream_ended |= self.holder == adapter
        self.states.pop(adapter, None)
        self.take(self.lease.on_gone(adapter, self.now_ns))

    @rule(adapter=st.integers(1, 4), state=st.sampled_from(list(ReplicaState)), seq=st.integers(1, 9))
    def report(self, adapter: int, state: ReplicaState, seq: int) -> None:
        if adapter in self.states:
            self.states[adapter] = state
        self.take(self.lease.on_report(adapter, state, seq, 0.5, self.now_ns))

    @rule(adapter=st.integers(1, 4))
    def renew(self, adapter: int) -> None:
        if self.epochs and adapter in self.states and self.lease.renew(adapter, self.epochs[-1], self.now_ns):
            assert self.holder == adapter
            self.believed_until_ns = self.now_ns + CONFIG.ttl_ns

    @rule(pause_ms=st.integers(1, 3_000))
    def wait(self, pause_ms: int) -> None:
        self.now_ns += pause_ms * MS
        self.take(self.lease.on_timer(self.now_ns))

    @invariant()
    def the_holder_is_one_that_was_granted(self) -> None:
        assert self.lease.holder <= 0 or self.lease.epoch in self.epochs

    @invariant()
    def no_deadline_has_passed(self) -> None:
        deadline_ns = self.lease.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self.take(self.lease.on_timer(self.now_ns))
            deadline_ns = self.lease.next_deadline_ns()
        assert deadline_ns is None or deadline_ns > self.now_ns, "the shell would spin"


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
