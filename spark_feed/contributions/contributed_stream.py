"""One contributed source stream on the disk: its queue of accepted messages, and its journal of decisions.

Any thread contributes, opens and cancels. One thread, the gateway's, decides: in each turn it takes what is to be
opened, cancelled and numbered, appends that to the journal in one segment, and flushes it. Only then are callers
answered, and packets sent. So whatever the moment of a crash, the journal has a decision as a whole or not at all, and
the queue has every accepted message that the journal has not.

It must never number a message twice, nor one that was not accepted, nor one that was reported as cancelled.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.token_bucket import TokenBucket
from tandemfeed.journal import DiskFull, Journal
from tandemfeed.journal.persistent_queue import PersistentQueue, QueueFull
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
    Item,
    StreamPlace,
    cancelled_record,
    ended_record,
    numbered,
    opened_record,
    packet_record,
)
from tandemfeed.spark_feed.contributions.recovery import Carried, recover
from tandemfeed.spark_feed.journaling.records import BLOCK_SIZE, stream_folder

NUMBERED_PER_TURN_MAX = 1_000
QUEUE_BLOCK_SIZE = 16 << 20
ANSWER_TIMEOUT_S = 10.0


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


@dataclass(slots=True)
class _Opening:
    producer: Producer
    instance: bytes
    done: Future[int] = field(default_factory=Future)


@dataclass(slots=True)
class _Cancellation:
    """Attributes: numbers: None: all."""

    identity: str
    name: str | None
    numbers: Sequence[int] | None
    done: Future[Cancelled] = field(default_factory=Future)


class ContributedStream:
    """An open stream.

    Args:
        folder: the gateway's.
        wake: called by any thread when there is something to decide.
        messages_per_second: the stream's rate; more than that stays pending.
        carried: what the session before this one left; it counts only when the folder is new.

    Attributes:
        recovered: the packets of the journal.

    Raises:
        JournalOfOtherStream, WrongFormat, JournalError: it cannot be opened.
    """

    def __init__(
        self,
        folder: Path,
        place: StreamPlace,
        source_format: SourceFormat,
        wake: Callable[[], None],
        *,
        limits: Limits | None = None,
        messages_per_second: int = 20_000,
        carried: Carried | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.place, self._clock_ns, self._wake = place, clock_ns, wake
        self.message_size_max = place.frames_size_max - LENGTH_SIZE
        self._frames = FrameMaker(source_format, self.message_size_max)
        self._lock = threading.Lock()
        self._book = ContributionBook(limits)
        self._openings: list[_Opening] = []
        self._cancellations: list[_Cancellation] = []
        self._deciding: tuple[list[_Opening], list[_Cancellation]] = [], []
        self._rate = TokenBucket(messages_per_second, messages_per_second // 10, clock_ns())
        self._closed = False
        journal_folder = stream_folder(folder, place.source_stream_id)
        self._journal = Journal.open(journal_folder, block_size=BLOCK_SIZE, exclusive=True)
        try:
            queue_folder = folder / f"queue-{place.source_stream_id}"
            self._queue = PersistentQueue.open(queue_folder, block_size=QUEUE_BLOCK_SIZE, batch_scheduling=False)
        except BaseException:
            self._journal.close()
            raise
        try:
            found = recover(self._journal, self._queue, place, self._book, carried or Carried(), clock_ns())
            self.recovered, self.next_source_seq, self._in_flight = found[:3]
            self._settle(found.numbered_ids, found.cancelled_ids)
        except BaseException:
            self.close()
            raise

    @property
    def limits(self) -> Limits:
        """Of each identity."""
        return self._book.limits

    @property
    def pending_count(self) -> int:
        """Accepted messages that are not decided."""
        return self._book.pending_count

    def close(self) -> None:
        """Close the files; what is pending stays in the queue."""
        self._closed = True
        self._fail_waiting()
        self._queue.close()
        self._journal.close()

    def carried(self) -> Carried:
        """What this session leaves to the next one."""
        return Carried(
            [CarriedProducer(*producer, instance, number) for producer, instance, number in self._book.producers()],
            sorted(self._book.pending(), key=lambda each: each.item_id),
        )

    def end(self) -> None:
        """End the session for good: the next one has what `carried` returned."""
        self._append([ended_record()])

    # ---- called by any thread ----

    def open(self, producer: Producer, instance: bytes) -> int:
        """Let a process contribute under a producer's name, and no other from now on.

        Returns:
            The number of the next message.

        Raises:
            ContributionRefused
        """
        with self._lock:
            if not self._book.may_open(producer, instance):
                return self._book.next_number(producer)
            self._book.charge(producer.identity, 1, self._clock_ns())
            opening = _Opening(producer, instance)
            self._openings.append(opening)
        return self._answer(opening.done)

    def contribute(
        self, producer: Producer, instance: bytes, first_number: int, messages: Sequence[bytes], hold_ns: int
    ) -> int:
        """Accept messages: they are in the queue, durably, when this returns. All new ones, or none.

        Returns:
            The number after the last.

        Raises:
            ContributionRefused
            QueueFailed: the disk failed; the gateway must end.
        """
        now_ns = self._clock_ns()
        with self._lock:
            self._book.charge(producer.identity, len(messages), now_ns)
        self._check(messages)
        with self._lock:
            sizes = [len(each) for each in messages]
            repeated = self._book.begin(producer, instance, first_number, sizes, hold_ns)
        new, number = messages[repeated:], first_number + repeated
        if new:
            items = [
                Item(*producer, number + place, now_ns + hold_ns if hold_ns else 0, message)
                for place, message in enumerate(new)
            ]
            self._put(producer, items, now_ns)
            self._wake()
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

    def _put(self, producer: Producer, items: Sequence[Item], now_ns: int) -> None:
        try:
            ids = self._queue.put_many([each.encode() for each in items])
        except (DiskFull, QueueFull) as full:
            with self._lock:
                self._book.abandon(producer)
            raise ContributionRefused(Why.LIMIT, f"the queue is full, retry later: {full}") from full
        accepted = [
            Contribution(item_id, producer, item.number, item.release_at_ns, item.message)
            for item_id, item in zip(ids, items, strict=True)
        ]
        with self._lock:
            self._book.accept(accepted, now_ns)

    def _answer(self, done: Future[Answer]) -> Answer:
        if self._closed:
            self._fail_waiting()
        self._wake()
        try:
            return done.result(ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise ContributionRefused(Why.BUSY, "the gateway is busy or stopping; retry") from None

    # ---- called by the gateway's thread ----

    def decide(self) -> list[tuple[int, bytes]]:
        """Make the decisions that are due; returns the packets to send: (journal index, PACKET record)."""
        now_ns = self._clock_ns()
        with self._lock:
            self._deciding = openings, cancellations = self._openings, self._cancellations
            self._openings, self._cancellations = [], []
            cancelled = [self._taken_by(each) for each in cancellations]
            due = self._book.take_due(NUMBERED_PER_TURN_MAX, now_ns) if not self._rate.wait_ns(now_ns) else []
        frames = [self._frames.frame(each.message) for each in due]
        packets = numbered(self.place, due, self.next_source_seq, frames, now_ns)
        records = [opened_record(each.producer, each.instance) for each in openings]
        records += [cancelled_record(each) for each in cancelled if each]
        first_packet = len(records)
        records += [each.record for each in packets]
        first_index = self._append(records)
        if due:
            self._rate.spend(len(due), now_ns)
            self.next_source_seq += len(due)
        self._settle([each.item_id for each in due], [each.item_id for part in cancelled for each in part])
        self._report(openings, cancellations, cancelled, now_ns)
        return [(first_index + first_packet + at, packet_record(each.record)) for at, each in enumerate(packets)]

    def next_deadline_ns(self) -> int | None:
        """Wall clock: when `decide` has something to do, unless it is woken earlier; None: not before."""
        now_ns = self._clock_ns()
        with self._lock:
            if self._openings or self._cancellations:
                return now_ns
            release_ns = self._book.next_release_ns(now_ns)
        return None if release_ns is None else max(release_ns, now_ns + self._rate.wait_ns(now_ns))

    def _append(self, records: Sequence[bytes]) -> int:
        if not records:
            return 0
        first_index = self._journal.append_batch(records)
        self._journal.sync()
        return first_index

    def _taken_by(self, cancellation: _Cancellation) -> list[Contribution]:
        if cancellation.numbers is None:
            return self._book.cancel_all(cancellation.identity, cancellation.name)
        assert cancellation.name is not None
        return self._book.cancel(Producer(cancellation.identity, cancellation.name), cancellation.numbers)

    def _settle(self, done_ids: Iterable[int], cancelled_ids: Iterable[int]) -> None:
        """Tell the queue what is decided. If a crash comes first, recovery does.

        Items are handed out in the order of their ids, which need not be that of decisions: those of others stay in
        flight until their turn.
        """
        done, cancelled = set(done_ids), set(cancelled_ids)
        while not done <= self._in_flight and (entry := self._queue.get()) is not None:
            self._in_flight.add(entry[0])
        for item_id in cancelled & self._in_flight:
            self._queue.release(item_id)
        self._queue.cancel_many(cancelled)
        self._queue.done_many(done & self._in_flight)  # all, unless the disk has damaged one in the queue
        self._in_flight -= done | cancelled

    def _report(
        self,
        openings: Iterable[_Opening],
        cancellations: Sequence[_Cancellation],
        cancelled: Sequence[list[Contribution]],
        now_ns: int,
    ) -> None:
        answers: list[Cancelled] = []
        with self._lock:
            for opening in openings:
                self._book.opened(opening.producer, opening.instance, now_ns)
            for cancellation, taken in zip(cancellations, cancelled, strict=True):
                self._book.cancelled(taken)
                answers.append(self._outcome(cancellation, taken))
            next_numbers = [self._book.next_number(each.producer) for each in openings]
        self._deciding = [], []
        for opening, next_number in zip(openings, next_numbers, strict=True):
            opening.done.set_result(next_number)
        for cancellation, answer in zip(cancellations, answers, strict=True):
            cancellation.done.set_result(answer)

    def _outcome(self, cancellation: _Cancellation, taken: Sequence[Contribution]) -> Cancelled:
        if cancellation.numbers is None or cancellation.name is None:
            return Cancelled(len(taken), [])
        producer = Producer(cancellation.identity, cancellation.name)
        numbers = [each for each in cancellation.numbers if self._book.was_cancelled(producer, each)]
        return Cancelled(len(taken), numbers)

    # ---- inside ----

    def _fail_waiting(self) -> None:
        with self._lock:
            waiting: list[_Opening | _Cancellation] = [*self._openings, *self._cancellations]
            waiting += itertools.chain(*self._deciding)
            self._openings, self._cancellations, self._deciding = [], [], ([], [])
        for each in waiting:
            each.done.set_exception(ContributionRefused(Why.BUSY, "the gateway is stopping; retry"))
