"""A gateway's part, as its threads share it: the shell around `Membership`.

The reporter's thread makes claims and takes the admin server's answers, the leader's thread hears how far followers
are, the gateway's thread asks what it is and what is committed. Each change wakes the gateway's thread. Owner: a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tandemfeed.journal.replication import LeaderStatus
from tandemfeed.spark_feed.contributions.pair.log_copy import Leader
from tandemfeed.spark_feed.contributions.pair.membership import (
    LOOKS_MIN,
    Acknowledge,
    Assignment,
    GatewayState,
    Membership,
)
from tandemfeed.v1 import admin_pb2

PATIENCE_NS = 1_000_000_000  # a holder that is alone continues without a standby after this, if that is the policy
LOOK_NS = 100_000_000  # the gateway's thread calls `on_time` at least so often
assert 2 * LOOKS_MIN * LOOK_NS <= PATIENCE_NS  # a turn may take as long again


@dataclass(slots=True)
class LogState:
    """What a gateway reports of its log.

    Attributes:
        copy: empty: it has none.
        known_term, end: as of its start, or of the beginning of its term.
        served_at: where it replicates it; empty: it does not.
    """

    copy: bytes = b""
    former_copy: bytes = b""
    known_term: int = 0
    end: int = 0
    served_at: str = ""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The other gateways that the admin server names.

    Attributes:
        leader: the holder to follow; None if there is none.
    """

    leader: Leader | None = None
    follower_keys: tuple[str, ...] = field(default=())


class Part:
    """The part of one process. Safe to call from any thread.

    Args:
        wake: called when something has changed; it must not wait.
        clock_ns: monotonic time.

    Attributes:
        copy_failure: why the holder's log is not copied here, for people; set by the gateway's thread.
    """

    def __init__(
        self,
        acknowledge: Acknowledge,
        endpoint: str,
        key: bytes,
        salt: bytes,
        wake: Callable[[], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._acknowledge, self._endpoint, self._wake, self._clock_ns = acknowledge, endpoint, wake, clock_ns
        self._key, self._salt = key.decode(), salt
        self._lock = threading.Lock()
        self._membership = Membership(acknowledge, PATIENCE_NS)
        self.log = LogState()
        self.neighbours = Neighbours()
        self.is_answered = False
        self.copy_failure = ""

    @property
    def state(self) -> GatewayState:
        """The present state."""
        return self._membership.state

    @property
    def term(self) -> int:
        """That it holds; 0: none."""
        return self._membership.term

    @property
    def committed_index(self) -> int:
        """Everything before it may be acknowledged and sent."""
        return self._membership.committed_index

    @property
    def standby_copy(self) -> bytes:
        """The recorded standby's copy."""
        return self._membership.standby_copy

    @property
    def reason(self) -> str:
        """Why it has no part, or acknowledges nothing, for people."""
        return self._membership.reason or self.copy_failure

    @property
    def is_urgent(self) -> bool:
        """Whether the next report should not wait."""
        return self._membership.is_urgent

    def begin_anew(self, log: LogState) -> None:
        """The term has ended: continue without a part, with this log."""
        with self._lock:
            self._membership = Membership(self._acknowledge, PATIENCE_NS, self._membership.number)
            self.log, self.neighbours, self.is_answered = log, Neighbours(), False

    @property
    def is_over(self) -> bool:
        """Whether its session has ended."""
        return self._membership.is_over

    def begin_term(self, log: LogState) -> None:
        """The holder has opened this log."""
        with self._lock:
            self.log = log
            self._membership.on_appended(log.end, self._clock_ns())

    def set_copy(self, copy: bytes) -> None:
        """The copy that this gateway has now; empty: none. No term that another copy was granted counts from then
        on."""
        with self._lock:
            self.log.copy = copy

    def describe(self, report: admin_pb2.GatewayReport, pending_count: int) -> None:
        """Fill a report in; it must be sent before the next one is made."""
        with self._lock:
            claim, log = self._membership.claim(), self.log
            report.number, report.term, report.standby_copy_id = claim.number, claim.term, claim.standby_copy
            report.state, report.waiting_reason = self.state.value, self.reason
            report.copy_id, report.former_copy_id = log.copy, log.former_copy
            report.known_term, report.log_end, report.log_endpoint = log.known_term, log.end, log.served_at
        report.endpoint, report.log_key, report.start_salt = self._endpoint, self._key, self._salt
        report.pending_count = pending_count

    def on_answer(self, answer: admin_pb2.GatewayAssignment) -> None:
        """The admin server's answer to the last report."""
        leader = Leader(answer.log_endpoint, answer.log_key) if answer.log_endpoint and not answer.is_holder else None
        assignment = Assignment(
            answer.number, answer.term, answer.is_holder, answer.is_takeover, answer.holder_copy_id,
            answer.standby_copy_id, answer.is_over, answer.reason,
        )  # fmt: skip
        with self._lock:
            self._membership.on_assignment(assignment, self.log.copy, self._clock_ns())
            self.neighbours = Neighbours(leader, tuple(answer.follower_keys))
            self.is_answered = True
        self._wake()

    def on_appended(self, end_index: int) -> None:
        """The holder's log is on the disk up to here."""
        with self._lock:
            self._membership.on_appended(end_index, self._clock_ns())

    def on_leader_status(self, status: LeaderStatus) -> None:
        """How far the followers are."""
        with self._lock:
            self._membership.on_positions(status.followers, self._clock_ns())
        self._wake()

    def on_time(self) -> None:
        """Called at least at `next_deadline_ns`, and every `LOOK_NS`."""
        with self._lock:
            self._membership.on_timer(self._clock_ns())

    def next_deadline_ns(self) -> int | None:
        """On the monotonic clock."""
        return self._membership.next_deadline_ns()
