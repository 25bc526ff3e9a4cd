"""The segments that a queue writes into a block's data area. Pure.

Items are records; all items of a group form one segment. A note is a segment without records: it has state changes of
items in any block. Readers of records skip it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from tandemfeed.journal.compiled.kernels import write_segment_into
from tandemfeed.journal.errors import RecordTooLong
from tandemfeed.journal.format.layout import (
    COUNT_MASK,
    HAS_TABLE,
    RECORD_SIZE_MAX,
    SEGMENT_SIZE,
    aligned,
)

ITEM_ROOM = 32  # minimum bytes of the data area per item, so that the state area is large enough
STATE_SHARE = ITEM_ROOM * 4  # bytes of a block for each byte of its state area: 4 items
CHANGE_COUNT_MAX = 4_096  # changes in one note: 64 KiB, which fit into the smallest block
END_WORD_SIZE = 8  # the zero length word, and what aligns it
KIND_BITS = 2
_NATIVE = array("Q")
assert sys.byteorder == "little"
assert _NATIVE.itemsize == 8
assert RECORD_SIZE_MAX // ITEM_ROOM <= COUNT_MASK


def state_size_for(data_size: int) -> int:
    """Bytes of state area, in whole pages, for a block with this many bytes of data."""
    return (data_size // STATE_SHARE + 4_095) & ~4_095


def items_body(items: Sequence[bytes]) -> tuple[bytes, int, int]:
    """(body, count and flags, record size) of a segment.

    Raises:
        RecordTooLong
    """
    size, count = len(items[0]), len(items)
    if max(sum(map(len, items)) + 4 * count, ITEM_ROOM * count) > RECORD_SIZE_MAX + 4:
        raise RecordTooLong(f"{count} items exceed {RECORD_SIZE_MAX} bytes together; put fewer")
    if len(set(map(len, items))) == 1:
        body, flags = (items[0] if count == 1 else b"".join(items)), count
    else:
        table = array("I", accumulate(map(len, items)))
        body, flags, size = table.tobytes() + b"".join(items), count | HAS_TABLE, 0
    return body.ljust(ITEM_ROOM * (count - 1), b"\0"), flags, size


def segment(salt: int, sequence: int, at_ns: int, body: bytes, count_and_flags: int, record_size: int) -> memoryview:
    """A segment as stored, followed by a zero length word, which marks the end of the segments."""
    stored = np.empty(aligned(SEGMENT_SIZE + len(body)) + END_WORD_SIZE, np.uint8)
    write_segment_into(stored, salt, sequence, at_ns, body, count_and_flags, record_size)
    return stored.data


class Changes:
    """State changes in order: each sets bits for a range of ids."""

    def __init__(self) -> None:
        self._words: list[int] = []

    def __len__(self) -> int:
        return len(self._words) // 2

    def add(self, first_id: int, end_id: int, bits: int) -> None:
        """Add a change: pending items from `first_id` to before `end_id` get these bits."""
        self._words += (first_id << KIND_BITS | bits, end_id - first_id)

    def bodies(self) -> Iterator[bytes]:
        """The notes' bodies."""
        step = 2 * CHANGE_COUNT_MAX
        for place in range(0, len(self._words), step):
            yield array("Q", self._words[place : place + step]).tobytes()


def changes_in(body: bytes) -> Iterator[tuple[int, int, int]]:
    """(first id, end id, bits) of each change in a note."""
    words = array("Q", body)
    for head, count in zip(words[::2], words[1::2], strict=True):
        first_id = head >> KIND_BITS
        yield first_id, first_id + count, head & ((1 << KIND_BITS) - 1)
