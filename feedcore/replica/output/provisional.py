"""What an adapter sent in its own numbering while no adapter decided (docs/protocol.md clause 6.8), and how it slows
down when an adapter decides again.

Invariant: `ends` is the position of conversion in each source stream. It is never before the decided position. Once it
is not after it in any stream, nothing is provisional any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from tandemfeed.feedcore.wire.position import MessageStreamState, Run

RUNS_MAX = 65_536  # as many as a decision log keeps: an adapter that missed more takes a snapshot


class Provisional:
    """One stretch of provisional output of one channel. Its numbers continue from the decided position."""

    def __init__(self, decided: MessageStreamState) -> None:
        self.next_input_seq = decided.next_input_seq
        self.next_message_seq = decided.next_message_seq
        self.ends = dict(decided.next_source_seqs)
        self.runs: deque[Run] = deque(maxlen=RUNS_MAX)

    def note(self, run: Run) -> None:
        """Note a run that was converted and sent."""
        self.runs.append(run)
        self.next_input_seq, self.next_message_seq = run.end_input_seq, run.end_message_seq
        self.ends[run.source_stream_id] = run.end_source_seq

    def note_decided(self, run: Run) -> None:
        """Note a decided run that was applied; the part of it that had not been sent is now converted too."""
        stream = run.source_stream_id
        self.ends[stream] = max(self.ends[stream], run.end_source_seq)

    def unconverted_from(self, run: Run) -> int:
        """The first source message of a decided run that is not converted yet; the run's end if all are."""
        return min(max(run.first_source_seq, self.ends[run.source_stream_id]), run.end_source_seq)

    def is_past(self, decided_source_seqs: Mapping[int, int]) -> bool:
        """True once everything that was sent has been decided."""
        return all(end <= decided_source_seqs[stream] for stream, end in self.ends.items())


class Throttle:
    """Pauses after every `message_count` messages, so that the active gets past the backup that is ahead.

    Attributes:
        until_ns: when the newest pause ends or ended.
    """

    def __init__(self, message_count: int, pause_ns: int) -> None:
        self._every, self._pause_ns = message_count, pause_ns
        self._sent = 0
        self.until_ns = 0

    def may_send(self, now_ns: int) -> bool:
        """False during a pause."""
        return now_ns >= self.until_ns

    def on_sent(self, message_count: int, now_ns: int) -> None:
        """Note sent messages; a pause may begin."""
        self._sent += message_count
        if self._sent >= self._every:
            self._sent = 0
            self.until_ns = now_ns + self._pause_ns
