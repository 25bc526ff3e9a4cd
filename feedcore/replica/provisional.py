"""What an adapter sent on its own numbering while no adapter decided (docs/protocol.md clause 6.8), and how it slows
down once one decides again.

Invariant: `ends` is where conversion stands in each source stream; it is never before the decided position, and once
it is nowhere after it nothing is provisional any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from tandemfeed.feedcore.wire.position import MessageStreamState, Run

RUNS_MAX = 65_536  # as many as a decision log remembers: an adapter that missed more takes a snapshot


class Provisional:
    """One stretch of provisional output of one channel, whose count continues from the decided position."""

    def __init__(self, decided: MessageStreamState) -> None:
        self.next_input_seq = decided.next_input_seq
        self.next_message_seq = decided.next_message_seq
        self.ends = dict(decided.next_source_seqs)
        self.runs: deque[Run] = deque(maxlen=RUNS_MAX)

    def note(self, run: Run) -> None:
        """A run was converted and sent."""
        self.runs.append(run)
        self.next_input_seq, self.next_message_seq = run.end_input_seq, run.end_message_seq
        self.ends[run.source_stream_id] = run.end_source_seq

    def note_decided(self, run: Run) -> None:
        """A decided run was applied; what of it had not been sent is converted now."""
        stream = run.source_stream_id
        self.ends[stream] = max(self.ends[stream], run.end_source_seq)

    def unconverted_from(self, run: Run) -> int:
        """The first source message of a decided run that was not converted yet; its end if all were."""
        return min(max(run.first_source_seq, self.ends[run.source_stream_id]), run.end_source_seq)

    def is_past(self, decided_source_seqs: Mapping[int, int]) -> bool:
        """True once everything that was sent has been decided."""
        return all(end <= decided_source_seqs[stream] for stream, end in self.ends.items())


class Throttle:
    """Pauses after every `message_count` messages, so that the active gets past the backup that is ahead (duty 3).

    Attributes:
        until_ns: when the newest pause ends, or ended.
    """

    def __init__(self, message_count: int, pause_ns: int) -> None:
        self._every, self._pause_ns = message_count, pause_ns
        self._sent = 0
        self.until_ns = 0

    def may_send(self, now_ns: int) -> bool:
        """False during a pause."""
        return now_ns >= self.until_ns

    def on_sent(self, message_count: int, now_ns: int) -> None:
        """Messages were sent; a pause may begin."""
        self._sent += message_count
        if self._sent >= self._every:
            self._sent = 0
            self.until_ns = now_ns + self._pause_ns
