"""Checks that the best candidate is granted the lease, and that a healthy group is not without an active for long
(docs/protocol.md clauses 6.3, 6.4 and 6.9), using only the reports that the lease store received."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandemfeed.feedcore.replica.channel_state import PeerState
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.simulation.checkers.content import Violation
from tests.simulation.plan import MS

GOOD = (ReplicaState.SYNCHRONIZED, ReplicaState.DETACHED, ReplicaState.AHEAD)
ORDER = {**dict.fromkeys(GOOD, 0), ReplicaState.RESYNCHRONIZING: 1, ReplicaState.JOINING: 2}
SLACK_NS = 5 * MS


@dataclass(frozen=True, slots=True)
class LastReport:
    """The last report that the store received from an adapter."""

    rank: int | None  # of its worst channel; None: it is not a candidate
    is_up_to_date: bool  # it is, or soon will be, a candidate of the first rank: abstaining passes
    session: int
    epoch: int
    position: int
    at_ns: int

    @classmethod
    def of(cls, state: PeerState, now_ns: int) -> LastReport:
        """Make it from a report that the store received."""
        ranks = [ORDER.get(channel.state) for channel in state.channels]
        worst = None if None in ranks else max(rank for rank in ranks if rank is not None)
        epoch = min(channel.position.epoch for channel in state.channels)
        position = sum(channel.position.next_input_seq for channel in state.channels)
        return cls(None if state.abstains else worst, worst == 0, state.session, epoch, position, now_ns)

    def is_better_than(self, other: LastReport) -> bool:
        """Compares by rank, then by session, epoch and position, where later is better."""
        return other.rank is None or self._place() < other._place()

    def _place(self) -> tuple[int, int, int, int]:
        assert self.rank is not None
        return self.rank, -self.session, -self.epoch, -self.position


class GrantChecker:
    """Checks the lease store, through its restarts.

    Args:
        fresh_ns: maximum age of a candidate's report.
        grace_ns: maximum time that a candidate waits for a better one.
    """

    def __init__(self, fresh_ns: int, grace_ns: int) -> None:
        self._fresh_ns, self._patience_ns = fresh_ns, grace_ns + SLACK_NS
        self._reports: dict[int, LastReport] = {}
        self._waiting_since_ns: int | None = None
        self._holder = self._heir = 0

    def restart(self, holder: int) -> None:
        """The store restarts without reports, and with this holder in its records."""
        self._reports.clear()
        self._waiting_since_ns = None
        self._holder, self._heir = holder, 0

    def on_paused(self, pause_ns: int) -> None:
        """The store resumes after a pause: it could read no report meanwhile, so those that it has are not older."""
        self._reports = {each: replace(report, at_ns=report.at_ns + pause_ns) for each, report in self._reports.items()}
        if self._waiting_since_ns is not None:
            self._waiting_since_ns += pause_ns

    def on_report(self, adapter_id: int, state: PeerState, now_ns: int) -> None:
        """The store receives a report."""
        self._reports[adapter_id] = LastReport.of(state, now_ns)

    def forget(self, adapter_id: int) -> None:
        """Forget an adapter: its stream ended or restarted, it was failed or readmitted, or its term passed."""
        self._reports.pop(adapter_id, None)
        if all(report.rank is None for report in self._reports.values()):
            self._waiting_since_ns = None  # the next candidate starts to wait when it appears
        if adapter_id == self._holder:
            self._holder = 0

    def on_offered(self, heir: int) -> None:
        """The store offers the next epoch to an heir, which need not be the best; 0: it withdraws the offer."""
        self._heir = heir

    def on_held(self, adapter_id: int) -> None:
        """An adapter holds the lease, by a grant, a renewal or an accepted offer."""
        self._holder = adapter_id

    def on_vacated(self, *, has_passed: bool) -> None:
        """The lease ended. If its term has passed, the holder must report again."""
        if has_passed:
            self.forget(self._holder)
        self._holder = 0

    def on_grant(self, adapter_id: int, now_ns: int) -> None:
        """The store grants the lease to the holder, to the heir, or, if it is vacant, to the best candidate."""
        is_planned = adapter_id in (self._holder, self._heir)
        self.on_held(adapter_id)
        if not is_planned:
            self._judge(adapter_id, now_ns)

    def _judge(self, adapter_id: int, now_ns: int) -> None:
        granted = self._reports.get(adapter_id)
        if granted is None or granted.rank is None or now_ns - granted.at_ns > self._fresh_ns:
            raise Violation("grants", f"adapter {adapter_id} is granted the lease but is not a candidate: {granted}")
        for other, report in self._reports.items():
            is_fresh = now_ns - report.at_ns <= self._fresh_ns
            if other != adapter_id and is_fresh and report.rank is not None and report.is_better_than(granted):
                text = f"adapter {adapter_id} is granted the lease with {granted}, but adapter {other} has {report}"
                raise Violation("grants", text)

    def on_fail(self, adapter_id: int, holder: int, now_ns: int) -> None:
        """The store fails an adapter at the adapter's request."""
        own = self._reports.get(adapter_id)
        others = [
            each
            for each, report in self._reports.items()
            if each not in (adapter_id, holder) and report.is_up_to_date and now_ns - report.at_ns <= self._fresh_ns
        ]
        if own is not None and own.is_up_to_date and not others:
            raise Violation("grants", f"adapter {adapter_id} is failed, but it is the last synchronised backup")

    def look(self, holder: int, now_ns: int) -> None:
        """Check, after each event of the store, that the lease is not vacant for long while there is a candidate."""
        is_waiting = not holder and any(
            report.rank is not None and now_ns - report.at_ns <= self._fresh_ns for report in self._reports.values()
        )
        if not is_waiting:
            self._waiting_since_ns = None
        elif self._waiting_since_ns is None:
            self._waiting_since_ns = now_ns
        elif now_ns - self._waiting_since_ns > self._patience_ns:
            waited_ms = (now_ns - self._waiting_since_ns) / MS
            raise Violation(
                "grants", f"the lease has been vacant for {waited_ms:.0f} ms despite candidates: {self._reports}"
            )
