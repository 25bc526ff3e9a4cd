"""Who could become active, how good each is, and who is still missing. Pure.

A candidate attends, has told its state lately, accepts grants and is not failed. Docs: docs/protocol.md clause 6.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedcore.replica.states import ReplicaState

# Detached means: synchronised until the active fell silent, so as good a candidate as a synchronised one; ahead means:
# detached, and forwarding provisionally.
RANK = {
    ReplicaState.SYNCHRONIZED: 0,
    ReplicaState.DETACHED: 0,
    ReplicaState.AHEAD: 0,
    ReplicaState.RESYNCHRONIZING: 1,
    ReplicaState.JOINING: 2,
}


@dataclass(frozen=True, slots=True)
class Standing:
    """What an adapter told of itself.

    Attributes:
        state: of its worst channel.
        next_message_seq: over all channels; for a joining adapter its own past's.
        health: 0 (dead) to 1.
        history_epoch: the epoch that its position belongs to; a later epoch's history is the one that counts.
        abstains: it refuses grants for a while.
        session: the session that its position belongs to; a later one counts before any position.
    """

    state: ReplicaState
    next_message_seq: int
    health: float
    history_epoch: int = 0
    abstains: bool = False
    session: int = 0

    @property
    def is_good(self) -> bool:
        """It has what the active had, so nobody better will come."""
        return RANK.get(self.state) == 0


@dataclass(slots=True)
class _Candidate:
    standing: Standing | None = None  # None: has told nothing in this life
    told_at_ns: int = 0
    is_silent: bool = False  # let its lease run out, and has told nothing since


class Candidates:
    """The adapters of one feed that attend, and those that are failed.

    Args:
        adapters: who is configured; empty: not known, so somebody may always be missing.
        fresh_ns: how old what a candidate told may be; one that fell silent (paused, cut off) is none.
    """

    def __init__(self, adapters: frozenset[int], fresh_ns: int) -> None:
        self.failed: dict[int, str] = {}
        self._adapters, self._fresh_ns = adapters, fresh_ns
        self._attending: dict[int, _Candidate] = {}

    def attend(self, adapter_id: int) -> None:
        """Its stream began, in a new life: nothing is known of it."""
        self._attending[adapter_id] = _Candidate()

    def resume(self, adapter_id: int) -> None:
        """Its stream began again in the same life."""
        self._attending.setdefault(adapter_id, _Candidate())

    def leave(self, adapter_id: int) -> None:
        """Its stream ended."""
        self._attending.pop(adapter_id, None)

    def tell(self, adapter_id: int, standing: Standing, now_ns: int) -> bool:
        """It told how it stands; False if it does not attend."""
        candidate = self._attending.get(adapter_id)
        if candidate is None:
            return False
        candidate.standing, candidate.told_at_ns, candidate.is_silent = standing, now_ns, False
        return True

    def distrust(self, adapter_id: int) -> None:
        """What it told is worth nothing until it tells again."""
        if (candidate := self._attending.get(adapter_id)) is not None:
            candidate.is_silent = True

    def is_attending(self, adapter_id: int) -> bool:
        """Its stream is open."""
        return adapter_id in self._attending

    def may_be_active(self, adapter_id: int) -> bool:
        """It attends, and has not said in this stream that it is anything but active."""
        candidate = self._attending.get(adapter_id)
        return candidate is not None and (candidate.standing is None or candidate.standing.state is ReplicaState.ACTIVE)

    def standing(self, adapter_id: int, now_ns: int) -> Standing | None:
        """How it stands, if it told so lately."""
        candidate = self._attending.get(adapter_id)
        if candidate is None or candidate.is_silent or now_ns - candidate.told_at_ns > self._fresh_ns:
            return None
        return candidate.standing

    def eligible(self, now_ns: int) -> dict[int, Standing]:
        """Who may be granted the lease."""
        known = {adapter_id: self.standing(adapter_id, now_ns) for adapter_id in self._attending}
        return {
            adapter_id: standing
            for adapter_id, standing in known.items()
            if standing is not None
            and standing.state in RANK
            and not standing.abstains
            and adapter_id not in self.failed
        }

    def best(self, now_ns: int) -> int | None:
        """The first in the order of candidates; None if there is none."""
        order = [(self._place(standing), adapter_id) for adapter_id, standing in self.eligible(now_ns).items()]
        return min(order)[-1] if order else None

    def heirs(self, holder: int, now_ns: int) -> list[int]:
        """Who can take over without a seam, the best first: it applies the holder's decisions as they come."""
        order = [
            (self._place(standing), adapter_id)
            for adapter_id, standing in self.eligible(now_ns).items()
            if standing.state is ReplicaState.SYNCHRONIZED and adapter_id != holder
        ]
        return [adapter_id for _, adapter_id in sorted(order)]

    def why_no_heir(self, adapter_id: int, holder: int, now_ns: int) -> str:
        """Why an adapter that is none of `heirs` is none; reads behind its name."""
        if adapter_id == holder:
            return "is active already"
        if adapter_id in self.failed:
            return f"is failed: {self.failed[adapter_id]}"
        if not self.is_attending(adapter_id):
            return "is away"
        standing = self.standing(adapter_id, now_ns)
        if standing is None:
            return "has not told its state lately"
        if standing.abstains:
            return "accepts no grant just now: it was without contact to an admin server"
        return f"is {standing.state.value}, not synchronized"

    def backups_in_sync(self, holder: int, now_ns: int) -> list[int]:
        """Backups that could follow the holder without a loss."""
        others = [
            adapter_id for adapter_id in self._attending if adapter_id not in self.failed and adapter_id != holder
        ]
        standings = {adapter_id: self.standing(adapter_id, now_ns) for adapter_id in others}
        return [adapter_id for adapter_id, standing in standings.items() if standing is not None and standing.is_good]

    def is_anybody_missing(self, now_ns: int) -> bool:
        """One that could come, and be better, is not to be had yet: not here, silent, in transition, abstaining."""
        if not self._adapters:
            return True
        eligible = self.eligible(now_ns)
        return any(
            adapter_id not in eligible and adapter_id not in self.failed and not self.says_it_failed(adapter_id)
            for adapter_id in self._adapters
        )

    def says_it_failed(self, adapter_id: int) -> bool:
        """It failed by itself: what it would need is not to be had."""
        candidate = self._attending.get(adapter_id)
        standing = None if candidate is None else candidate.standing
        return standing is not None and standing.state is ReplicaState.FAILED

    @staticmethod
    def _place(standing: Standing) -> tuple[int, int, int, int, bool, float]:
        return (
            RANK[standing.state],
            -standing.session,
            -standing.history_epoch,
            -standing.next_message_seq,
            standing.state is not ReplicaState.AHEAD,  # clients know its messages already
            -standing.health,
        )
