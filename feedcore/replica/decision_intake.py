"""A backup's ear for decisions: puts the runs it hears in order and knows what it missed.

The active's output packets carry the runs, so hearing them is hearing the decision log; the same runs also come from
other backups' packets and, on request, over the sync channel. This class orders them and finds holes. It neither
converts nor transmits.

Invariant: `ready` continues the applied position without a seam, in the channel and in each source stream.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from feedcore.wire.lineage import Lineage
from feedcore.wire.position import FIRST_SEQ, MessageStreamState, Run

MS = 1_000_000


class OutOfStep(Exception):
    """What was applied here contradicts what was decided: only a snapshot brings this replica back."""


@dataclass(frozen=True, slots=True)
class IntakeConfig:
    """Timers and limits.

    Attributes:
        request_after_ns: how long a hole may be mere reordering before the active is asked.
        retry_every_ns: pause between requests.
        early_count_max: runs held behind a hole; beyond it the newest are dropped and asked back later.
    """

    request_after_ns: int = 3 * MS
    retry_every_ns: int = 30 * MS
    early_count_max: int = 65_536

    def __post_init__(self) -> None:
        assert self.request_after_ns < self.retry_every_ns


class DecisionIntake:
    """Decisions heard but not yet applied, and the holes between them."""

    def __init__(self, config: IntakeConfig) -> None:
        self.ready: deque[Run] = deque()
        self.lineage = Lineage()  # the newest history known
        self._config = config
        self._is_anchored = False
        self._epoch = 0  # of the last of `ready`
        self._next_message_seq = FIRST_SEQ  # behind the last of `ready`
        self._next_source_seqs: dict[int, int] = {}
        self._known_end = FIRST_SEQ  # one past the newest message_seq anybody mentioned
        self._known_source_ends: dict[int, int] = {}
        self._early: list[Run] = []
        self._request_at_ns: int | None = None

    def anchor(self, position: MessageStreamState) -> None:
        """Decisions are wanted from `position` on."""
        self.ready.clear()
        self._is_anchored = True
        self._epoch = position.epoch
        self._next_message_seq = position.next_message_seq
        self._next_source_seqs = dict(position.next_source_seqs)

    def unanchor(self) -> None:
        """Forget the place in the channel; from now on only hold."""
        self.ready.clear()
        self._early.clear()
        self._is_anchored = False
        self._request_at_ns = None
        self._known_end = FIRST_SEQ
        self._known_source_ends.clear()

    @property
    def has_hole(self) -> bool:
        """True while a decision is known to exist that has not been heard."""
        return self._is_anchored and (
            bool(self._early) or self._known_end > self._next_message_seq or self._misses_source()
        )

    @property
    def epoch(self) -> int:
        """The newest epoch whose history is known."""
        return self.lineage.epoch

    def position(self) -> MessageStreamState:
        """Behind the last consecutive decision heard: what to ask from."""
        return MessageStreamState(self._epoch, self._next_message_seq, dict(self._next_source_seqs))

    def advance(self, run: Run) -> None:
        """A decision was made and applied here (`ready` is empty): go on behind it."""
        assert not self.ready
        self._accept(run)
        self.ready.clear()

    def on_lineage(self, lineage: Lineage, applied: MessageStreamState) -> None:
        """The history that a newer epoch is built on: decisions outside of it no longer count.

        Raises:
            OutOfStep: such decisions have been applied here already.
        """
        if lineage.epoch <= self.lineage.epoch:
            return
        self.lineage = lineage
        self._early = [run for run in self._early if run.epoch > lineage.epoch or lineage.covers(run)]
        self._known_source_ends.clear()
        self._known_end = max((run.end_message_seq for run in self._early), default=FIRST_SEQ)  # what it was is void
        if not self._is_anchored:
            return
        if not lineage.holds(applied.epoch, applied.next_message_seq):
            raise OutOfStep(
                f"epoch {lineage.epoch} is built on {lineage.entries}; this adapter has applied everything before "
                f"{applied.next_message_seq} in epoch {applied.epoch}"
            )
        kept = [run for run in self.ready if lineage.covers(run)]
        self.anchor(applied)
        for run in kept:
            if self._is_next(run):
                self._accept(run)
        self._known_end = max(lineage.first_message_seq, self._next_message_seq, self._known_end)
        self._drain()

    def on_runs(self, runs: Iterable[Run], now_ns: int) -> None:
        """Take runs from a packet or a reply, in any order, known or not.

        Raises:
            OutOfStep: a decision contradicts an older one of the same or an older epoch.
        """
        for run in runs:
            if self._is_next(run) and run.epoch == self.lineage.epoch and not self._early:  # the hot path
                self._accept(run)
                continue
            if run.epoch <= self.lineage.epoch and not self.lineage.covers(run):
                continue
            if run.end_message_seq > self._known_end:
                self._known_end = run.end_message_seq
            if not self._is_known(run):
                self._hold(run)
        if self._early:
            self._drain()
        self._watch(now_ns)

    def on_next_message_seq(self, next_message_seq: int, now_ns: int) -> None:
        """A heartbeat or a peer's state says that everything before this has been decided."""
        if next_message_seq > self._known_end:
            self._known_end = next_message_seq
            self._watch(now_ns)

    def on_position(self, position: MessageStreamState, now_ns: int) -> None:
        """The active's position: shows missed decisions even where they made no message."""
        for stream, end in position.next_source_seqs.items():
            if end > self._next_source_seqs.get(stream, FIRST_SEQ):
                self._known_source_ends[stream] = max(end, self._known_source_ends.get(stream, FIRST_SEQ))
        self._known_end = max(self._known_end, position.next_message_seq)
        self._watch(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When to ask for missed runs."""
        return self._request_at_ns

    def is_request_due(self, now_ns: int) -> bool:
        """True once per due request."""
        if self._request_at_ns is None or now_ns < self._request_at_ns:
            return False
        self._request_at_ns = now_ns + self._config.retry_every_ns
        return True

    def _is_next(self, run: Run) -> bool:
        """A decision that made no message may come late: it has no place of its own among the messages."""
        return (
            run.first_source_seq == self._next_source_seqs.get(run.source_stream_id)
            and (run.first_message_seq == self._next_message_seq or self._is_late(run))
            and self._is_anchored
        )

    def _is_late(self, run: Run) -> bool:
        return run.message_count == 0 and run.first_message_seq < self._next_message_seq

    def _is_known(self, run: Run) -> bool:
        if not self._is_anchored:
            return False
        return run.end_source_seq <= self._next_source_seqs.get(
            run.source_stream_id, FIRST_SEQ
        ) and run.end_message_seq <= (self._next_message_seq)

    def _accept(self, run: Run) -> None:
        if run.first_message_seq != self._next_message_seq:
            run = run._replace(first_message_seq=self._next_message_seq, epoch=self._epoch)
        self.ready.append(run)
        self._epoch = run.epoch
        self._next_message_seq = run.end_message_seq
        self._next_source_seqs[run.source_stream_id] = run.end_source_seq
        if run.end_message_seq > self._known_end:
            self._known_end = run.end_message_seq

    def _hold(self, run: Run) -> None:
        if len(self._early) >= self._config.early_count_max:
            # Anchored: the oldest are wanted next. Unanchored: a snapshot will begin near the newest.
            del self._early[-1 if self._is_anchored else 0]
        insort(self._early, run)

    def _drain(self) -> None:
        if not self._is_anchored:
            return
        progress = True
        while progress and self._early:
            progress = False
            waiting = []
            for run in self._early:
                if run.epoch > self.lineage.epoch:
                    waiting.append(run)  # whether it counts is not known yet
                elif not self.lineage.covers(run):
                    progress = True  # nothing waits for it
                elif self._is_next(run):
                    self._accept(run)
                    progress = True
                elif not self._is_known(run):
                    self._check(run)
                    waiting.append(run)
            progress = progress and len(waiting) < len(self._early)
            self._early = waiting

    def _check(self, run: Run) -> None:
        next_source = self._next_source_seqs.get(run.source_stream_id, FIRST_SEQ)
        behind = run.first_message_seq <= self._next_message_seq and run.message_count > 0
        if behind and run.epoch == self.lineage.epoch and run.first_source_seq < next_source:
            raise OutOfStep(
                f"message_seq {run.first_message_seq} is decided for source stream {run.source_stream_id}, source_seq "
                f"{run.first_source_seq}, but everything before {next_source} has its place here already"
            )

    def _misses_source(self) -> bool:
        """True while the active is known to have consumed source messages that no decision heard here covers."""
        ends = self._known_source_ends
        if not ends:
            return False
        for stream, end in list(ends.items()):
            if end <= self._next_source_seqs.get(stream, FIRST_SEQ):
                del ends[stream]
        return bool(ends)

    def _watch(self, now_ns: int) -> None:
        if not self.has_hole:
            self._request_at_ns = None
        elif self._request_at_ns is None:
            self._request_at_ns = now_ns + self._config.request_after_ns
