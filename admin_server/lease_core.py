"""Who is active: the lease store's decisions, sans-I/O. Reports and passed time in, grants out.

Rules (docs/protocol.md clause 6): one lease a feed; every grant opens a new epoch; epochs only grow. A lease ends when
its holder's stream ends (the process died: at once), or when its term has passed without renewal. Candidates are
attending adapters that still report, best state first, then the furthest position, then health, then the lowest id.

Invariant: while a lease may be believed by its holder and the holder's stream lives, nobody else is granted. After a
restart of the store nothing but a passed term ends the restored lease, until its holder has renewed it: who was written
down last need not be who holds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from feedcore.states import ReplicaState

MS = 1_000_000
# Detached means: synchronised until the active fell silent, so as good a candidate as a synchronised one.
RANK = {
    ReplicaState.SYNCHRONIZED: 0,
    ReplicaState.DETACHED: 0,
    ReplicaState.AHEAD: 0,
    ReplicaState.RESYNCHRONIZING: 1,
    ReplicaState.JOINING: 2,
}
UNKNOWN_HOLDER = -1  # after a restart: somebody may hold a lease that was not written down


@dataclass(frozen=True, slots=True)
class Granted:
    """`adapter_id` holds the lease on `epoch` now."""

    adapter_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Vacated:
    """Nobody holds the lease now."""

    epoch: int
    reason: str


LeaseDecision = Granted | Vacated


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """Times of one feed's lease.

    Attributes:
        fresh_ns: how old a candidate's last report may be; one that fell silent (paused, cut off) is no candidate.
        allowance_ns: added to the term at the store, so that the holder has stopped for certain when the store's ends.
        grace_ns: how long a feed that had an active stays without one when there is no synchronised candidate.
    """

    ttl_ns: int = 300 * MS
    allowance_ns: int = 30 * MS
    grace_ns: int = 2_000 * MS
    fresh_ns: int = 400 * MS


@dataclass(slots=True)
class _Candidate:
    state: ReplicaState = ReplicaState.JOINING
    next_message_seq: int = 0
    health: float = 0.0
    reported_at_ns: int = 0
    is_silent: bool = False  # let its lease run out, and has not reported since


@dataclass(slots=True)
class FeedLease:
    """The lease of one feed.

    Args:
        epoch: the newest epoch ever granted, from the durable store; 0 if none.
        now_ns: monotonic clock at start. After a restart with an epoch, whoever holds it may go on for a term.
    """

    config: LeaseConfig
    epoch: int = 0
    holder: int = 0
    _next_epoch: int = 1
    _until_ns: int = 0
    _vacant_since_ns: int = 0
    _considered_at_ns: int = 0
    _is_unproven: bool = False  # restored, and not renewed since
    _candidates: dict[int, _Candidate] = field(default_factory=dict)

    def restore(self, epoch: int, holder: int, now_ns: int, next_epoch: int) -> None:
        """After a restart of the store: the last holder may still believe in its lease, for a term.

        Args:
            next_epoch: the next epoch to grant; what lies between may have been granted without a trace.
        """
        self.epoch, self.holder, self._next_epoch = epoch, holder or UNKNOWN_HOLDER, next_epoch
        self._until_ns = now_ns + self._term_ns
        self._vacant_since_ns = now_ns
        self._is_unproven = True

    def on_attend(self, adapter_id: int, now_ns: int) -> list[LeaseDecision]:
        """An adapter's stream began (again): its new life holds nothing."""
        decisions = self._end_of_holder(adapter_id, "its adapter started anew", now_ns)
        self._candidates[adapter_id] = _Candidate(reported_at_ns=now_ns)
        return decisions + self._consider(now_ns)

    def on_resume(self, adapter_id: int) -> None:
        """The holder of a restored lease came back to the restarted store in the same life."""
        self._candidates.setdefault(adapter_id, _Candidate())

    def on_gone(self, adapter_id: int, now_ns: int) -> list[LeaseDecision]:
        """An adapter's stream ended."""
        self._candidates.pop(adapter_id, None)
        return self._end_of_holder(adapter_id, "its adapter's stream ended", now_ns) + self._consider(now_ns)

    def on_report(
        self, adapter_id: int, state: ReplicaState, next_message_seq: int, health: float, now_ns: int
    ) -> list[LeaseDecision]:
        """An adapter told its state."""
        candidate = self._candidates.get(adapter_id)
        if candidate is None:
            return []
        candidate.state, candidate.next_message_seq, candidate.health = state, next_message_seq, health
        candidate.reported_at_ns, candidate.is_silent = now_ns, False
        return self._consider(now_ns)

    def renew(self, adapter_id: int, epoch: int, now_ns: int) -> bool:
        """True if the lease is the adapter's and goes on for another term."""
        if adapter_id != self.holder or epoch != self.epoch or now_ns >= self._until_ns:
            return False
        assert adapter_id in self._candidates, "only an attending adapter renews"
        self._until_ns = now_ns + self._term_ns
        self._is_unproven = False
        return True

    def on_timer(self, now_ns: int) -> list[LeaseDecision]:
        """A term may have passed, or a grace."""
        decisions: list[LeaseDecision] = []
        if self.holder and now_ns >= self._until_ns:
            if (former := self._candidates.get(self.holder)) is not None:
                former.is_silent = True  # its last report is from before its term: worth nothing now
            decisions = self._vacate("its term passed without renewal", now_ns)
        return decisions + self._consider(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` may have something to do."""
        if self.holder:
            return self._until_ns
        due = [
            self._vacant_since_ns + self._patience_ns(adapter_id)
            for adapter_id, candidate in self._candidates.items()
            if candidate.state in RANK and not candidate.is_silent
        ]
        # A moment that was considered in vain is no deadline: only a report can help there, and it asks by itself.
        return min((due_ns for due_ns in due if due_ns > self._considered_at_ns), default=None)

    @property
    def _term_ns(self) -> int:
        return self.config.ttl_ns + self.config.allowance_ns

    def _end_of_holder(self, adapter_id: int, reason: str, now_ns: int) -> list[LeaseDecision]:
        if self.holder != adapter_id:
            return []
        if self._is_unproven:
            self.holder = UNKNOWN_HOLDER  # another may have been granted later, without a trace: the term decides
            return []
        return self._vacate(reason, now_ns)

    def _vacate(self, reason: str, now_ns: int) -> list[LeaseDecision]:
        self.holder, self._is_unproven = 0, False
        self._vacant_since_ns = now_ns
        return [Vacated(self.epoch, reason)]

    def _best(self, now_ns: int) -> int | None:
        order = [
            (RANK[candidate.state], -candidate.next_message_seq, -candidate.health, adapter_id)
            for adapter_id, candidate in self._candidates.items()
            if self._is_eligible(candidate, now_ns)
        ]
        return min(order)[-1] if order else None

    def _is_eligible(self, candidate: _Candidate, now_ns: int) -> bool:
        """Neither failed nor fallen silent."""
        is_fresh = not candidate.is_silent and now_ns - candidate.reported_at_ns <= self.config.fresh_ns
        return is_fresh and candidate.state in RANK

    def _patience_ns(self, adapter_id: int) -> int:
        """A cold start and a good candidate need no waiting; for a poor one, a better may come back in time."""
        is_good = RANK[self._candidates[adapter_id].state] == 0
        return 0 if is_good or self.epoch == 0 else self.config.grace_ns

    def _consider(self, now_ns: int) -> list[LeaseDecision]:
        self._considered_at_ns = now_ns
        best = None if self.holder else self._best(now_ns)
        if best is None or now_ns - self._vacant_since_ns < self._patience_ns(best):
            return []
        self.epoch = max(self.epoch + 1, self._next_epoch)
        self.holder = best
        self._until_ns = now_ns + self._term_ns
        return [Granted(best, self.epoch)]
