"""The items that a subscription has received and its application has not taken; bounded by a `LagPolicy`. Pure.

Beyond the limit, the oldest messages are dropped, or all but the newest of each key, until at most half of the limit
remains; so the work is small for each message, however slow the application is. Messages keep their order, events their
place among them. `Dropped` precedes what was received after the dropped messages.

Invariant: every message that is put is taken, dropped (and named by `Dropped`), conflated (and counted) or discarded
with `Disconnected`. A batch knows the source messages that were removed before it (`Batch.skipped`), so that a durable
cursor moves past them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tandemfeed.client_lib.items import Batch, Filled, Item
from tandemfeed.client_lib.reading.conflation import conflated
from tandemfeed.client_lib.reading.lag import Disconnected, Dropped, Lag, LagEnded, Lagging, LagPolicy

Place = tuple[int, int]  # channel, session


@dataclass(slots=True)
class _Loss:
    """What was dropped of one channel and session since the last report to the application."""

    first_message_seq: int
    end_message_seq: int
    message_count: int = 0
    sources: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        self.end_message_seq = batch.end_message_seq
        self.message_count += batch.message_count
        for stream, first, end, *_ in batch.sources():
            self.sources[stream] = self.sources.get(stream, (first, end))[0], end

    def event(self, place: Place) -> Dropped:
        sources = tuple((stream, first, end) for stream, (first, end) in sorted(self.sources.items()))
        return Dropped(*place, self.first_message_seq, self.end_message_seq, self.message_count, sources)


class Backlog:
    """Not thread-safe.

    Attributes:
        is_over: no more items are wanted, because the application is disconnected.
    """

    def __init__(self, policy: LagPolicy) -> None:
        self._policy = policy
        self._items: deque[Item] = deque()
        self._message_count = 0
        self._losses: dict[Place, _Loss] = {}
        self._skipped: dict[Place, dict[int, int]] = {}  # next source_seqs after removed batches, for the next batch
        self._dropped_count = self._conflated_count = 0
        self._before_lag: tuple[int, int] | None = None  # these counts when the present lag began
        self.is_over = False

    def __bool__(self) -> bool:
        return bool(self._items or self._losses)

    def lag(self, now_ns: int) -> Lag:
        """How far the application is behind."""
        oldest = next((batch for _, batch in self._batches()), None)
        age_ns = 0 if oldest is None else now_ns - oldest.received_monotonic_ns
        return Lag(self._message_count, age_ns, self._dropped_count, self._conflated_count)

    def put(self, items: Iterable[Item]) -> None:
        """Add what was received."""
        for item in items:
            self._items.append(item)
            self._message_count += _message_count(item)
        if self._message_count * 2 > self._policy.count_max and self._before_lag is None:
            self._before_lag = self._dropped_count, self._conflated_count
            self._items.appendleft(Lagging(self._message_count))
        if self._message_count > self._policy.count_max:
            self._shorten()

    def take(self, count_max: int) -> list[Item]:
        """The next items, at most about this many."""
        taken: list[Item] = [loss.event(place) for place, loss in self._losses.items()]
        self._losses.clear()
        while self._items and len(taken) < count_max:
            item = self._items.popleft()
            self._message_count -= _message_count(item)
            if isinstance(item, Batch) and self._skipped:
                self._pass_skipped(item)
            taken.append(item)
        if self._before_lag is not None and not self._items:
            dropped_before, conflated_before = self._before_lag
            self._before_lag = None
            taken.append(LagEnded(self._dropped_count - dropped_before, self._conflated_count - conflated_before))
        return taken

    # ---- inside ----

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        """The batches in order of arrival, and their places among the items."""
        return ((at, item) for at, item in enumerate(self._items) if isinstance(item, Batch))

    def _shorten(self) -> None:
        if self._policy.on_lag == "disconnect":
            self._disconnect()
            return
        if self._policy.on_lag == "conflate":
            self._conflate()
        if self._message_count * 2 > self._policy.count_max:
            self._drop()

    def _disconnect(self) -> None:
        count = self._message_count
        reason = (
            f"{count} messages waited for the application, of which at most {self._policy.count_max} may: "
            "handle them faster, or choose another on_lag or lag_max"
        )
        self._items = deque([Disconnected(count, reason)])
        self._message_count, self._before_lag, self.is_over = 0, None, True

    def _drop(self) -> None:
        """Drop the oldest messages until at most half of the limit remains; events stay."""
        kept: list[Item] = []
        while self._message_count * 2 > self._policy.count_max and len(self._items) > 1:  # the newest stays
            item = self._items.popleft()
            count = _message_count(item)
            self._message_count -= count
            self._dropped_count += count
            if not isinstance(item, Batch | Filled):
                kept.append(item)
                continue
            batch = item.batch if isinstance(item, Filled) else item
            place = batch.channel_id, batch.packet.session
            loss = self._losses.setdefault(place, _Loss(batch.first_message_seq, batch.first_message_seq))
            loss.add(batch)
            if batch is item:
                self._skip(batch)
        self._items.extendleft(reversed(kept))

    def _conflate(self) -> None:
        """Keep only the newest message of each key."""
        items: list[Item | None] = list(self._items)
        batches = dict(self._batches())
        all_left = conflated(list(batches.values()), self._policy.conflate_by, keeps_keyless=True)
        for (place, batch), left in zip(batches.items(), all_left, strict=True):
            removed_count = batch.message_count - (0 if left is None else left.message_count)
            self._conflated_count += removed_count
            self._message_count -= removed_count
            items[place] = left
        self._items = deque(item for item in items if item is not None)

    def _skip(self, batch: Batch) -> None:
        """Remember a removed batch for the next one of its channel."""
        self._skipped.setdefault((batch.channel_id, batch.packet.session), {}).update(batch.next_source_seqs())

    def _pass_skipped(self, batch: Batch) -> None:
        skipped = self._skipped.pop((batch.channel_id, batch.packet.session), None)
        if skipped is not None:
            batch.skipped = {**skipped, **batch.skipped}


def _message_count(item: Item) -> int:
    if isinstance(item, Batch):
        return item.message_count
    return item.batch.message_count if isinstance(item, Filled) else 0
