"""The newest sequencing decisions of a channel, so that an adapter that missed some can ask for them.

Bounded: what has been forgotten is caught up by snapshot instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from feedcore.position import FIRST_SEQ, MessageStreamState, Run


class DecisionLogTooShort(Exception):
    """The log does not reach back to the position asked for, or the position is ahead of it: take a snapshot."""


@dataclass(frozen=True, slots=True)
class RunsReply:
    """Decisions behind a position.

    Attributes:
        epoch: the epoch of the replying adapter.
        epoch_first_message_seq: where it began.
        runs: consecutive decisions; empty if there are none yet.
        epoch_starts: first `message_seq` of every epoch that occurs in `runs`.
    """

    epoch: int
    epoch_first_message_seq: int
    runs: tuple[Run, ...]
    epoch_starts: Mapping[int, int] = field(default_factory=dict)


class DecisionLog:
    """The last `count_max` runs of one channel, in order.

    At 1,000 runs a second the default remembers about a minute: longer than any adapter should be away without a
    snapshot, and about 10 MB.
    """

    def __init__(self, count_max: int = 65_536) -> None:
        self._runs: deque[Run] = deque(maxlen=count_max)
        self._epoch_starts: dict[int, int] = {}
        self._base = MessageStreamState()  # the position before the oldest remembered run, if nothing was forgotten
        self._is_whole = True

    def restart(self, position: MessageStreamState) -> None:
        """Forget everything; decisions will follow from `position`."""
        self._runs.clear()
        self._epoch_starts.clear()
        self._base = position
        self._is_whole = True

    def open_epoch(self, epoch: int, first_message_seq: int) -> None:
        """Remember where an epoch began."""
        self._epoch_starts[epoch] = first_message_seq

    def append(self, run: Run) -> None:
        """Add the next decision."""
        if len(self._runs) == self._runs.maxlen:
            self._is_whole = False
        self._runs.append(run)

    def since(
        self, position: MessageStreamState, epoch: int, epoch_first_message_seq: int, count_max: int = 10_000
    ) -> RunsReply:
        """The decisions behind `position`, at most `count_max` of them.

        Raises:
            DecisionLogTooShort: a snapshot is needed.
        """
        if position.epoch < epoch and position.next_message_seq > epoch_first_message_seq:
            raise DecisionLogTooShort(
                f"position {position.next_message_seq} of epoch {position.epoch} is ahead of epoch {epoch}, "
                f"which began at {epoch_first_message_seq}"
            )
        runs = [run for run in self._runs if not self._is_covered(run, position)]
        self._check_reach(runs, position)
        chosen = tuple(runs[:count_max])
        starts = {run.epoch: self._epoch_starts[run.epoch] for run in chosen if run.epoch in self._epoch_starts}
        return RunsReply(epoch, epoch_first_message_seq, chosen, starts)

    @staticmethod
    def _is_covered(run: Run, position: MessageStreamState) -> bool:
        return run.end_source_seq <= position.next_source_seqs.get(run.source_stream_id, FIRST_SEQ)

    def _check_reach(self, runs: list[Run], position: MessageStreamState) -> None:
        """The chosen runs must join the position without a seam: in the channel, and in each source stream."""
        if not runs:
            if position.next_message_seq < self._base.next_message_seq:
                raise DecisionLogTooShort("the position lies before the log")
            return
        if runs[0].first_message_seq != position.next_message_seq:
            raise DecisionLogTooShort(
                f"the log continues at message_seq {runs[0].first_message_seq}, not at {position.next_message_seq}"
            )
        seen: set[int] = set()
        for run in runs:
            if run.source_stream_id not in seen:
                seen.add(run.source_stream_id)
                if run.first_source_seq != position.next_source_seqs.get(run.source_stream_id, FIRST_SEQ):
                    raise DecisionLogTooShort(
                        f"the log continues source stream {run.source_stream_id} at {run.first_source_seq}"
                    )
