"""What a queue writes into a block's data area, made in memory. PURE.

Items are records, one segment for all items of a group. A note is a segment of no records: it says what became of items
of any block. Readers of records go over it without noticing.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

import google_crc32c

from journal.errors import RecordTooLong
from journal.layout import COUNT_MASK, CRC, CRC_FROM, HAS_TABLE, RECORD_SIZE_MAX, SEGMENT, SEGMENT_SIZE, aligned

ITEM_ROOM = 32  # bytes of the data area that an item takes at least, so that the state area holds every item's bits
STATE_SHARE = ITEM_ROOM * 4  # bytes of a block for each byte of its state area: 4 items
CHANGE_COUNT_MAX = 4_096  # changes in one note: 64 KiB, which the smallest block holds
ZERO_BEHIND = bytes(8)  # the length word behind the last segment: nothing yet
KIND_BITS = 2
_NATIVE = array("Q")
assert sys.byteorder == "little"
assert _NATIVE.itemsize == 8
assert RECORD_SIZE_MAX // ITEM_ROOM <= COUNT_MASK


def state_size_for(data_size: int) -> int:
    """Bytes of state area, in whole pages, for a block with so many bytes of data."""
    return (data_size // STATE_SHARE + 4_095) & ~4_095


def items_body(items: Sequence[bytes]) -> tuple[bytes, int, int]:
    """(body, count and flags, record size) of a segment.

    Raises:
        RecordTooLong
    """
    size, count = len(items[0]), len(items)
    if max(sum(map(len, items)) + 4 * count, ITEM_ROOM * count) > RECORD_SIZE_MAX + 4:
        raise RecordTooLong(f"{count} items, too much at once: they may have {RECORD_SIZE_MAX} bytes together")
    if len(set(map(len, items))) == 1:
        body, flags = (items[0] if count == 1 else b"".join(items)), count
    else:
        table = array("I", accumulate(map(len, items)))
        body, flags, size = table.tobytes() + b"".join(items), count | HAS_TABLE, 0
    return body.ljust(ITEM_ROOM * (count - 1), b"\0"), flags, size


def segment(salt: int, sequence: int, at_ns: int, body: bytes, count_and_flags: int, record_size: int) -> bytes:
    """A segment as it is stored, with the zero that is to follow it."""
    length = SEGMENT_SIZE + len(body)
    head = SEGMENT.pack(length, 0, sequence, at_ns, count_and_flags, record_size)
    # The kernels run the CRC without the inversions before and after; here they are undone.
    crc = google_crc32c.extend(~salt & 0xFFFF_FFFF, head[CRC_FROM:])
    crc = ~google_crc32c.extend(crc, body) & 0xFFFF_FFFF
    padding = bytes(aligned(length) - length)
    return b"".join((head[:4], CRC.pack(crc), head[CRC_FROM:], body, padding, ZERO_BEHIND))


class Changes:
    """State changes in the order in which they happened, to be noted: bits for a range of ids each."""

    def __init__(self) -> None:
        self._words: list[int] = []

    def __len__(self) -> int:
        return len(self._words) // 2

    def add(self, first_id: int, end_id: int, bits: int) -> None:
        """The pending items from `first_id` to before `end_id` got these bits."""
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
