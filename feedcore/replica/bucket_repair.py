"""Setting the buckets of a backup's conversion state that differ from the active's (protocol clause 5.7).

The active answers with the values at its own, newer position. So the backup stops applying decisions when it asks,
applies up to just that position when the answer is here, sets the buckets, compares, and goes on.
"""

from __future__ import annotations

from feedcore.replica.channel_state import Buckets
from feedcore.wire.position import MessageStreamState

TRIES_MAX = 3
ANSWER_NS_MAX = 250_000_000  # a call between two hosts takes a few milliseconds
REACH_NS_MAX = 1_000_000_000  # the source messages up to the answer's position may have to be asked for


class BucketRepair:
    """One repair at a time, of one channel."""

    def __init__(self) -> None:
        self.buckets: tuple[int, ...] = ()  # being repaired; empty: nothing is
        self._answer: Buckets | None = None
        self._tries = 0
        self._due_at_ns = 0

    @property
    def is_under_way(self) -> bool:
        """True from the request to the setting."""
        return bool(self.buckets)

    def begin(self, buckets: tuple[int, ...], now_ns: int) -> None:
        """These differ, and are being asked for."""
        self.buckets, self._answer, self._tries = buckets, None, 1
        self._due_at_ns = now_ns + ANSWER_NS_MAX

    def end(self) -> None:
        """They are set, or another way was taken."""
        self.buckets, self._answer = (), None

    def on_answer(self, answer: Buckets, applied: MessageStreamState, now_ns: int) -> bool:
        """False if the answer is of no use: this backup is past its position."""
        if applied.next_input_seq > answer.position.next_input_seq:
            return False
        self._answer, self._due_at_ns = answer, now_ns + REACH_NS_MAX
        return True

    def may_apply(self, applied: MessageStreamState) -> bool:
        """True if decisions may be applied: none until the answer is here, and none after its position."""
        return not self.buckets or (self._answer is not None and not self._is_at(applied))

    def due_answer(self, applied: MessageStreamState) -> Buckets | None:
        """The answer, once the position is its."""
        return self._answer if self._answer is not None and self._is_at(applied) else None

    def is_late(self, now_ns: int) -> bool:
        """True if the answer, or the position, does not come."""
        return self.is_under_way and now_ns >= self._due_at_ns

    def take_try(self, now_ns: int) -> bool:
        """True if it may be asked once more."""
        if self._tries >= TRIES_MAX or self._answer is not None:
            return False
        self._tries += 1
        self._due_at_ns = now_ns + ANSWER_NS_MAX
        return True

    def next_deadline_ns(self) -> int | None:
        """When to look at `is_late`."""
        return self._due_at_ns if self.is_under_way else None

    def _is_at(self, applied: MessageStreamState) -> bool:
        assert self._answer is not None
        return applied.next_input_seq == self._answer.position.next_input_seq
