"""A backup's intake of decisions: puts the runs in order of `input_seq` and finds those that are missing.

The active's output packets carry the runs, so a backup that receives them receives the decision log. The same runs also
arrive in other backups' packets and, on request, over the sync channel. The intake neither converts nor transmits.

Invariant: `ready` continues the applied position without a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tandemfeed.feedcore.hold_queue import HoldQueue
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.position import FIRST_SEQ, MessageStreamState, Run

MS = 1_000_000


class DecisionConflict(Exception):
    """What was applied here contradicts what was decided. This replica needs a snapshot."""


@dataclass(frozen=True, slots=True)
class IntakeConfig:
    """Timers and limits.

    Attributes:
        request_after_ns: a gap is requested from the active after this time; at first it may be mere reordering.
        retry_every_ns: pause between requests.
        early_count_max: how many runs are held after a gap; beyond it the newest are dropped and requested later.
    """

    request_after_ns: int = 3 * MS
    retry_every_ns: int = 30 * MS
    early_count_max: int = 65_536

    def __post_init__(self) -> None:
        assert self.request_after_ns < self.retry_every_ns


class DecisionIntake:
    """Decisions received but not yet applied, and the gaps between them.

    Args:
        is_single_source: the channel has one source stream, so adapters number it alike but may cut runs differently.
    """

    def __init__(self, config: IntakeConfig, *, is_single_source: bool = False) -> None:
        self.ready: deque[Run] = deque()
        self.lineage = Lineage()  # the newest history known
        self._config = config
        self._is_single_source = is_single_source
        self._is_anchored = False
        self._epoch = 0  # of the last of `ready`
        self._next_input_seq = FIRST_SEQ  # after the last of `ready`
        self._next_message_seq = FIRST_SEQ
        self._next_source_seqs: dict[int, int] = {}
        self._known_end = FIRST_SEQ  # one past the newest input_seq known to be decided; may lag while there is no gap
        self._early: HoldQueue[Run] = HoldQueue(config.early_count_max)
        self._unjudged: deque[Run] = deque(maxlen=config.early_count_max)  # of epochs whose history is not known yet
        self._request_at_ns: int | None = None

    def anchor(self, position: MessageStreamState) -> None:
        """Begin at `position`: the next decision wanted is the one there."""
        self.ready.clear()
        self._is_anchored = True
        self._epoch = position.epoch
        self._next_input_seq = position.next_input_seq
        self._next_message_seq = position.next_message_seq
        self._next_source_seqs = dict(position.next_source_seqs)

    def unanchor(self) -> None:
        """Forget the place in the channel and all decisions; from now on only hold what arrives."""
        self.ready.clear()
        self._early.take_all()
        self._unjudged.clear()
        self._is_anchored = False
        self._request_at_ns = None
        self._known_end = FIRST_SEQ

    def restart(self, lineage: Lineage, position: MessageStreamState) -> None:
        """Forget all decisions and continue from `position` in this history."""
        self.unanchor()
        self.lineage = lineage
        self.anchor(position)

    @property
    def has_gap(self) -> bool:
        """True while a decision is known to exist that has not been received."""
        return self._is_anchored and self._known_end > self._next_input_seq

    @property
    def epoch(self) -> int:
        """The newest epoch whose history is known."""
        return self.lineage.epoch

    def position(self) -> MessageStreamState:
        """The position after the last consecutive decision received: where a request for decisions begins."""
        return MessageStreamState(
            self._epoch, self._next_input_seq, self._next_message_seq, dict(self._next_source_seqs)
        )

    def advance(self, run: Run) -> None:
        """Continue after a decision that was made and applied here while `ready` was empty."""
        assert not self.ready
        self._accept(run)
        self.ready.clear()

    def on_lineage(self, lineage: Lineage, applied: MessageStreamState) -> None:
        """Take the history of an epoch. If the epoch is newer, drop the decisions that are not in its history.

        Raises:
            DecisionConflict: such decisions have been applied here.
        """
        if lineage.epoch <= self.lineage.epoch:
            return
        self.lineage = lineage
        for first, end, run in self._early.take_all():
            if lineage.covers(run):
                self._early.add(first, end, run)
        self._known_end = max(self._early.end, FIRST_SEQ)
        if self._is_anchored:
            if not lineage.holds(applied.epoch, applied.next_input_seq):
                raise DecisionConflict(
                    f"epoch {lineage.epoch} is built on {lineage.entries}; this adapter has applied everything before "
                    f"input_seq {applied.next_input_seq} in epoch {applied.epoch}"
                )
            kept = [run for run in self.ready if lineage.covers(run)]
            self.anchor(applied)
            for run in kept:
                self._accept(run)
            self._known_end = max(lineage.first_input_seq, self._next_input_seq, self._known_end)
        unjudged = list(self._unjudged)
        self._unjudged.clear()
        for run in unjudged:
            self._take(run)
        self._drain()

    def on_runs(self, runs: Iterable[Run], now_ns: int) -> None:
        """Take runs from a packet or a reply, in any order; known ones are ignored.

        Raises:
            DecisionConflict: a decision contradicts what was applied here.
        """
        for run in runs:
            if run.first_input_seq == self._next_input_seq and run.epoch == self.lineage.epoch and self._is_anchored:
                self._accept(run)  # the hot path
            else:
                self._take(run)
        if self._early.items:
            self._drain()
        self._watch(now_ns)

    def on_next_input_seq(self, next_input_seq: int, now_ns: int) -> None:
        """Note that everything before this was decided, as a heartbeat or a peer's state reports."""
        if next_input_seq > self._known_end:
            self._known_end = next_input_seq
        self._watch(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When to request missed runs."""
        return self._request_at_ns

    def is_request_due(self, now_ns: int) -> bool:
        """True if a request is due; the next one is due after a pause."""
        if self._request_at_ns is None or now_ns < self._request_at_ns:
            return False
        self._request_at_ns = now_ns + self._config.retry_every_ns
        return True

    # ---- inside ----

    def _accept(self, run: Run) -> None:
        """Accept the next decision by `input_seq`; its other numbers must continue the position too."""
        next_source_seq = self._next_source_seqs.get(run.source_stream_id, FIRST_SEQ)
        if run.first_source_seq != next_source_seq or run.first_message_seq != self._next_message_seq:
            raise DecisionConflict(
                f"{run} was decided, but this adapter expects message_seq {self._next_message_seq} and source_seq "
                f"{next_source_seq} of source stream {run.source_stream_id}"
            )
        self.ready.append(run)
        self._epoch = run.epoch
        self._next_input_seq = run.end_input_seq
        self._next_message_seq = run.end_message_seq
        self._next_source_seqs[run.source_stream_id] = run.end_source_seq

    def _take(self, run: Run) -> None:
        """Take a run that is not simply the next one."""
        if run.epoch > self.lineage.epoch:
            self._unjudged.append(run)
        elif self.lineage.covers(run):
            self._known_end = max(self._known_end, run.end_input_seq)
            if not self._is_anchored or run.end_input_seq > self._next_input_seq:
                prefer_newest = not self._is_anchored  # a snapshot will begin near the newest
                self._early.add(run.first_input_seq, run.end_input_seq, run, prefer_newest=prefer_newest)

    def _drain(self) -> None:
        while self._is_anchored and (run := self._early.pop_reaching(self._next_input_seq)) is not None:
            if run.first_input_seq == self._next_input_seq:
                self._accept(run)
            elif run.end_input_seq > self._next_input_seq and not self._is_single_source:
                # In a channel of one source stream only declared gaps need decisions, and each of them begins an epoch.
                raise DecisionConflict(f"{run} was decided, but this adapter expects input_seq {self._next_input_seq}")

    def _watch(self, now_ns: int) -> None:
        if not self.has_gap:
            self._request_at_ns = None
        elif self._request_at_ns is None:
            self._request_at_ns = now_ns + self._config.request_after_ns
