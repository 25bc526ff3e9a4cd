"""Who was granted against who was best, and how long a healthy group was without an active: the lease store's promises
(docs/protocol.md clauses 6.3, 6.4 and 6.9), judged by what the store was told and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from feedcore.replica.channel_state import PeerState
from feedcore.replica.states import ReplicaState
from tests.simulation.checkers.content import Violation
from tests.simulation.plan import MS

GOOD = (ReplicaState.SYNCHRONIZED, ReplicaState.DETACHED, ReplicaState.AHEAD)
ORDER = {**dict.fromkeys(GOOD, 0), ReplicaState.RESYNCHRONIZING: 1, ReplicaState.JOINING: 2}
SLACK_NS = 5 * MS


@dataclass(frozen=True, slots=True)
class Told:
    """What the store heard last of one adapter."""

    rank: int | None  # of its worst channel; None: it cannot be granted anything
    session: int
    epoch: int
    position: int
    at_ns: int

    @classmethod
    def of(cls, state: PeerState, now_ns: int) -> Told:
        """From a report as it was heard."""
        ranks = [ORDER.get(channel.state) for channel in state.channels]
        rank = None if state.abstains or None in ranks else max(rank for rank in ranks if rank is not None)
        epoch = min(channel.position.epoch for channel in state.channels)
        position = sum(channel.position.next_input_seq for channel in state.channels)
        return cls(rank, state.session, epoch, position, now_ns)

    def is_better_than(self, other: Told) -> bool:
        """By rank, then the latest session, the newest epoch and the furthest position."""
        return other.rank is None or self._place() < other._place()

    def _place(self) -> tuple[int, int, int, int]:
        assert self.rank is not None
        return self.rank, -self.session, -self.epoch, -self.position


class GrantChecker:
    """One store's life after another.

    Args:
        fresh_ns: how old what a candidate told may be.
        grace_ns: how long a candidate waits at most for a better one.
    """

    def __init__(self, fresh_ns: int, grace_ns: int) -> None:
        self._fresh_ns, self._patience_ns = fresh_ns, grace_ns + SLACK_NS
        self._told: dict[int, Told] = {}
        self._waiting_since_ns: int | None = None
        self._holder = self._heir = 0

    def restart(self, holder: int) -> None:
        """A new store, which has been told nothing, and found this holder written down."""
        self._told.clear()
        self._waiting_since_ns = None
        self._holder, self._heir = holder, 0

    def on_report(self, adapter_id: int, state: PeerState, now_ns: int) -> None:
        """The store hears a report."""
        self._told[adapter_id] = Told.of(state, now_ns)

    def forget(self, adapter_id: int) -> None:
        """Its stream ended or began in a new life, it was failed or readmitted, or its term passed unheard."""
        self._told.pop(adapter_id, None)
        if all(told.rank is None for told in self._told.values()):
            self._waiting_since_ns = None  # the next candidate waits from when it comes
        if adapter_id == self._holder:
            self._holder = 0

    def on_offered(self, heir: int) -> None:
        """The store offers the next epoch to an heir (0: not any more), who need not be best."""
        self._heir = heir

    def on_held(self, adapter_id: int) -> None:
        """An adapter holds the lease: it was granted, or renewed what it had, or an heir's offer became its own."""
        self._holder = adapter_id

    def on_vacated(self, *, has_passed: bool) -> None:
        """The lease ended; `has_passed`: by its term, so that its holder must be heard again."""
        if has_passed:
            self.forget(self._holder)
        self._holder = 0

    def on_grant(self, adapter_id: int, now_ns: int) -> None:
        """The store grants a lease: to the holder or the heir, or the vacant one to whom it thinks best."""
        is_planned = adapter_id in (self._holder, self._heir)
        self.on_held(adapter_id)
        if not is_planned:
            self._judge(adapter_id, now_ns)

    def _judge(self, adapter_id: int, now_ns: int) -> None:
        granted = self._told.get(adapter_id)
        if granted is None or granted.rank is None or now_ns - granted.at_ns > self._fresh_ns:
            raise Violation("grants", f"adapter {adapter_id} is granted and is not a candidate: {granted}")
        for other, told in self._told.items():
            is_fresh = now_ns - told.at_ns <= self._fresh_ns
            if other != adapter_id and is_fresh and told.rank is not None and told.is_better_than(granted):
                text = f"adapter {adapter_id} is granted as {granted} although adapter {other} is {told}"
                raise Violation("grants", text)

    def on_fail(self, adapter_id: int, holder: int, now_ns: int) -> None:
        """The store fails an adapter at its own wish."""
        own = self._told.get(adapter_id)
        others = [
            each
            for each, told in self._told.items()
            if each not in (adapter_id, holder) and told.rank == 0 and now_ns - told.at_ns <= self._fresh_ns
        ]
        if own is not None and own.rank == 0 and not others:
            raise Violation("grants", f"adapter {adapter_id} is failed, the last synchronised backup")

    def look(self, holder: int, now_ns: int) -> None:
        """After each event of the store: the lease is not vacant for long while there is a candidate."""
        is_waiting = not holder and any(
            told.rank is not None and now_ns - told.at_ns <= self._fresh_ns for told in self._told.values()
        )
        if not is_waiting:
            self._waiting_since_ns = None
        elif self._waiting_since_ns is None:
            self._waiting_since_ns = now_ns
        elif now_ns - self._waiting_since_ns > self._patience_ns:
            waited_ms = (now_ns - self._waiting_since_ns) / MS
            raise Violation("grants", f"candidates have been waiting for {waited_ms:.0f} ms: {self._told}")
