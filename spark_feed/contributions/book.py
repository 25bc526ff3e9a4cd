"""Which contributions a source stream has accepted, and which of them are pending. Pure.

A contributor sends under a producer's name, and numbers its messages from 1 without gaps. A message's (identity,
producer, number) is its id: a retry has the same id, so it is accepted once. An accepted message is pending until it is
decided: numbered in the source stream, or cancelled. The shell makes every decision durable before it reports it.

Invariants: of each producer, the numbers before `next_number` were accepted, each once; each is pending or decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.token_bucket import TokenBucket

FIRST_NUMBER = 1
REMEMBERED_RANGES_MAX = 1_000  # of cancelled numbers, of each producer
DEAD_ENTRIES_MAX = 1_000  # of cancelled messages, in a list of those to come


class Producer(NamedTuple):
    """Who numbers messages: a name that an identity has chosen."""

    identity: str
    name: str


@dataclass(frozen=True, slots=True)
class Contribution:
    """An accepted message.

    Attributes:
        item_id: counts the accepted messages of the stream; it orders those of all producers.
        number: the producer's.
        release_at_ns: ns since 1970; until then it stays pending.
    """

    item_id: int
    producer: Producer
    number: int
    release_at_ns: int
    message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one identity may use, so that it takes no room or time from another.

    Attributes:
        pending_count_max, pending_size_max: messages, and their bytes.
        producer_count_max: each is remembered for the session.
        messages_per_second: on average, with a burst of twice as many.
        stream_pending_count_max: of all identities.
        hold_ns_max: how long a contributor may have a message held back.
    """

    pending_count_max: int = 10_000
    pending_size_max: int = 8 << 20
    producer_count_max: int = 64
    messages_per_second: int = 5_000
    stream_pending_count_max: int = 200_000
    hold_ns_max: int = 86_400_000_000_000


class Why(Enum):
    """Why a request is refused."""

    NOT_OPEN = "not open"  # open it (again)
    SUPERSEDED = "superseded"  # another process contributes under this producer's name
    OUT_OF_ORDER = "out of order"  # the numbers do not continue
    BUSY = "busy"  # an earlier request of the producer is not finished; retry
    LIMIT = "limit"  # wait, then retry
    INVALID = "invalid"


class ContributionRefused(Exception):
    """A contributor's request is refused; nothing was accepted."""

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why


@dataclass(slots=True)
class _Producer:
    next_number: int = FIRST_NUMBER
    instance: bytes = b""
    is_busy: bool = False
    pending: dict[int, Contribution] = field(default_factory=dict)
    cancelled: RangeSet = field(default_factory=RangeSet)


class _Contributor:
    """An identity: its producers, and what it has pending."""

    def __init__(self, limits: Limits, now_ns: int) -> None:
        self.producers: dict[str, _Producer] = {}
        self.pending_count = self.pending_size = 0
        self.ready: deque[Contribution] = deque()  # also those that were cancelled since
        self.rate = TokenBucket(limits.messages_per_second, 2 * limits.messages_per_second, now_ns)


class ContributionBook:
    """The book of one source stream. Times: `now_ns` is of a clock that is never set back, in ns since 1970."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.pending_count = 0
        self._contributors: dict[str, _Contributor] = {}
        self._held: list[tuple[int, int, Contribution]] = []  # heap by release time, then item
        self._turns: deque[str] = deque()  # identities with ready messages, in the order of their turns

    # ---- contributors ----

    def is_busy(self, producer: Producer) -> bool:
        """Whether a request of the producer is not finished."""
        known = self._find(producer)
        return known is not None and known.is_busy

    def next_number(self, producer: Producer) -> int:
        """The number of the next message that the producer may send."""
        known = self._find(producer)
        return FIRST_NUMBER if known is None else known.next_number

    def charge(self, identity: str, count: int, now_ns: int) -> None:
        """Count messages that an identity sends, new or not, and its other requests, before anything else is done.

        Raises:
            ContributionRefused: the identity makes too many.
        """
        contributor = self._contributors.setdefault(identity, _Contributor(self.limits, now_ns))
        if wait_ns := contributor.rate.wait_ns(now_ns):
            rate = self.limits.messages_per_second
            text = f"{identity} contributes more than {rate} messages a second; retry in {wait_ns / 1e9:.3f} s"
            raise ContributionRefused(Why.LIMIT, text)
        contributor.rate.spend(count, now_ns)

    def may_open(self, producer: Producer, instance: bytes) -> bool:
        """Whether opening changes which process contributes under the producer's name.

        Raises:
            ContributionRefused: the identity has too many producers.
        """
        known = self._find(producer)
        contributor = self._contributors.get(producer.identity)
        if known is None and contributor is not None and len(contributor.producers) >= self.limits.producer_count_max:
            raise ContributionRefused(
                Why.INVALID,
                f"{producer.identity} has {len(contributor.producers)} producers on this topic, which is the limit; "
                "contribute under one of their names",
            )
        return known is None or known.instance != instance

    def opened(self, producer: Producer, instance: bytes, now_ns: int) -> None:
        """From now on, only this process contributes under the producer's name."""
        self._made(producer, now_ns).instance = instance

    def begin(self, producer: Producer, instance: bytes, first_number: int, sizes: list[int], hold_ns: int) -> int:
        """A process sends messages of consecutive numbers. The producer is busy until `finish`, unless none of them is
        new.

        Returns:
            How many of them, from the first on, were accepted before.

        Raises:
            ContributionRefused
        """
        known = self._require_open(producer, instance)
        if not 0 <= hold_ns <= self.limits.hold_ns_max:
            most_s = self.limits.hold_ns_max / 1e9
            raise ContributionRefused(Why.INVALID, f"hold is {hold_ns / 1e9:g} s; it must be 0 to {most_s:g} s")
        if not FIRST_NUMBER <= first_number <= known.next_number:
            raise ContributionRefused(
                Why.OUT_OF_ORDER,
                f"the first message has number {first_number}; the next number of producer {producer.name!r} is "
                f"{known.next_number}, and messages must be numbered without gaps",
            )
        if known.is_busy:
            raise ContributionRefused(Why.BUSY, f"an earlier request of producer {producer.name!r} is not finished")
        repeated_count = min(known.next_number - first_number, len(sizes))
        if new := sizes[repeated_count:]:
            self._require_room(producer.identity, len(new), sum(new))
            known.is_busy = True
        return repeated_count

    def accept(self, contributions: Iterable[Contribution], now_ns: int) -> None:
        """The new messages of a request are accepted in this turn."""
        for each in contributions:
            contributor, known = self._contributors[each.producer.identity], self._producer(each.producer)
            assert each.number == known.next_number, f"{each}: expected number {known.next_number}"
            known.next_number = each.number + 1
            self._add(each, contributor, known, now_ns)

    def finish(self, producer: Producer) -> None:
        """The producer's request is durable."""
        self._producer(producer).is_busy = False

    # ---- cancelling ----

    def cancel(self, producer: Producer, numbers: Iterable[int]) -> list[Contribution]:
        """Take those of a producer's messages that are pending, to be cancelled."""
        known = self._find(producer)
        if known is None:
            return []
        return self._taken([known.pending[each] for each in dict.fromkeys(numbers) if each in known.pending])

    def cancel_all(self, identity: str, name: str | None = None) -> list[Contribution]:
        """Take all that an identity has pending, under one producer's name or (None) under all, to be cancelled."""
        contributor = self._contributors.get(identity)
        if contributor is None:
            return []
        chosen = contributor.producers if name is None else {name: contributor.producers.get(name, _Producer())}
        return self._taken([each for known in chosen.values() for each in known.pending.values()])

    def cancelled(self, contributions: Iterable[Contribution]) -> None:
        """Messages that were taken are durably cancelled."""
        identities = set()
        for each in contributions:
            self._remember_cancelled(self._producer(each.producer), each.number)
            identities.add(each.producer.identity)
        for identity in identities:
            self._forget_cancelled(identity)

    def was_cancelled(self, producer: Producer, number: int) -> bool:
        """Whether a message was cancelled. Of the oldest ones it is forgotten, if very many were."""
        known = self._find(producer)
        return known is not None and known.cancelled.covers(number, number + 1)

    # ---- deciding ----

    def take_due(self, count_max: int, now_ns: int) -> list[Contribution]:
        """Take messages to be numbered, in this order. Identities take turns, so that what one has pending does not
        delay another's."""
        self._release_held(now_ns)
        taken: list[Contribution] = []
        while self._turns and len(taken) < count_max:
            identity = self._turns.popleft()
            ready = self._contributors[identity].ready
            while ready:
                each = ready.popleft()
                if self._is_pending(each):
                    taken += self._taken([each])
                    break
            if ready:
                self._turns.append(identity)
        return taken

    def next_release_ns(self, now_ns: int) -> int | None:
        """When a message is due; None: no message is pending."""
        if self._turns:
            return now_ns
        while self._held and not self._is_pending(self._held[0][2]):
            heappop(self._held)
        return self._held[0][0] if self._held else None

    # ---- recovery: first what was decided, then what is pending ----

    def restore_decided(self, producer: Producer, number: int, *, is_cancelled: bool, now_ns: int) -> None:
        """A message was decided before the restart."""
        known = self._made(producer, now_ns)
        known.next_number = max(known.next_number, number + 1)
        if is_cancelled:
            self._remember_cancelled(known, number)

    def restore_pending(self, contribution: Contribution, now_ns: int) -> None:
        """A message was accepted before the restart, and was pending."""
        known = self._made(contribution.producer, now_ns)
        known.next_number = max(known.next_number, contribution.number + 1)
        self._add(contribution, self._contributors[contribution.producer.identity], known, now_ns)

    # ---- inside ----

    def _find(self, producer: Producer) -> _Producer | None:
        contributor = self._contributors.get(producer.identity)
        return None if contributor is None else contributor.producers.get(producer.name)

    def _producer(self, producer: Producer) -> _Producer:
        return self._contributors[producer.identity].producers[producer.name]

    def _made(self, producer: Producer, now_ns: int) -> _Producer:
        if producer.identity not in self._contributors:
            self._contributors[producer.identity] = _Contributor(self.limits, now_ns)
        return self._contributors[producer.identity].producers.setdefault(producer.name, _Producer())

    def _require_open(self, producer: Producer, instance: bytes) -> _Producer:
        known = self._find(producer)
        if known is None or not known.instance:
            raise ContributionRefused(Why.NOT_OPEN, f"producer {producer.name!r} is not open; open it first")
        if known.instance != instance:
            raise ContributionRefused(
                Why.SUPERSEDED,
                f"another process has opened producer {producer.name!r} since; give each process a name of its own",
            )
        return known

    def _require_room(self, identity: str, count: int, size: int) -> None:
        contributor, limits = self._contributors[identity], self.limits
        text = ""
        if contributor.pending_count + count > limits.pending_count_max:
            text = f"{contributor.pending_count} messages of {identity} are pending; at most {limits.pending_count_max}"
        elif contributor.pending_size + size > limits.pending_size_max:
            text = f"{contributor.pending_size} bytes of {identity} are pending; at most {limits.pending_size_max}"
        elif self.pending_count + count > limits.stream_pending_count_max:
            text = f"{self.pending_count} messages are pending; at most {limits.stream_pending_count_max}"
        if text:
            raise ContributionRefused(Why.LIMIT, f"{text} may be; retry when some have been sent, or cancel some")

    def _add(self, each: Contribution, contributor: _Contributor, known: _Producer, now_ns: int) -> None:
        known.pending[each.number] = each
        contributor.pending_count += 1
        contributor.pending_size += len(each.message)
        self.pending_count += 1
        if each.release_at_ns > now_ns:
            heappush(self._held, (each.release_at_ns, each.item_id, each))
        else:
            self._make_ready(each)

    def _make_ready(self, each: Contribution) -> None:
        ready = self._contributors[each.producer.identity].ready
        if not ready:
            self._turns.append(each.producer.identity)
        ready.append(each)

    def _release_held(self, now_ns: int) -> None:
        while self._held and self._held[0][0] <= now_ns:
            each = heappop(self._held)[2]
            if self._is_pending(each):
                self._make_ready(each)

    def _is_pending(self, each: Contribution) -> bool:
        return each.number in self._producer(each.producer).pending

    def _taken(self, taken: list[Contribution]) -> list[Contribution]:
        for each in taken:
            contributor = self._contributors[each.producer.identity]
            del contributor.producers[each.producer.name].pending[each.number]
            contributor.pending_count -= 1
            contributor.pending_size -= len(each.message)
            self.pending_count -= 1
        return taken

    def _forget_cancelled(self, identity: str) -> None:
        """Drop what was cancelled from the lists of what is to come, once it is most of them."""
        contributor = self._contributors[identity]
        if len(contributor.ready) > 2 * contributor.pending_count + DEAD_ENTRIES_MAX:
            contributor.ready = deque(filter(self._is_pending, contributor.ready))
            if not contributor.ready:
                self._turns.remove(identity)
        if len(self._held) > 2 * self.pending_count + DEAD_ENTRIES_MAX:
            self._held = [each for each in self._held if self._is_pending(each[2])]
            heapify(self._held)

    @staticmethod
    def _remember_cancelled(known: _Producer, number: int) -> None:
        known.cancelled.add(number, number + 1)
        if known.cancelled.range_count > REMEMBERED_RANGES_MAX:
            known.cancelled.truncate_before(next(iter(known.cancelled))[1])

    def producers(self) -> Iterator[tuple[Producer, bytes, int]]:
        """All producers: (producer, instance, next number)."""
        for identity, contributor in self._contributors.items():
            for name, known in contributor.producers.items():
                yield Producer(identity, name), known.instance, known.next_number

    def pending(self) -> Iterator[Contribution]:
        """All that is pending."""
        for contributor in self._contributors.values():
            for known in contributor.producers.values():
                yield from known.pending.values()
