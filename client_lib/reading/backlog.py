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
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib.items import Batch, Filled, Item
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.reading.lag import Disconnected, Dropped, Lag, LagEnded, Lagging, LagPolicy
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE
from tandemfeed.feedcore.documents.symbol_words import symbol_columns
from tandemfeed.feedcore.wire.refusal import PacketRefused

Place = tuple[int, int]  # channel, session


@dataclass(slots=True)
class _Loss:
    """What was dropped of one channel and session since the application was last told."""

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
        """Keep only the newest message of each key. Batches without a message left are removed; the newest of each
        channel stays, for its position."""
        batches = list(self._batches())
        masks = newest_of_each_key([batch for _, batch in batches], self._policy.conflate_by)
        items: list[Item | None] = list(self._items)
        emptied: dict[Place, tuple[int, Batch]] = {}
        for (at, batch), mask in zip(batches, masks, strict=True):
            place = batch.channel_id, batch.packet.session
            chosen = batch
            if not mask.all():
                with suppress(PacketRefused):  # a batch that cannot be cut stays whole
                    chosen = batch.chosen(mask)
            self._conflated_count += batch.message_count - chosen.message_count
            self._message_count -= batch.message_count - chosen.message_count
            if place in emptied:
                former_at, former = emptied.pop(place)
                items[former_at] = None
                chosen.skip(former)
            items[at] = chosen
            if not chosen.message_count:
                emptied[place] = at, chosen
        self._items = deque(item for item in items if item is not None)

    def _skip(self, batch: Batch) -> None:
        """Remember a removed batch for the next one of its channel."""
        self._skipped.setdefault((batch.channel_id, batch.packet.session), {}).update(batch.next_source_seqs())

    def _pass_skipped(self, batch: Batch) -> None:
        skipped = self._skipped.pop((batch.channel_id, batch.packet.session), None)
        if skipped is not None:
            batch.skipped = {**skipped, **batch.skipped}


def check_key(policy: LagPolicy, decoder: Decoder) -> None:
    """Refuse a policy whose key no message has.

    Raises:
        ValueError.
    """
    if policy.on_lag == "conflate" and not symbol_columns(decoder.model, policy.conflate_by):
        messages = decoder.model.schema.messages.values()
        fields = sorted({name for each in messages for name in each.columns if symbol_columns(decoder.model, name)})
        raise ValueError(
            f"conflate_by is {policy.conflate_by!r}; no message has such a field of text or integers; "
            f"there are {', '.join(fields) or 'none'}"
        )


def newest_of_each_key(batches: list[Batch], key: str) -> list[NDArray[np.bool_]]:
    """For each message of each batch, whether no later one has the same channel, type and key. A message without the
    key is kept."""
    masks = [np.ones(batch.message_count, np.bool_) for batch in batches]
    values: dict[tuple[int, int, str], list[NDArray[np.generic]]] = {}
    places: dict[tuple[int, int, str], list[tuple[int, int]]] = {}  # (batch, its message) of each value
    for at, batch in enumerate(batches):
        model = batch.model
        columns = symbol_columns(model, key)
        message_at = 0
        for message, length, run in model.stretches(batch.payload):
            count = max(len(run) // length, 1) if length else 1
            column = None if message is None else columns.get(message.template_id)
            if message is not None and column is not None and length >= PREFIX_SIZE + column.offset + column.size:
                code = column.numpy_code("<")
                of_type = batch.channel_id, message.template_id, code
                found = np.ndarray((count,), code, run, PREFIX_SIZE + column.offset, (length,))
                values.setdefault(of_type, []).append(found)
                places.setdefault(of_type, []).extend((at, message_at + each) for each in range(count))
            message_at += count
        if message_at != batch.message_count:  # an adapter framed its messages incorrectly
            return masks
    for of_type, parts in values.items():
        whole = np.concatenate(parts)
        _, newest = np.unique(whole[::-1], return_index=True)
        is_newest = np.zeros(len(whole), np.bool_)
        is_newest[len(whole) - 1 - newest] = True
        for (at, message_at), is_kept in zip(places[of_type], is_newest.tolist(), strict=True):
            masks[at][message_at] &= is_kept
    return masks


def _message_count(item: Item) -> int:
    if isinstance(item, Batch):
        return item.message_count
    return item.batch.message_count if isinstance(item, Filled) else 0
