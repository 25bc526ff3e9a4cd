"""One contributed source stream: what callers ask of it, and what is decided about it in a turn.

Any thread contributes, opens and cancels; the calls wait. One thread, the gateway's, takes turns: `take` decides what
is to be accepted, opened, cancelled and numbered, and returns the records of it. When the log holds them permanently,
`finish` answers the callers, and returns the packets to send. So whatever the moment of a crash, the log has a turn as
a whole or not at all, and has every decision that a caller received.

It must never number a message twice, nor one that was reported as cancelled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.token_bucket import TokenBucket
from tandemfeed.spark_feed.contributions.book import (
    Contribution,
    ContributionBook,
    ContributionRefused,
    Limits,
    Producer,
    Why,
)
from tandemfeed.spark_feed.contributions.frames import LENGTH_SIZE, FrameMaker, MessageRefused
from tandemfeed.spark_feed.contributions.records import (
    CarriedProducer,
    StreamPlace,
    accepted_record,
    cancelled_record,
    numbered,
    opened_record,
    packet_record,
)
from tandemfeed.spark_feed.contributions.recovery import Carried, Recovery

NUMBERED_PER_TURN_MAX = 1_000
ACCEPTED_SIZE_PER_TURN_MAX = 2 << 20  # a segment of the log, of which there is one per turn, fits in a block
ANSWER_TIMEOUT_S = 2.0  # then the caller repeats the request, here or at the next holder


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Outcome of a cancellation.

    Attributes:
        message_count: cancelled by it.
        numbers: those of the request that are cancelled, now or before.
    """

    message_count: int
    numbers: list[int]


class _New(NamedTuple):
    """A new message of a request."""

    number: int
    release_at_ns: int
    message: bytes


@dataclass(slots=True)
class _Acceptance:
    producer: Producer
    new: list[_New]
    size: int
    done: Future[None] = field(default_factory=Future)


@dataclass(slots=True)
class _Opening:
    producer: Producer
    instance: bytes
    done: Future[int] = field(default_factory=Future)


@dataclass(slots=True)
class _Cancellation:
    """Attributes: numbers: None: all. taken: by the turn."""

    identity: str
    name: str | None
    numbers: Sequence[int] | None
    done: Future[Cancelled] = field(default_factory=Future)
    taken: list[Contribution] = field(default_factory=list)


@dataclass(slots=True)
class Turn:
    """What was decided, and is not held by the log yet.

    Attributes:
        records: for the log; the last `packet_count` are those of packets.
    """

    records: list[bytes] = field(default_factory=list)
    packet_count: int = 0
    acceptances: list[_Acceptance] = field(default_factory=list)
    openings: list[_Opening] = field(default_factory=list)
    cancellations: list[_Cancellation] = field(default_factory=list)


class ContributedStream:
    """A stream.

    Args:
        found: what the log has of it; its book is filled from it.
        wake: called by any thread when there is something to decide.
        messages_per_second: the stream's rate; more than that stays pending.
        clock_ns: a clock that is never set back, in ns since 1970: measures rates, and until when messages are held.
        wall_clock_ns: gives packets their time; None: `clock_ns`.

    Attributes:
        why_waiting: why turns take long, for people; set by the gateway.
    """

    def __init__(
        self,
        place: StreamPlace,
        source_format: SourceFormat,
        book: ContributionBook,
        found: Recovery,
        wake: Callable[[], None],
        *,
        messages_per_second: int = 20_000,
        clock_ns: Callable[[], int],
        wall_clock_ns: Callable[[], int] | None = None,
    ) -> None:
        self.place, self._clock_ns, self._wake = place, clock_ns, wake
        self._wall_clock_ns = wall_clock_ns or clock_ns
        self.message_size_max = place.frames_size_max - LENGTH_SIZE
        self.next_source_seq, self._next_item_id = found.next_source_seq, found.next_item_id
        self.why_waiting = ""
        self._frames = FrameMaker(source_format, self.message_size_max)
        self._lock = threading.Lock()
        self._book = book
        self._acceptances: list[_Acceptance] = []
        self._openings: list[_Opening] = []
        self._cancellations: list[_Cancellation] = []
        self._turn: Turn | None = None
        self._rate = TokenBucket(messages_per_second, messages_per_second // 10, clock_ns())
        self._closed = False

    @property
    def limits(self) -> Limits:
        """Of each identity."""
        return self._book.limits

    @property
    def pending_count(self) -> int:
        """Accepted messages that are not decided."""
        return self._book.pending_count

    def close(self) -> None:
        """Refuse the calls that wait, and any other."""
        self._closed = True
        self._fail_waiting()

    def carried(self) -> Carried:
        """What this session leaves to the next one."""
        return Carried(
            [CarriedProducer(*producer, instance, number) for producer, instance, number in self._book.producers()],
            sorted(self._book.pending(), key=lambda each: each.item_id),
        )

    # ---- called by any thread ----

    def open(self, producer: Producer, instance: bytes) -> int:
        """Let a process contribute under a producer's name, and no other from now on.

        Returns:
            The number of the next message.

        Raises:
            ContributionRefused
        """
        with self._lock:
            if not self._book.may_open(producer, instance) and not self._book.is_busy(producer):
                return self._book.next_number(producer)
            self._book.charge(producer.identity, 1, self._clock_ns())
            opening = _Opening(producer, instance)
            self._openings.append(opening)
        return self._answer(opening.done)

    def contribute(
        self, producer: Producer, instance: bytes, first_number: int, messages: Sequence[bytes], hold_ns: int
    ) -> int:
        """Accept messages: they are permanently in the log when this returns. All new ones, or none.

        Returns:
            The number after the last.

        Raises:
            ContributionRefused
        """
        now_ns = self._clock_ns()
        with self._lock:
            self._book.charge(producer.identity, len(messages), now_ns)
        self._check(messages)
        sizes, release_at_ns = [len(each) for each in messages], now_ns + hold_ns if hold_ns else 0
        with self._lock:
            repeated = self._book.begin(producer, instance, first_number, sizes, hold_ns)
            new = [
                _New(first_number + place, release_at_ns, message)
                for place, message in enumerate(messages)
                if place >= repeated
            ]
            if new:
                acceptance = _Acceptance(producer, new, sum(sizes[repeated:]))
                self._acceptances.append(acceptance)
        if new:
            self._answer(acceptance.done)
        return first_number + len(messages)

    def cancel(self, identity: str, name: str | None, numbers: Sequence[int] | None) -> Cancelled:
        """Cancel pending messages of an identity; the cancellation is durable when this returns.

        Args:
            name: of the producer; None: all producers of the identity.
            numbers: None: all that are pending.

        Raises:
            ContributionRefused
        """
        assert name is not None or numbers is None, "numbers are a producer's"
        with self._lock:
            self._book.charge(identity, 1, self._clock_ns())
            cancellation = _Cancellation(identity, name, numbers)
            self._cancellations.append(cancellation)
        return self._answer(cancellation.done)

    def _check(self, messages: Sequence[bytes]) -> None:
        for place, message in enumerate(messages):
            try:
                self._frames.frame(message)
            except MessageRefused as refused:
                raise ContributionRefused(Why.INVALID, f"message {place} of the request: {refused}") from None

    def _answer(self, done: Future[Answer]) -> Answer:
        if self._closed:
            self._fail_waiting()
        self._wake()
        try:
            return done.result(ANSWER_TIMEOUT_S)
        except TimeoutError:
            text = self.why_waiting or "the gateway is busy"
            raise ContributionRefused(Why.BUSY, f"not acknowledged yet: {text}; retry") from None

    # ---- called by the gateway's thread ----

    def take(self) -> Turn:
        """Decide what is due. `finish` must be called before the next turn."""
        assert self._turn is None, "the turn before is not finished"
        now_ns, stream_id = self._clock_ns(), self.place.source_stream_id
        with self._lock:
            self._turn = turn = self._begin_turn()
            accepted = [each for acceptance in turn.acceptances for each in self._accept(acceptance, now_ns)]
            for cancellation in turn.cancellations:
                cancellation.taken = self._taken_by(cancellation)
            due = self._book.take_due(NUMBERED_PER_TURN_MAX, now_ns) if not self._rate.wait_ns(now_ns) else []
        decided = {each.item_id for each in due}
        decided.update(each.item_id for cancellation in turn.cancellations for each in cancellation.taken)
        turn.records = [opened_record(stream_id, each.producer, each.instance) for each in turn.openings]
        if pending := [each for each in accepted if each.item_id not in decided]:
            turn.records.append(accepted_record(stream_id, pending))
        turn.records += [cancelled_record(stream_id, each.taken) for each in turn.cancellations if each.taken]
        frames = [self._frames.frame(each.message) for each in due]
        packets = numbered(self.place, due, self.next_source_seq, frames, self._wall_clock_ns())
        turn.records += [each.record for each in packets]
        turn.packet_count = len(packets)
        if due:
            self._rate.spend(len(due), now_ns)
            self.next_source_seq += len(due)
        return turn

    def finish(self, first_index: int) -> list[tuple[int, bytes]]:
        """The turn's records are permanently in the log, from this index on: answer the callers.

        Returns:
            The packets to send: (index in the log, PACKET record).
        """
        turn, now_ns = self._turn, self._clock_ns()
        assert turn is not None, "there is no turn to finish"
        outcomes = list[Cancelled]()
        with self._lock:
            for acceptance in turn.acceptances:
                self._book.finish(acceptance.producer)
            for opening in turn.openings:
                self._book.opened(opening.producer, opening.instance, now_ns)
            for cancellation in turn.cancellations:
                self._book.cancelled(cancellation.taken)
                outcomes.append(self._outcome(cancellation))
            next_numbers = [self._book.next_number(each.producer) for each in turn.openings]
            self._turn = None
        for acceptance in turn.acceptances:
            acceptance.done.set_result(None)
        for opening, next_number in zip(turn.openings, next_numbers, strict=True):
            opening.done.set_result(next_number)
        for cancellation, outcome in zip(turn.cancellations, outcomes, strict=True):
            cancellation.done.set_result(outcome)
        place = len(turn.records) - turn.packet_count
        return [
            (first_index + at, packet_record(record)) for at, record in enumerate(turn.records[place:], start=place)
        ]

    def next_deadline_ns(self) -> int | None:
        """By `clock_ns`: when `take` has something to do, unless it is woken earlier; None: not before."""
        now_ns = self._clock_ns()
        with self._lock:
            if self._openings or self._cancellations or self._acceptances:
                return now_ns
            release_ns = self._book.next_release_ns(now_ns)
        return None if release_ns is None else max(release_ns, now_ns + self._rate.wait_ns(now_ns))

    # ---- inside ----

    def _begin_turn(self) -> Turn:
        count = size = 0
        for acceptance in self._acceptances:
            size += acceptance.size
            if count and size > ACCEPTED_SIZE_PER_TURN_MAX:
                break
            count += 1
        turn = Turn([], 0, self._acceptances[:count], self._openings, self._cancellations)
        self._acceptances, self._openings, self._cancellations = self._acceptances[count:], [], []
        return turn

    def _accept(self, acceptance: _Acceptance, now_ns: int) -> list[Contribution]:
        accepted = [
            Contribution(self._next_item_id + at, acceptance.producer, *each) for at, each in enumerate(acceptance.new)
        ]
        self._next_item_id += len(accepted)
        self._book.accept(accepted, now_ns)
        return accepted

    def _taken_by(self, cancellation: _Cancellation) -> list[Contribution]:
        if cancellation.numbers is None:
            return self._book.cancel_all(cancellation.identity, cancellation.name)
        assert cancellation.name is not None
        return self._book.cancel(Producer(cancellation.identity, cancellation.name), cancellation.numbers)

    def _outcome(self, cancellation: _Cancellation) -> Cancelled:
        count = len(cancellation.taken)
        if cancellation.numbers is None or cancellation.name is None:
            return Cancelled(count, [])
        producer = Producer(cancellation.identity, cancellation.name)
        numbers = [each for each in cancellation.numbers if self._book.was_cancelled(producer, each)]
        return Cancelled(count, numbers)

    def _fail_waiting(self) -> None:
        with self._lock:
            turn = self._turn or Turn()
            waiting: list[_Acceptance | _Opening | _Cancellation] = [
                *self._acceptances, *self._openings, *self._cancellations,
                *turn.acceptances, *turn.openings, *turn.cancellations,
            ]  # fmt: skip
            self._acceptances, self._openings, self._cancellations, self._turn = [], [], [], None
        for each in waiting:
            each.done.set_exception(ContributionRefused(Why.BUSY, "the gateway is stopping; retry"))
