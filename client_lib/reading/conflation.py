"""Keeps the newest message of each key. Pure.

A batch whose messages are all superseded is removed; the next batch of its channel then knows the source messages that
were removed before it (`Batch.skipped`). Messages keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib.items import Batch
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE
from tandemfeed.feedcore.documents.symbol_words import symbol_columns
from tandemfeed.feedcore.wire.refusal import PacketRefused

SNAPSHOT_COUNT_MIN = 50_000  # messages to collect before all but the newest are removed


def check_key(key: str, decoder: Decoder) -> None:
    """Refuse a key that no message has.

    Raises:
        ValueError.
    """
    if not symbol_columns(decoder.model, key):
        messages = decoder.model.schema.messages.values()
        fields = sorted({name for each in messages for name in each.columns if symbol_columns(decoder.model, name)})
        raise ValueError(
            f"conflate_by is {key!r}; no message has such a field of text or integers; "
            f"there are {', '.join(fields) or 'none'}"
        )


def conflated(batches: Sequence[Batch], key: str, *, keeps_keyless: bool) -> list[Batch | None]:
    """For each batch, what is left of it; None: nothing. Batches that end up empty are removed, except for the last of
    its channel and session, for its position.

    Args:
        keeps_keyless: keep all messages without the key; else, the newest of each type.
    """
    left: list[Batch | None] = []
    emptied: dict[tuple[int, int], int] = {}
    for batch, mask in zip(batches, newest_of_each_key(batches, key, keeps_keyless=keeps_keyless), strict=True):
        place = batch.channel_id, batch.packet.session
        chosen = batch
        if not mask.all():
            with suppress(PacketRefused):  # a batch that cannot be cut stays whole
                chosen = batch.chosen(mask)
        if (former_at := emptied.pop(place, None)) is not None:
            former, left[former_at] = left[former_at], None
            assert former is not None
            chosen.skip(former)
        left.append(chosen)
        if not chosen.message_count:
            emptied[place] = len(left) - 1
    return left


def newest_of_each_key(batches: Sequence[Batch], key: str, *, keeps_keyless: bool) -> list[NDArray[np.bool_]]:
    """For each message of each batch, whether no later one has the same channel, type and key."""
    masks = [np.ones(batch.message_count, np.bool_) for batch in batches]
    values: dict[tuple[int, int, str], list[NDArray[np.generic]]] = {}
    places: dict[tuple[int, int, str], list[tuple[int, int]]] = {}  # (batch, its message) of each value
    for at, batch in enumerate(batches):
        columns = symbol_columns(batch.model, key)
        message_at = 0
        for message, length, run in batch.model.stretches(batch.payload):
            count = max(len(run) // length, 1) if length else 1
            column = None if message is None else columns.get(message.template_id)
            found: NDArray[np.generic] | None = None
            if column is not None and length >= PREFIX_SIZE + column.offset + column.size:
                found = np.ndarray((count,), column.numpy_code("<"), run, PREFIX_SIZE + column.offset, (length,))
            elif message is not None and not keeps_keyless:
                found = np.zeros(count, np.bool_)
            if message is not None and found is not None:
                of_type = batch.channel_id, message.template_id, found.dtype.str
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


class SnapshotIntake:
    """Collects one channel's history, and keeps the newest message of each type and key.

    Its memory is bounded by the number of keys: what is superseded is removed whenever half of it may be.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._batches: list[Batch] = []
        self._message_count, self._count_max = 0, SNAPSHOT_COUNT_MIN

    def add(self, batch: Batch) -> None:
        """Add the next batch."""
        self._batches.append(batch)
        self._message_count += batch.message_count
        if len(self._batches) + self._message_count > self._count_max:  # empty batches need memory, too
            self._conflate()
            self._count_max = max(SNAPSHOT_COUNT_MIN, 2 * (len(self._batches) + self._message_count))

    def take(self) -> list[Batch]:
        """The snapshot, in stream order."""
        self._conflate()
        return self._batches

    def _conflate(self) -> None:
        left = conflated(self._batches, self._key, keeps_keyless=False)
        self._batches = [each for each in left if each is not None]
        self._message_count = sum(each.message_count for each in self._batches)
