"""Which part a gateway has in a pair: whether it holds the feed's contributions, and what it may acknowledge. Sans-I/O.

The admin server records which copy of the log is the holder's, and which other copy may be granted the next term. A
copy that may be granted must have everything that was acknowledged. So the holder requires a standby's acknowledgement
from before it reports that standby until after the server has recorded another, whatever is lost or late in between.
Nothing here depends on clocks, except when to give up waiting, and then a pause of this process does not count.

Invariant: every copy that the server may grant has each record before `committed_index`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

NO_COPY = b""
LOOKS_MIN = 4  # in the time of the patience; a process that looks less often was paused
NEAR_COUNT = 1_024  # records: a follower that lacks fewer has caught up so far that the holder can wait for it


class GatewayState(Enum):
    """The state of a gateway."""

    BEHIND = "behind"  # its copy of the log may lack something that was acknowledged, or it has no copy yet
    STANDBY = "standby"  # its copy has everything that was acknowledged: it may be granted the next term
    HOLDER = "holder"  # accepts, decides and sends
    ENDED = "ended"  # its term or its session is over; final: the gateway begins anew, without a role


MOVES: Mapping[GatewayState, frozenset[GatewayState]] = {
    GatewayState.BEHIND: frozenset({GatewayState.STANDBY, GatewayState.HOLDER, GatewayState.ENDED}),
    GatewayState.STANDBY: frozenset({GatewayState.BEHIND, GatewayState.HOLDER, GatewayState.ENDED}),
    GatewayState.HOLDER: frozenset({GatewayState.ENDED}),
    GatewayState.ENDED: frozenset(),
}


class Acknowledge(Enum):
    """When an acknowledgement needs the standby's copy."""

    BOTH = "both"  # always: without a standby nothing is acknowledged
    AVAILABLE = "available"  # while there is a standby


class IllegalMove(AssertionError):
    """A bug: the table has no such move; the text is the story."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The admin server's answer to a report.

    Attributes:
        number: of the report.
        term: the present one; 0: none was granted yet.
        is_holder: the reporting process holds it.
        is_takeover: the standby's copy that is recorded is the former holder's.
        holder_copy, standby_copy: the copies that are recorded.
        is_over: the session of the report has ended.
        reason: why the gateway has no part, for people.
    """

    number: int
    term: int
    is_holder: bool = False
    is_takeover: bool = False
    holder_copy: bytes = NO_COPY
    standby_copy: bytes = NO_COPY
    is_over: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a report says of the gateway's part.

    Attributes:
        number: grows with each report of the process.
        term: that it holds; 0: none.
        standby_copy: the copy that the holder wants recorded as the standby's.
    """

    number: int
    term: int
    standby_copy: bytes


class Membership:
    """One process's part, from its start until it ends.

    Args:
        patience_ns: a standby that delays acknowledgements for longer is given up, with `Acknowledge.AVAILABLE`.
        number: of the process's last report.

    Attributes:
        number: of the last report.
        committed_index: everything before it may be acknowledged and sent.
        is_over: the session has ended.
        reason: why nothing is committed, for people; empty while nothing waits for long.
    """

    def __init__(self, acknowledge: Acknowledge, patience_ns: int, number: int = 0) -> None:
        self._acknowledge, self._patience_ns = acknowledge, patience_ns
        self.state = GatewayState.BEHIND
        self.term = 0
        self.committed_index = 0
        self.reason = ""
        self.is_over = False
        self._end_index = self._begin_index = 0  # of the own log: now, and where the term began
        self._positions: Mapping[bytes, int] = {}
        self.number = number
        self._recorded = self._wanted = self._joining = NO_COPY
        self._is_recorded = False  # that the holder's copy is this one
        self._unanswered: dict[bytes, int] = {}  # standby's copy -> the last report that named it, without an answer
        self._waiting_since_ns: int | None = None
        self._looked_at_ns: int | None = None
        self._story: list[str] = []

    @property
    def standby_copy(self) -> bytes:
        """The copy that is recorded as the standby's."""
        return self._recorded

    @property
    def is_urgent(self) -> bool:
        """Whether something is to be recorded: the next report should not wait."""
        return self.state is GatewayState.HOLDER and (self._wanted != self._recorded or not self._is_recorded)

    def claim(self) -> Claim:
        """What the next report says. The report must be sent after this, and before the next one is made."""
        self.number += 1
        claim = Claim(self.number, self.term, self._wanted)
        if self.state is GatewayState.HOLDER:
            self._unanswered[claim.standby_copy] = claim.number
        return claim

    def on_assignment(self, answer: Assignment, own_copy: bytes, now_ns: int) -> None:
        """The answer to a report arrived. Args: own_copy: the id of this gateway's copy; empty: it has none."""
        if self.state is GatewayState.ENDED or answer.number > self.number:
            return
        if answer.is_over:
            self.reason, self.is_over = answer.reason, True
            self._move(GatewayState.ENDED, answer.reason)
        elif self.state is GatewayState.HOLDER:
            self._confirm(answer, own_copy, now_ns)
        elif answer.is_holder and answer.holder_copy == own_copy:  # it may have set that copy aside since
            self._move(GatewayState.HOLDER, f"granted term {answer.term}")
            self.term, self._recorded, self._wanted = answer.term, answer.standby_copy, answer.standby_copy
            self._is_recorded = own_copy != NO_COPY
            self.reason, self._waiting_since_ns = "", now_ns
            if answer.is_takeover and self._acknowledge is Acknowledge.AVAILABLE:
                self._wanted = NO_COPY  # the former holder is silent: it joins when it is back
        else:
            self.reason = answer.reason
            is_standby = own_copy != NO_COPY and own_copy == answer.standby_copy
            state = GatewayState.STANDBY if is_standby else GatewayState.BEHIND
            if state is not self.state:
                self._move(state, f"in term {answer.term}")

    def on_appended(self, end_index: int, now_ns: int) -> None:
        """The holder's own log is on the disk up to here. Nothing of it counts if the term has ended meanwhile."""
        if self.state is not GatewayState.HOLDER:
            return
        assert end_index >= self._end_index, "a log only grows"
        if not self._begin_index:
            self._begin_index = end_index  # what earlier terms acknowledged is before it
            self._waiting_since_ns = now_ns  # the log could not be copied before it was open
        self._end_index = end_index
        self._commit(now_ns)

    def on_positions(self, positions: Mapping[bytes, int], now_ns: int) -> None:
        """How far each connected follower of the holder's log has acknowledged, by its copy."""
        if self.state is not GatewayState.HOLDER:
            return
        self._positions = positions
        if self._joining and self._joining not in positions:
            self._joining = NO_COPY
        if not self._joining and self._wanted not in positions:
            near = [copy for copy, index in positions.items() if self._end_index - index < NEAR_COUNT]
            self._joining = min(near, default=NO_COPY)
        if self._joining and positions[self._joining] >= max(self.committed_index, self._begin_index):
            self._wanted, self._joining = self._joining, NO_COPY
        self._commit(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When to call `on_timer`, besides the times at which the process looks."""
        if self.state is not GatewayState.HOLDER or self._waiting_since_ns is None:
            return None
        return self._waiting_since_ns + self._patience_ns

    def on_timer(self, now_ns: int) -> None:
        """Give a standby up that delays acknowledgements, if that is the policy.

        Call it more often than `LOOKS_MIN` times in the time of the patience, even if nothing is due. After a pause of
        this process, what others sent meanwhile was not read, and they may have to connect again: they get all of the
        patience again.
        """
        was_paused = self._looked_at_ns is not None and LOOKS_MIN * (now_ns - self._looked_at_ns) > self._patience_ns
        self._looked_at_ns = now_ns
        if was_paused and self._waiting_since_ns is not None:
            self._waiting_since_ns = now_ns
        if (due_ns := self.next_deadline_ns()) is None or now_ns < due_ns:
            return
        self._waiting_since_ns = now_ns
        if self._acknowledge is Acknowledge.AVAILABLE:
            self._wanted = self._joining = NO_COPY

    # ---- inside ----

    def _confirm(self, answer: Assignment, own_copy: bytes, now_ns: int) -> None:
        if answer.term != self.term or not answer.is_holder:
            self.reason = f"another gateway holds term {answer.term}, after this one's term {self.term}"
            self._move(GatewayState.ENDED, self.reason)
            return
        self._unanswered = {copy: number for copy, number in self._unanswered.items() if number > answer.number}
        self._recorded = answer.standby_copy
        self._is_recorded = own_copy != NO_COPY and answer.holder_copy == own_copy
        self._commit(now_ns)

    def _required(self) -> set[bytes]:
        """The copies of which any may be, or become, the one that the server grants next."""
        possible = {self._recorded, self._wanted, self._joining, *self._unanswered}
        return possible - {NO_COPY}

    def _commit(self, now_ns: int) -> None:
        required = self._required()
        held = min((self._positions.get(copy, 0) for copy in required), default=self._end_index)
        is_alone = self._acknowledge is Acknowledge.BOTH and not self._recorded
        committed = 0 if is_alone or not self._is_recorded else min(held, self._end_index)
        if committed > self.committed_index:
            self.committed_index, self._waiting_since_ns = committed, None
        is_waiting = self.committed_index < self._end_index or not required.issubset(self._positions)
        if not is_waiting:
            self._waiting_since_ns, self.reason = None, ""
        elif self._waiting_since_ns is None:
            self._waiting_since_ns = now_ns
        if is_waiting:
            self.reason = self._why_waiting(is_alone=is_alone)

    def _why_waiting(self, *, is_alone: bool) -> str:
        if not self._is_recorded:
            return "the admin server has not recorded this gateway's log yet"
        if is_alone:
            return 'no second gateway has a complete copy of the log, which acknowledge_contributions = "both" requires'
        if self._acknowledge is Acknowledge.BOTH:
            return 'the second gateway does not answer, and acknowledge_contributions = "both" requires its copy'
        return "the second gateway does not answer, and the admin server has not recorded yet that this one is alone"

    def _move(self, state: GatewayState, why: str) -> None:
        self._story = [*self._story[-20:], f"{self.state.value} -> {state.value}: {why}"]
        if state not in MOVES[self.state]:
            raise IllegalMove("; ".join(self._story))
        self.state = state
