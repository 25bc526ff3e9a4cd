"""When to request what is missing, how often, and when to give up: the client's patience with one gap at a time."""

from __future__ import annotations

from collections import deque

from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.history.place import BEGINNING, Place

ANSWER_PART = 5  # of the patience with a gap remains after its first request, however late that is


class GapRepair:
    """The patience with the first gap of a sequence, after which nothing can be delivered.

    Args:
        config: timers.

    Attributes:
        has_asked: requested this gap, or one right before it.
    """

    def __init__(self, config: MergerConfig) -> None:
        self._config = config
        self._since_ns: int | None = None  # None: nothing is missing
        self._first_missing = 0
        self._request_at_ns = 0
        self._pause_ns = 0  # between the next request and the one after it
        self.has_asked = False
        self._is_requested = False  # this very gap, not only one before it
        self._jitter = 0.0  # the newest given; keeps clients that lost the same packet from asking at the same time

    def watch(self, first_missing: int, now_ns: int) -> bool:
        """Note that something is missing from this number on; True if it is another gap, with its own patience.

        If one gap follows another, this does not repeat a request early.
        """
        if self._since_ns is None:
            self._request_at_ns = now_ns + int(self._config.request_after_ns * (1 + self._jitter / 2))
            self.has_asked = False
        elif first_missing == self._first_missing:
            return False
        self._first_missing = first_missing
        self._since_ns = now_ns
        self._is_requested = False
        self._pause_ns = self._config.retry_every_ns
        return True

    def request_soon(self, now_ns: int) -> None:
        """Request the gap soon, because every live stream is past it and no further copy will arrive by itself."""
        if not self.has_asked:
            self._request_at_ns = min(self._request_at_ns, now_ns + self._config.reorder_ns)

    def request_now(self, now_ns: int) -> None:
        """Request at the next opportunity, and begin again with short pauses: the last request brought something."""
        self._request_at_ns, self._pause_ns = now_ns, self._config.retry_every_ns

    def closed(self) -> None:
        """Note that nothing is missing."""
        self._since_ns = None

    def next_deadline_ns(self) -> int | None:
        """When to request or give up."""
        if self._since_ns is None:
            return None
        if not self._is_requested:
            return self._request_at_ns
        return min(self._request_at_ns, self._since_ns + self._config.declare_after_ns)

    def has_timed_out(self, now_ns: int) -> bool:
        """True once the gap has been requested and open for longer than the limit."""
        if self._since_ns is None or not self._is_requested:
            return False
        return now_ns - self._since_ns >= self._config.declare_after_ns

    def extend_to(self, at_ns: int) -> None:
        """Do not declare the gap before this time."""
        if self._since_ns is not None:
            self._since_ns = max(self._since_ns, at_ns - self._config.declare_after_ns)

    def is_request_due(self, now_ns: int, jitter: float) -> bool:
        """True once per due request.

        Args:
            jitter: in [0, 1): stretches the next pause to at most twice its length, so that clients do not act in step.
        """
        self._jitter = jitter
        if self._since_ns is None or now_ns < self._request_at_ns:
            return False
        if not self._is_requested:  # an application that paused leaves no time for an answer
            self.extend_to(now_ns + self._config.declare_after_ns // ANSWER_PART)
        self.has_asked = self._is_requested = True
        self._request_at_ns = now_ns + self._pause_ns + int(self._pause_ns * jitter)
        self._pause_ns = min(2 * self._pause_ns, self._config.retry_every_max_ns)
        return True


class ChannelRepair(GapRepair):
    """The patience with a channel's gaps: with the first one, and how much of the channel was known at which time.

    A request names later gaps together with the first, so the patience with them begins with that request.

    Attributes:
        known_end_input_seq, known_end_message_seq: the furthest place that any packet or heartbeat showed. Plain
            numbers, because every packet reads them.
        requested_end: one past the last `input_seq` that the newest request named; at most what was known then.
    """

    def __init__(self, config: MergerConfig) -> None:
        super().__init__(config)
        self.known_end_input_seq, self.known_end_message_seq = BEGINNING
        self.requested_end = 0
        self._known_ends: deque[tuple[int, Place]] = deque()  # (since when, how far), one for each request

    @property
    def known_end(self) -> Place:
        """The furthest place that any packet or heartbeat showed."""
        return Place(self.known_end_input_seq, self.known_end_message_seq)

    @property
    def declarable_end(self) -> Place:
        """How much of the channel was known when patience with the first gap began; later parts have waited less."""
        return self._known_ends[0][1]

    def extend_known_end(self, place: Place) -> None:
        """Note that the channel extends at least to this place."""
        if place.input_seq > self.known_end_input_seq:
            self.known_end_input_seq, self.known_end_message_seq = place

    def forget_from(self, place: Place) -> None:
        """Forget what was heard beyond this place, because it no longer counts."""
        if self.known_end_input_seq > place.input_seq:
            self.known_end_input_seq, self.known_end_message_seq = place
        self.requested_end = min(self.requested_end, place.input_seq)
        self._known_ends = deque((at_ns, min(end, place)) for at_ns, end in self._known_ends)

    def watch(self, first_missing: int, now_ns: int) -> bool:
        """As for `GapRepair`."""
        is_another = super().watch(first_missing, now_ns)
        if is_another:
            self._known_ends = deque([(now_ns, self.known_end)])
        return is_another

    def is_request_due(self, now_ns: int, jitter: float) -> bool:
        """As for `GapRepair`."""
        is_due = super().is_request_due(now_ns, jitter)
        if is_due:
            self._known_ends.append((now_ns, self.known_end))
        return is_due

    def passed_over(self, first_missing: int) -> None:
        """Note that the first gap was declared. If a request named the next one too, its patience began then."""
        while self._known_ends and self._known_ends[0][1].input_seq <= first_missing:
            self._known_ends.popleft()
        if first_missing < self.requested_end:  # so the newest request's entry is still there
            self._first_missing, self._since_ns = first_missing, self._known_ends[0][0]
        else:
            self.closed()
