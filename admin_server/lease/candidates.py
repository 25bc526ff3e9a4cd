"""Which adapters could become active, how they rank, and which are still missing. Pure.

A candidate attends, has reported its state recently, accepts grants, and is neither failed nor drained
(docs/protocol.md clause 6.4).
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemfeed.feedcore.replica.roles.states import ReplicaState

# A detached adapter was synchronised until the active fell silent, so it ranks as high as a synchronised one. An
# adapter that is ahead is detached and forwards provisionally.
RANK = {
    ReplicaState.SYNCHRONIZED: 0,
    ReplicaState.DETACHED: 0,
    ReplicaState.AHEAD: 0,
    ReplicaState.RESYNCHRONIZING: 1,
    ReplicaState.JOINING: 2,
}


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """An adapter's report about itself.

    Attributes:
        state: the state of its worst channel.
        next_message_seq: its position, summed over all channels; a joining adapter reports where its journal ends.
        health: from 0 (dead) to 1.
        history_epoch: the epoch that its position belongs to; a later epoch outranks any position.
        abstains: it accepts no grants for a while.
        session: the session that its position belongs to; a later session outranks any epoch and position.
        unheard: the adapters whose multicast does not arrive there.
    """

    state: ReplicaState
    next_message_seq: int
    health: float
    history_epoch: int = 0
    abstains: bool = False
    session: int = 0
    unheard: frozenset[int] = frozenset()

    @property
    def is_up_to_date(self) -> bool:
        """True if it has everything that the active had, so waiting cannot find a better candidate."""
        return RANK.get(self.state) == 0


@dataclass(slots=True)
class _Candidate:
    report: CandidateReport | None = None  # None: no report since its process started
    reported_at_ns: int = 0
    is_stale: bool = False  # its last report does not count, and no other has come since


class Candidates:
    """The adapters of one feed that attend, and those that are failed or drained.

    Args:
        adapters: the configured adapters; if empty they are unknown, and an adapter may always be missing.
        fresh_ns: the maximum age of a candidate's report; an adapter that fell silent is not a candidate.

    Attributes:
        failed, drained: adapter_id -> reason. A drained adapter works on as a backup, and never becomes active.
    """

    def __init__(self, adapters: frozenset[int], fresh_ns: int) -> None:
        self.failed: dict[int, str] = {}
        self.drained: dict[int, str] = {}
        self._adapters, self._fresh_ns = adapters, fresh_ns
        self._attending: dict[int, _Candidate] = {}

    def is_out(self, adapter_id: int) -> bool:
        """True if it must not become active, whatever it reports."""
        return adapter_id in self.failed or adapter_id in self.drained

    def attend(self, adapter_id: int) -> None:
        """The stream of a new process began: nothing is known about it."""
        self._attending[adapter_id] = _Candidate()

    def resume(self, adapter_id: int) -> None:
        """The same process opened its stream again."""
        self._attending.setdefault(adapter_id, _Candidate())

    def leave(self, adapter_id: int) -> None:
        """Its stream ended."""
        self._attending.pop(adapter_id, None)

    def report(self, adapter_id: int, report: CandidateReport, now_ns: int) -> bool:
        """Keep an adapter's report; False if the adapter does not attend."""
        candidate = self._attending.get(adapter_id)
        if candidate is None:
            return False
        candidate.report, candidate.reported_at_ns, candidate.is_stale = report, now_ns, False
        return True

    def on_own_pause(self, pause_ns: int) -> None:
        """This process was paused: the reports of that time wait in its queues, so the known ones are not older."""
        for candidate in self._attending.values():
            candidate.reported_at_ns += pause_ns

    def invalidate_report(self, adapter_id: int) -> None:
        """Disregard the adapter's last report; only its next one counts."""
        if (candidate := self._attending.get(adapter_id)) is not None:
            candidate.is_stale = True

    def is_attending(self, adapter_id: int) -> bool:
        """True if its stream is open."""
        return adapter_id in self._attending

    def may_be_active(self, adapter_id: int) -> bool:
        """True if it attends and has reported no state in this stream other than active."""
        candidate = self._attending.get(adapter_id)
        return candidate is not None and (candidate.report is None or candidate.report.state is ReplicaState.ACTIVE)

    def newest_report(self, adapter_id: int, now_ns: int) -> CandidateReport | None:
        """Its last report, if that is recent."""
        candidate = self._attending.get(adapter_id)
        if candidate is None or candidate.is_stale or now_ns - candidate.reported_at_ns > self._fresh_ns:
            return None
        return candidate.report

    def eligible(self, now_ns: int) -> dict[int, CandidateReport]:
        """The adapters that may be granted the lease."""
        known = {adapter_id: self.newest_report(adapter_id, now_ns) for adapter_id in self._attending}
        return {
            adapter_id: report
            for adapter_id, report in known.items()
            if report is not None and report.state in RANK and not report.abstains and not self.is_out(adapter_id)
        }

    def best(self, now_ns: int) -> int | None:
        """The highest-ranked candidate; None if there are no candidates."""
        order = [
            (self._rank_key(report, is_unheard=self.is_unheard(adapter_id, now_ns)), adapter_id)
            for adapter_id, report in self.eligible(now_ns).items()
        ]
        return min(order)[-1] if order else None

    def is_unheard(self, adapter_id: int, now_ns: int) -> bool:
        """True if other adapters attend, and none of them receives this one's multicast."""
        others = (self.newest_report(each, now_ns) for each in self._attending if each != adapter_id)
        heard = [adapter_id not in report.unheard for report in others if report is not None]
        return bool(heard) and not any(heard)

    def synchronized_backups(self, holder: int, now_ns: int) -> list[int]:
        """Backups that apply the holder's decisions now, and whose multicast is heard."""
        return [
            adapter_id
            for adapter_id in self._attending
            if (report := self.newest_report(adapter_id, now_ns)) is not None
            and report.state is ReplicaState.SYNCHRONIZED
            and adapter_id != holder
            and not self.is_out(adapter_id)
            and not self.is_unheard(adapter_id, now_ns)
        ]

    def heirs(self, holder: int, now_ns: int) -> list[int]:
        """Adapters that can take over without a gap, as they apply the holder's decisions on arrival; best first. One
        whose multicast is not heard would silence the feed."""
        order = [
            (self._rank_key(report), adapter_id)
            for adapter_id, report in self.eligible(now_ns).items()
            if report.state is ReplicaState.SYNCHRONIZED
            and adapter_id != holder
            and not self.is_unheard(adapter_id, now_ns)
        ]
        return [adapter_id for _, adapter_id in sorted(order)]

    def why_not_heir(self, adapter_id: int, holder: int, now_ns: int) -> str:
        """Why an adapter is not one of `heirs`; the text continues a sentence that begins with its name."""
        if adapter_id == holder:
            return "is already active"
        if adapter_id in self.failed:
            return f"is failed: {self.failed[adapter_id]}"
        if adapter_id in self.drained:
            return f"is drained: {self.drained[adapter_id]}"
        if not self.is_attending(adapter_id):
            return "is away"
        report = self.newest_report(adapter_id, now_ns)
        if report is None:
            return "has not reported its state recently"
        if report.abstains:
            return "accepts no grants for the moment, because it recently lost the admin server"
        if report.state is not ReplicaState.SYNCHRONIZED:
            return f"is {report.state.value}, not synchronized"
        return "transmits, but its multicast reaches no adapter; check its interface, or its group on the network"

    def backups_in_sync(self, holder: int, now_ns: int) -> list[int]:
        """Backups that could take over from the holder without losing a message."""
        others = [adapter_id for adapter_id in self._attending if not self.is_out(adapter_id) and adapter_id != holder]
        reports = {adapter_id: self.newest_report(adapter_id, now_ns) for adapter_id in others}
        return [adapter_id for adapter_id, report in reports.items() if report is not None and report.is_up_to_date]

    def is_adapter_missing(self, now_ns: int) -> bool:
        """True if an adapter that could become a better candidate is away, silent, in transition or abstaining."""
        if not self._adapters:
            return True
        eligible = self.eligible(now_ns)
        return any(
            adapter_id not in eligible and not self.is_out(adapter_id) and not self.reports_failed(adapter_id)
            for adapter_id in self._adapters
        )

    def reports_failed(self, adapter_id: int) -> bool:
        """True if the adapter reports that it failed, because data that it needs is unavailable."""
        candidate = self._attending.get(adapter_id)
        report = None if candidate is None else candidate.report
        return report is not None and report.state is ReplicaState.FAILED

    @staticmethod
    def _rank_key(report: CandidateReport, *, is_unheard: bool = False) -> tuple[int, int, int, int, bool, bool, float]:
        return (
            RANK[report.state],
            -report.session,
            -report.history_epoch,
            -report.next_message_seq,
            is_unheard,
            report.state is not ReplicaState.AHEAD,  # clients already have its messages
            -report.health,
        )
