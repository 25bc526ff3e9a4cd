"""Compiled code that appenders run per record or segment: append, and roll forward. Also writes a queue's segments.

Addresses are plain integers: of a mapped block (`block`) and of the mapped control file (`control`). The caller keeps
the maps alive. Never waits: if the lock is held, it returns BUSY, and the caller waits.

Invariants: a segment's length word is stored last, after all its bytes and the zero word after them; the words in the
control file never point beyond published segments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tandemfeed.journal.compiled.compiling import compiled
from tandemfeed.journal.compiled.memory import (
    address_of,
    compare_and_swap64,
    crc_copy,
    crc_of,
    load32,
    load32_acquire,
    load64,
    load64_acquire,
    store32,
    store32_release,
    store64,
    store64_release,
)
from tandemfeed.journal.format.layout import (
    COUNT_MASK,
    CRC_FROM,
    DATA_OFFSET,
    END,
    END_MARK,
    HAS_TABLE,
    HEADER_CYCLE,
    HEADER_DATA_END,
    HEADER_INDEX_OFFSET,
    HEADER_INDEX_STRIDE,
    HEADER_PART,
    HEADER_SALT,
    HEADER_SEQUENCE_BITS,
    INDEX_ENTRY_SIZE,
    LAST_AT,
    LINK_SIZE,
    LOCK,
    NEXT_SEQUENCE,
    ORDINAL,
    PART_BITS,
    SEGMENT_SIZE,
)

# Results of the appending kernels other than an index.
BUSY, STALE, FULL, ROLL = -1, -2, -3, -4

# Why a walk over segments ended: nothing more yet; end mark; wrong CRC; encrypted segment; the caller's arrays are
# full; records of another size, or of several sizes.
WAIT, ENDED, BROKEN, SEALED, FILLED, MIXED = 0, 1, 2, 3, 4, 5

# Places in the state array of a walk.
AT_OFFSET, AT_SKIP, AT_SEQUENCE, AT_TIME, AT_STATUS, AT_LINK, AT_SIZE, AT_COUNT = range(8)
STATE_SIZE = 8


def new_state() -> np.ndarray[Any, np.dtype[np.int64]]:
    """The state array of a walk."""
    return np.zeros(STATE_SIZE, np.int64)


@njit(inline="always")
def is_whole(block: int, offset: int, length: int, limit: int) -> bool:
    """True if a segment of this length ends at or before `limit`, and its CRC is correct.

    The CRC begins with the block's salt, so that segments of other blocks or journals are invalid here.
    """
    if length < SEGMENT_SIZE or offset + length > limit:
        return False
    crc = crc_of(load32(block + HEADER_SALT), block + offset + CRC_FROM, length - CRC_FROM)
    return crc == load32(block + offset + 4)


@njit(inline="always")
def _index(block: int, offset: int, sequence: int, at_ns: int) -> None:
    """Add a sparse index entry for the first segment of each stretch of the data area."""
    entry = (offset - DATA_OFFSET) // load64(block + HEADER_INDEX_STRIDE)
    place = block + load64(block + HEADER_INDEX_OFFSET) + entry * INDEX_ENTRY_SIZE
    if load64(place + 16) == 0:
        store64(place, sequence)
        store64(place + 8, at_ns)
        store64_release(place + 16, offset)


@njit(inline="always")
def _write_segment(
    place: int, salt: int, sequence: int, at_ns: int,
    table: int, table_size: int, data: int, data_size: int, count_and_flags: int, record_size: int,
) -> None:  # fmt: skip
    """Write a segment at an address, except its length word, which publishes it: the caller stores that last."""
    store64(place + 8, sequence)
    store64(place + 16, at_ns)
    store32(place + 24, count_and_flags)
    store32(place + 28, record_size)
    crc = crc_of(salt, place + CRC_FROM, SEGMENT_SIZE - CRC_FROM)
    if table_size:
        crc = crc_copy(crc, place + SEGMENT_SIZE, table, table_size)
    crc = crc_copy(crc, place + SEGMENT_SIZE + table_size, data, data_size)
    store32(place + 4, crc)


@njit
def _publish(
    control: int, block: int, now_ns: int, cycle_end_ns: int,
    table: int, table_size: int, data: int, data_size: int, count_and_flags: int, record_size: int,
) -> int:  # fmt: skip
    """Append a segment and return the index of its first record. The caller holds the lock."""
    cycle = load64(block + HEADER_CYCLE)
    if load64(control + ORDINAL) != cycle << PART_BITS | load32(block + HEADER_PART):
        return STALE
    if now_ns >= cycle_end_ns:
        return ROLL
    offset = load64(control + END)
    length = SEGMENT_SIZE + table_size + data_size
    end = (offset + length + 7) & -8
    if end + LINK_SIZE > load64(block + HEADER_DATA_END):
        return FULL
    sequence = load64(control + NEXT_SEQUENCE)
    at_ns = max(now_ns, load64(control + LAST_AT))  # time never goes back within a journal
    place = block + offset
    store32(block + end, 0)
    _write_segment(
        place, load32(block + HEADER_SALT), sequence, at_ns,
        table, table_size, data, data_size, count_and_flags, record_size,
    )  # fmt: skip
    _index(block, offset, sequence, at_ns)
    store32_release(place, length)
    store64(control + END, end)
    store64(control + NEXT_SEQUENCE, sequence + (count_and_flags & COUNT_MASK))
    store64(control + LAST_AT, at_ns)
    return cycle << load32(block + HEADER_SEQUENCE_BITS) | sequence


@compiled()
def append_one(control: int, block: int, holder: int, now_ns: int, cycle_end_ns: int, record: Any) -> int:
    """Append one record as a segment; return its index, or BUSY, STALE, FULL or ROLL."""
    if compare_and_swap64(control + LOCK, 0, holder) != 0:
        return BUSY
    size = len(record)
    index = _publish(control, block, now_ns, cycle_end_ns, 0, 0, address_of(record), size, 1, size)
    store64_release(control + LOCK, 0)
    return index


@compiled()
def append_several(
    control: int, block: int, holder: int, now_ns: int, cycle_end_ns: int, ends: Any, data: Any, count: int
) -> int:  # fmt: skip
    """Append a few joined records as one segment; return the first one's index, or BUSY, STALE, FULL or ROLL.

    Args:
        ends: where each of them ends in `data`, 4 bytes each.
    """
    if compare_and_swap64(control + LOCK, 0, holder) != 0:
        return BUSY
    index = _publish(
        control, block, now_ns, cycle_end_ns,
        address_of(ends), len(ends), address_of(data), len(data), count | HAS_TABLE, 0,
    )  # fmt: skip
    store64_release(control + LOCK, 0)
    return index


@compiled(nogil=True)
def append_pieces(
    control: int, block: int, now_ns: int, cycle_end_ns: int,
    table: int, table_size: int, data: int, data_size: int, count_and_flags: int, record_size: int,
) -> int:  # fmt: skip
    """Append a segment whose body is a table and data, given by address. The caller holds the lock; other threads run.

    Returns:
        The index of the first record, or STALE, FULL, ROLL.
    """
    return _publish(
        control, block, now_ns, cycle_end_ns, table, table_size, data, data_size, count_and_flags, record_size
    )


@compiled()
def write_segment_into(
    target: Any, salt: int, sequence: int, at_ns: int, body: Any, count_and_flags: int, record_size: int
) -> None:
    """Fill an array with a segment, zeros up to a multiple of 8, and a zero word, for a system call that stores it."""
    place, end = address_of(target), (SEGMENT_SIZE + len(body) + 7) & -8
    store64(place + end - 8, 0)
    store64(place + end, 0)
    _write_segment(place, salt, sequence, at_ns, 0, 0, address_of(body), len(body), count_and_flags, record_size)
    store32(place, SEGMENT_SIZE + len(body))


@compiled()
def add_index_entry(block: int, offset: int, sequence: int, at_ns: int) -> None:
    """Add a sparse index entry for a segment at this offset, if it is the first of its stretch."""
    _index(block, offset, sequence, at_ns)


@compiled()
def take_lock(word: int, expected: int, holder: int) -> bool:
    """Take a lock, given its word's address, if its holder is `expected` (0, or a dead holder)."""
    return compare_and_swap64(word, expected, holder) == expected


@compiled()
def release_lock(control: int) -> None:
    """Release the appenders' lock."""
    store64_release(control + LOCK, 0)


@compiled()
def store_word(address: int, value: int) -> None:
    """Store an aligned word that other processes read."""
    store64_release(address, value)


@compiled()
def load_word(address: int) -> int:
    """Load an aligned word that other processes write."""
    return load64_acquire(address)


def load_appending(control: int, block: int, holder: int) -> None:
    """Load the functions for appending now: 3 to 5 ms each, for which the first record and the first roll would wait.

    Also the one with which a later process recovers: otherwise that process would compile it, for seconds. Appends
    nothing, because the time and the end of the cycle are 0, and walks over an empty block.
    """
    if take_lock(control + LOCK, 0, holder):
        release_lock(control)
    append_pieces(control, block, 0, 0, 0, 0, 0, 0, 0, 0)
    append_one(control, block, holder, 0, 0, b"")
    append_several(control, block, holder, 0, 0, b"", b"", 0)
    empty = np.zeros(DATA_OFFSET, np.uint8)
    roll_forward(empty.ctypes.data, new_state())


@compiled(nogil=True)
def roll_forward(block: int, state: Any) -> int:
    """Walk whole segments from AT_OFFSET, where AT_SEQUENCE is expected; return their number, and set AT_STATUS."""
    data_end = load64(block + HEADER_DATA_END)
    offset, sequence, count, status = state[AT_OFFSET], state[AT_SEQUENCE], 0, WAIT
    while offset + LINK_SIZE <= data_end:
        length = load32_acquire(block + offset)
        if length == 0:
            break
        if length == END_MARK:
            status = ENDED
            state[AT_LINK] = load64(block + offset + 8)
            break
        first = load64(block + offset + 8)
        if first != sequence or not is_whole(block, offset, length, data_end):
            status = BROKEN
            break
        state[AT_TIME] = load64(block + offset + 16)
        _index(block, offset, first, state[AT_TIME])
        sequence += load32(block + offset + 24) & COUNT_MASK
        offset = (offset + length + 7) & -8
        count += 1
    state[AT_OFFSET], state[AT_SEQUENCE], state[AT_STATUS] = offset, sequence, status
    return count
