"""How a backup hears decisions: puts the runs in order of their `input_seq` and knows which it missed.

The active's output packets carry the runs, so hearing them is hearing the decision log; the same runs also come from
other backups' packets and, on request, over the sync channel. This class orders them and finds gaps. It neither
converts nor transmits.

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


class OutOfStep(Exception):
    """What was applied here contradicts what was decided: only a snapshot brings this replica back."""


@dataclass(frozen=True, slots=True)
class IntakeConfig:
    """Timers and limits.

    Attributes:
        request_after_ns: how long a gap may be mere reordering before the active is asked.
        retry_every_ns: pause between requests.
        early_count_max: runs held after a gap; beyond it the newest are dropped and asked for again later.
    """

    request_after_ns: int = 3 * MS
    retry_every_ns: int = 30 * MS
    early_count_max: int = 65_536

    def __post_init__(self) -> None:
        assert self.request_after_ns < self.retry_every_ns


class DecisionIntake:
    """Decisions heard but not yet applied, and the gaps between them.

    Args:
        is_single_source: numbering is a function of the source, so adapters may cut their runs differently.
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
        self._known_end = FIRST_SEQ  # one past the newest input_seq any adapter mentioned
        self._early: HoldQueue[Run] = HoldQueue(config.early_count_max)
        self._unjudged: deque[Run] = deque(maxlen=config.early_count_max)  # of epochs whose history is not known yet
        self._request_at_ns: int | None = None

    def anchor(self, position: MessageStreamState) -> None:
        """Decisions are wanted from `position` on."""
        self.ready.clear()
        self._is_anchored = True
        self._epoch = position.epoch
        self._next_input_seq = position.next_input_seq
        self._next_message_seq = position.next_message_seq
        self._next_source_seqs = dict(position.next_source_seqs)

    def unanchor(self) -> None:
        """Forget the place in the channel; from now on only hold."""
        self.ready.clear()
        self._early.take_all()
        self._unjudged.clear()
        self._is_anchored = False
        self._request_at_ns = None
        self._known_end = FIRST_SEQ

    def restart(self, lineage: Lineage, position: MessageStreamState) -> None:
        """Forget what was heard: this history counts, and decisions are wanted from `position` on."""
        self.unanchor()
        self.lineage = lineage
        self.anchor(position)

    @property
    def has_gap(self) -> bool:
        """True while a decision is known to exist that has not been heard."""
        return self._is_anchored and self._known_end > self._next_input_seq

    @property
    def epoch(self) -> int:
        """The newest epoch whose history is known."""
        return self.lineage.epoch

    def position(self) -> MessageStreamState:
        """After the last consecutive decision heard: what to ask from."""
        return MessageStreamState(
            self._epoch, self._next_input_seq, self._next_message_seq, dict(self._next_source_seqs)
        )

    def advance(self, run: Run) -> None:
        """A decision was made and applied here (`ready` is empty): continue after it."""
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
        for first, end, run in self._early.take_all():
            if lineage.covers(run):
                self._early.add(first, end, run)
        self._known_end = max(self._early.end, FIRST_SEQ)
        if self._is_anchored:
            if not lineage.holds(applied.epoch, applied.next_input_seq):
                raise OutOfStep(
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
        """Take runs from a packet or a reply, in any order, known or not.

        Raises:
            OutOfStep: a decision contradicts what was applied here.
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
        """A heartbeat or a peer's state says that everything before this has been decided."""
        if next_input_seq > self._known_end:
            self._known_end = next_input_seq
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

    # ---- inside ----

    def _accept(self, run: Run) -> None:
        """The next decision, by its `input_seq`; its other numbers must continue the position as well."""
        next_source_seq = self._next_source_seqs.get(run.source_stream_id, FIRST_SEQ)
        if run.first_source_seq != next_source_seq or run.first_message_seq != self._next_message_seq:
            raise OutOfStep(
                f"{run} was decided, but here message_seq {self._next_message_seq} and source_seq {next_source_seq} of "
                f"source stream {run.source_stream_id} are next"
            )
        self.ready.append(run)
        self._epoch = run.epoch
        self._next_input_seq = end_input_seq = run.end_input_seq
        self._next_message_seq = run.end_message_seq
        self._next_source_seqs[run.source_stream_id] = run.end_source_seq
        if end_input_seq > self._known_end:
            self._known_end = end_input_seq

    def _take(self, run: Run) -> None:
        """A run that is not simply the next one."""
        if run.epoch > self.lineage.epoch:
            self._unjudged.append(run)
        elif self.lineage.covers(run):
            self._known_end = max(self._known_end, run.end_input_seq)
            if not self._is_anchored or run.end_input_seq > self._next_input_seq:
                is_newest_wanted = not self._is_anchored  # a snapshot will begin near the newest
                self._early.add(run.first_input_seq, run.end_input_seq, run, is_newest_wanted=is_newest_wanted)

    def _drain(self) -> None:
        while self._is_anchored and (run := self._early.pop_reaching(self._next_input_seq)) is not None:
            if run.first_input_seq == self._next_input_seq:
                self._accept(run)
            elif run.end_input_seq > self._next_input_seq and not self._is_single_source:
                # A channel of one source stream needs no decisions but declared gaps, which begin epochs.
                raise OutOfStep(f"{run} was decided, but input_seq {self._next_input_seq} is next here")

    def _watch(self, now_ns: int) -> None:
        if not self.has_gap:
            self._request_at_ns = None
        elif self._request_at_ns is None:
            self._request_at_ns = now_ns + self._config.request_after_ns
