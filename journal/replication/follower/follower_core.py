"""The decisions of a follower: when to connect, what to append and in which order, what to acknowledge.

Pure: takes messages, times and random numbers, returns effects. It must append only at the index where its journal
ends, or after a gap that the leader has too, and must never acknowledge records that are not appended (if durable,
synced).
"""

from __future__ import annotations

from collections.abc import Callable

from tandemfeed.journal.format.layout import COUNT_MASK
from tandemfeed.journal.format.roll_cycle import ROLL_CYCLES
from tandemfeed.journal.replication.effects import (
    Append,
    Connect,
    Disconnect,
    FollowerEffect,
    LookUp,
    OpenJournal,
    Send,
    Sync,
)
from tandemfeed.journal.replication.limits import Limits
from tandemfeed.journal.replication.running_time import RunningTime
from tandemfeed.journal.replication.states import FINAL, FollowerState, check_follower_move
from tandemfeed.journal.replication.wire.codec import BadMessage, check_segment
from tandemfeed.journal.replication.wire.messages import (
    NO_ID,
    Acknowledge,
    Heartbeat,
    Hello,
    Message,
    Piece,
    Position,
    Probe,
    Probed,
    Reason,
    Refused,
    Segment,
    SegmentDigest,
    Segments,
    Welcome,
)

SESSION_BITS = 53  # the precision of a random float
DOUBLINGS_MAX = 20


class FollowerCore:
    """The core of a follower.

    Args:
        chance: returns a random number in [0, 1), for pauses and session numbers.
        leader_id: the leader stored earlier; NO_ID: none yet.
        durable: sync before acknowledging.
    """

    def __init__(
        self,
        chance: Callable[[], float],
        *,
        leader_id: bytes = NO_ID,
        durable: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._chance = chance
        self._leader_id = leader_id
        self._durable = durable
        self._limits = limits or Limits()
        self.state = FollowerState.WAITING
        self.reason = ""  # of the last failure, or of a final state
        self.next_index = 0  # after the last record appended
        self.leader_next_index = 0  # as last reported
        self.diverged_at = -1
        self.failure_count = 0
        self._story: list[str] = []
        self._session = 0
        self._attempts = 0
        self._retry_at_ns = 0
        self._running = RunningTime(self._limits.heartbeat_interval_ns)
        self._heard_at_ns = 0  # by the time that the follower has run: its own pause is not a silence of the leader
        self._sent_at_ns = 0
        self._taken_size = 0
        self._owes_acknowledgement = False
        self._has_unsynced = False
        self._sequence_bits = 0
        self._cycle_max = 0
        self._long: tuple[int, int, Segment, bytearray] | None = None  # from index, body size, head, body so far

    def next_deadline_ns(self) -> int | None:
        """When to call `on_timer` next; None: no deadline is set."""
        if self.state in FINAL:
            return None
        if self.state is FollowerState.WAITING:
            return self._retry_at_ns
        silent = self._running.monotonic_ns(self._heard_at_ns + self._limits.silence_ns_max)
        due_ns = min(silent, self._running.next_look_ns())
        if self.state is not FollowerState.FOLLOWING:
            return due_ns
        return min(due_ns, self._sent_at_ns + self._limits.heartbeat_interval_ns)

    def on_timer(self, now_ns: int) -> list[FollowerEffect]:
        """A deadline has passed: connect, give up, or send a heartbeat."""
        if self.state in FINAL:
            return []
        if self.state is FollowerState.WAITING:
            return self._greet(now_ns) if now_ns >= self._retry_at_ns else []
        if self._running.look(now_ns) >= self._heard_at_ns + self._limits.silence_ns_max:
            return self._retry(f"the leader was silent for {self._limits.silence_ns_max / 1e9:g} s", now_ns)
        if self.state is FollowerState.FOLLOWING and now_ns >= self._sent_at_ns + self._limits.heartbeat_interval_ns:
            self._owes_acknowledgement = True
            return self.on_drained(now_ns)
        return []

    def stop(self) -> list[FollowerEffect]:
        """Stop, unless the state is final already."""
        if self.state not in FINAL:
            self._move(FollowerState.STOPPED, "stop requested")
        return [Disconnect()]

    def fail(self, text: str) -> list[FollowerEffect]:
        """The shell cannot perform effects any more. A final state stays as it is."""
        return self._end(FollowerState.FAILED, text) if self.state not in FINAL else [Disconnect()]

    def on_disconnected(self, text: str, now_ns: int) -> list[FollowerEffect]:
        """The connection broke or could not be established."""
        if self.state in FINAL or self.state is FollowerState.WAITING:
            return []
        return self._retry(text, now_ns)

    def on_bad_message(self, text: str, now_ns: int) -> list[FollowerEffect]:
        """An invalid frame arrived."""
        return self.on_disconnected(text, now_ns)

    def on_drained(self, now_ns: int) -> list[FollowerEffect]:
        """No more messages wait: send one acknowledgement, after one sync, for all that arrived."""
        if self.state is not FollowerState.FOLLOWING or not self._owes_acknowledgement:
            return []
        self._owes_acknowledgement = False
        self._sent_at_ns = now_ns
        syncs: list[FollowerEffect] = [Sync()] if self._durable and self._has_unsynced else []
        self._has_unsynced = False
        return [*syncs, Send(Acknowledge(self._session, self.next_index, self._taken_size))]

    def on_message(self, message: Message, now_ns: int) -> list[FollowerEffect]:
        """A message arrived from the leader."""
        if self.state in FINAL or self.state is FollowerState.WAITING or message.session != self._session:
            return []  # stale
        self._heard_at_ns = self._running.look(now_ns)
        if isinstance(message, Refused):
            return self._on_refused(message, now_ns)
        if isinstance(message, Welcome) and self.state is FollowerState.GREETING:
            return self._on_welcome(message)
        if isinstance(message, Probe) and self.state is FollowerState.COMPARING:
            return [LookUp(message.index)]
        if isinstance(message, Heartbeat) and self.state in (FollowerState.COMPARING, FollowerState.FOLLOWING):
            return self._on_heartbeat(message)
        if isinstance(message, Segments) and self.state is FollowerState.FOLLOWING:
            return self._on_segments(message, now_ns)
        if isinstance(message, Piece) and self.state is FollowerState.FOLLOWING:
            return self._on_piece(message, now_ns)
        return self._retry(f"the leader sent {type(message).__name__} while {self.state.value}", now_ns)

    def on_opened(
        self, follower_id: bytes, next_index: int, tail: tuple[SegmentDigest, ...], now_ns: int
    ) -> list[FollowerEffect]:
        """The journal is open (result of OpenJournal), and synced if this follower is durable."""
        if self.state is not FollowerState.OPENING:
            return []
        self._move(FollowerState.COMPARING, f"at {next_index:#x}")
        self._heard_at_ns = self._running.look(now_ns)  # opening may have taken long
        self.next_index = next_index
        return [Send(Position(self._session, follower_id, next_index, tail))]

    def on_open_failed(self, text: str, *, is_final: bool, now_ns: int) -> list[FollowerEffect]:
        """The journal could not be opened (result of OpenJournal)."""
        if self.state is not FollowerState.OPENING:
            return []
        return self._end(FollowerState.REFUSED, text) if is_final else self._retry(text, now_ns)

    def on_looked_up(self, index: int, found: SegmentDigest | None) -> list[FollowerEffect]:
        """The result of LookUp."""
        if self.state is not FollowerState.COMPARING:
            return []
        return [Send(Probed(self._session, index, found))]

    def on_append_failed(self, text: str, now_ns: int) -> list[FollowerEffect]:
        """An Append or Sync failed, so later effects were not performed; reconnect and read the journal's end again."""
        return self.on_disconnected(text, now_ns)

    # -- messages ----------------------------------------------------------------------------------------------------

    def _on_welcome(self, message: Welcome) -> list[FollowerEffect]:
        if self._leader_id not in (NO_ID, message.leader_id):
            text = f"this journal follows leader {self._leader_id.hex()}, not {message.leader_id.hex()}"
            return self._end(FollowerState.REFUSED, text)
        roll_cycle = ROLL_CYCLES.get(message.roll_cycle)
        if roll_cycle is None:
            return self._end(FollowerState.REFUSED, f"unknown roll cycle of the leader: {message.roll_cycle!r}")
        self._sequence_bits, self._cycle_max = roll_cycle.sequence_bits, roll_cycle.cycle_max
        self._move(FollowerState.OPENING, "welcome")
        self._leader_id = message.leader_id
        return [OpenJournal(message)]

    def _on_heartbeat(self, message: Heartbeat) -> list[FollowerEffect]:
        self.leader_next_index = max(self.leader_next_index, message.next_index)
        if self.state is FollowerState.COMPARING:
            self._move(FollowerState.FOLLOWING, "accepted")
            self._attempts = 0
            self.reason = ""
            self._owes_acknowledgement = True
        return []

    def _on_segments(self, message: Segments, now_ns: int) -> list[FollowerEffect]:
        if message.from_index != self.next_index or self._long is not None or not message.segments:
            return self._retry(f"the leader sent index {message.from_index:#x}; expected {self.next_index:#x}", now_ns)
        effects: list[FollowerEffect] = []
        for segment in message.segments:
            if (why := self._misplaced(segment)) is not None:
                return [*effects, *self._retry(why, now_ns)]
            effects.append(self._append(segment))
            self._taken_size += len(segment.body)
        self._owes_acknowledgement = True
        return effects

    def _on_piece(self, message: Piece, now_ns: int) -> list[FollowerEffect]:
        if self._long is None:
            self._long = message.from_index, message.body_size, message.segment, bytearray()
        from_index, size, head, body = self._long
        expected = (self.next_index, size, head, len(body))
        if (message.from_index, message.body_size, message.segment, message.offset) != expected:
            return self._retry(f"the piece at {message.offset} does not continue the segment", now_ns)
        assert from_index == self.next_index
        body += message.data
        self._taken_size += len(message.data)
        self._owes_acknowledgement = True
        if len(body) < size:
            return []
        self._long = None
        whole = Segment(
            head.cycle, head.first_sequence, head.appended_at_ns, head.count_and_flags, head.record_size, bytes(body)
        )
        try:
            check_segment(whole)
        except BadMessage as refused:
            return self._retry(str(refused), now_ns)
        if (why := self._misplaced(whole)) is not None:
            return self._retry(why, now_ns)
        return [self._append(whole)]

    def _misplaced(self, segment: Segment) -> str | None:
        """Why a segment cannot be appended at the journal's end; None if it can."""
        first = segment.first_index(self._sequence_bits)
        if first < self.next_index:
            return f"a segment at {first:#x}; expected {self.next_index:#x} or later"
        if (
            segment.cycle > self._cycle_max
            or segment.first_sequence + (segment.count_and_flags & COUNT_MASK) > 1 << self._sequence_bits
        ):
            return f"a segment at {first:#x}, whose records exceed the range of an index"
        return None

    def _append(self, segment: Segment) -> FollowerEffect:
        first = segment.first_index(self._sequence_bits)
        self.next_index = segment.next_index(self._sequence_bits)
        self.leader_next_index = max(self.leader_next_index, self.next_index)
        self._has_unsynced = True
        return Append(first, segment)

    def _on_refused(self, message: Refused, now_ns: int) -> list[FollowerEffect]:
        if message.reason is Reason.DIVERGED and self.state is FollowerState.COMPARING:
            self.diverged_at = message.index
            return self._end(FollowerState.DIVERGED, message.text)
        if message.reason is Reason.FOREIGN and self.state is FollowerState.GREETING:
            return self._end(FollowerState.REFUSED, message.text)
        return self._retry(f"the leader refused: {message.text}", now_ns)

    # -- connection --------------------------------------------------------------------------------------------------

    def _greet(self, now_ns: int) -> list[FollowerEffect]:
        self._move(FollowerState.GREETING, "connects")
        self._session = int(self._chance() * (1 << SESSION_BITS))
        self._heard_at_ns, self._sent_at_ns = self._running.look(now_ns), now_ns
        self._taken_size = 0
        self._long = None
        self._owes_acknowledgement = False
        return [Connect(), Send(Hello(self._session, self._leader_id))]

    def _retry(self, text: str, now_ns: int) -> list[FollowerEffect]:
        self._move(FollowerState.WAITING, text)
        self.reason = text
        self.failure_count += 1
        pause_ns = min(self._limits.backoff_ns_max, self._limits.backoff_ns_min << min(self._attempts, DOUBLINGS_MAX))
        self._attempts += 1
        # Up to half of the pause is random, so that the followers of a restarted leader do not all connect together.
        self._retry_at_ns = now_ns + int(pause_ns * (1 - self._chance() / 2))
        return [Disconnect()]

    def _end(self, state: FollowerState, text: str) -> list[FollowerEffect]:
        self._move(state, text)
        self.reason = text
        return [Disconnect()]

    def _move(self, state: FollowerState, why: str) -> None:
        self._story = [*self._story[-20:], f"{self.state.value} -> {state.value}: {why}"]
        check_follower_move(self.state, state, self._story)
        self.state = state
