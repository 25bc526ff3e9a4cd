"""Repairs the buckets of a backup's conversion state that differ from the active's (protocol clause 5.7).

The active answers with the values at its own, newer position. So the backup stops applying decisions when it sends the
request. When the answer arrives, it applies decisions up to that position, sets the buckets, compares and continues.
"""

from __future__ import annotations

from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.channel_state import Buckets
from tandemfeed.feedcore.replica.effects import RequestBuckets

TRIES_MAX = 3
ANSWER_NS_MAX = 250_000_000  # a call between two hosts takes a few milliseconds
REACH_NS_MAX = 1_000_000_000  # the source messages up to the answer's position may have to be requested


class BucketRepair:
    """One repair at a time, of one channel. Attributes: buckets: those being repaired; empty if there is no repair."""

    def __init__(self, channel: Channel) -> None:
        self.buckets: tuple[int, ...] = ()
        self._channel, self._line = channel, channel.line
        self._answer: Buckets | None = None
        self._tries_left = self._due_at_ns = 0

    def begin(self, buckets: tuple[int, ...], now_ns: int) -> None:
        """Request these buckets, which differ."""
        self.buckets, self._answer, self._tries_left = buckets, None, TRIES_MAX
        self.ask(now_ns)

    def ask(self, now_ns: int) -> bool:
        """Send a request to the active. Returns False, and sends none, after the last try or once an answer is here."""
        if not self._tries_left or self._answer is not None:
            return False
        self._tries_left -= 1
        self._due_at_ns = now_ns + ANSWER_NS_MAX
        channel, active_id = self._channel, self._channel.active.adapter_id
        channel.emit(RequestBuckets(channel.channel_id, active_id, self.buckets, self._line.session))
        return True

    def on_answer(self, answer: Buckets, now_ns: int) -> bool:
        """Take an answer. Returns False if this backup is past the answer's position and may not ask again."""
        if self._line.next_input_seq > answer.position.next_input_seq:
            return self.ask(now_ns)
        self._answer, self._due_at_ns = answer, now_ns + REACH_NS_MAX
        return True

    def may_apply(self) -> bool:
        """True if the next decision may be applied: not before the answer arrives, and not after its position."""
        return not self.buckets or (self._answer is not None and not self._is_reached(self._answer))

    def set_if_reached(self) -> bool:
        """Set the buckets if this is the answer's position. Returns whether it is.

        Raises:
            ConversionDiverged: the state still differs.
        """
        answer = self._answer
        if answer is None or not self._is_reached(answer):
            return False
        self.buckets, self._answer = (), None
        self._line.set_buckets(answer)
        return True

    def on_own_pause(self, pause_ns: int) -> None:
        """This process was paused, and the answer may wait in its queues."""
        self._due_at_ns += pause_ns

    def is_late(self, now_ns: int) -> bool:
        """True if the answer did not arrive, or its position was not reached, in time."""
        return bool(self.buckets) and now_ns >= self._due_at_ns

    def next_deadline_ns(self) -> int | None:
        """When to check `is_late`."""
        return self._due_at_ns if self.buckets else None

    def _is_reached(self, answer: Buckets) -> bool:
        return self._line.next_input_seq == answer.position.next_input_seq
