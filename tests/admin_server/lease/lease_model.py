"""An independent model of which adapter should be granted a lease: the oracle of the lease core's tests.

It follows protocol 6.4, not the code of the core: it filters candidates step by step instead of sorting by a key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tandemfeed.feedcore.replica.roles.states import ReplicaState

GOOD = (ReplicaState.SYNCHRONIZED, ReplicaState.DETACHED, ReplicaState.AHEAD)
POOR = (ReplicaState.RESYNCHRONIZING, ReplicaState.JOINING)


@dataclass(frozen=True, slots=True)
class Report:
    """An adapter's report about itself."""

    state: ReplicaState
    seq: int
    health: float
    history_epoch: int
    abstains: bool
    at_ns: int


class Observer:
    """Attributes: reports: adapter_id -> its newest report in its current stream, unless it was dropped."""

    def __init__(self, fresh_ns: int) -> None:
        self._fresh_ns = fresh_ns
        self.reports: dict[int, Report] = {}
        self.failed: set[int] = set()

    def forget(self, adapter_id: int) -> None:
        """Drop the report of an adapter that left, restarted, or let its term pass."""
        self.reports.pop(adapter_id, None)

    def on_own_pause(self, pause_ns: int) -> None:
        """The store was paused, and so read no reports."""
        self.reports = {each: replace(report, at_ns=report.at_ns + pause_ns) for each, report in self.reports.items()}

    def best(self, now_ns: int) -> int | None:
        """The adapter that must be granted the lease, if there is one."""
        pool = {
            adapter_id: report
            for adapter_id, report in self._fresh(now_ns).items()
            if report.state in GOOD + POOR and not report.abstains
        }
        steps: list[Callable[[Report], float]] = [
            lambda report: report.state in GOOD,
            lambda report: report.state is ReplicaState.RESYNCHRONIZING,
            lambda report: report.history_epoch,
            lambda report: report.seq,
            lambda report: report.state is ReplicaState.AHEAD,
            lambda report: report.health,
        ]
        for step in steps:
            most = max((step(report) for report in pool.values()), default=0)
            pool = {adapter_id: report for adapter_id, report in pool.items() if step(report) == most}
        return min(pool, default=None)

    def is_up_to_date(self, adapter_id: int) -> bool:
        """True if it has every message that the active had."""
        return self.reports[adapter_id].state in GOOD

    def in_sync(self, holder: int, now_ns: int) -> list[int]:
        """Backups that could take over from the holder without losing a message."""
        return [each for each, report in self._fresh(now_ns).items() if each != holder and report.state in GOOD]

    def _fresh(self, now_ns: int) -> dict[int, Report]:
        return {
            adapter_id: report
            for adapter_id, report in self.reports.items()
            if adapter_id not in self.failed and now_ns - report.at_ns <= self._fresh_ns
        }
