"""Compiled code that lists and checks the segments of a block. Reads no records, only their lengths. Read-only.

Like the walks in reading.py, but lists segments instead of records. Addresses are plain integers; the caller keeps the
map alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tandemfeed.journal.compiled.compiling import compiled
from tandemfeed.journal.compiled.kernels import AT_LINK, AT_OFFSET, AT_STATUS, BROKEN, ENDED, FILLED, WAIT, is_whole
from tandemfeed.journal.compiled.memory import load32, load32_acquire, load64
from tandemfeed.journal.format.layout import (
    COUNT_MASK,
    END_MARK,
    HAS_TABLE,
    HEADER_DATA_END,
    IS_SEALED,
    LINK_SIZE,
    SEGMENT_SIZE,
)

# Columns that a walk fills.
OFFSET, LENGTH, FIRST_SEQUENCE, APPENDED_AT, FLAGS, RECORD_SIZE, IS_CONSISTENT = range(7)
COLUMN_COUNT = 7


def new_columns(capacity: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """An array for `capacity` segments, with a row for each column."""
    return np.empty((COLUMN_COUNT, capacity), np.int64)


@njit
def _fits(block: int, body: int, size: int, flags: int, record_size: int) -> bool:
    """True if the records' lengths fit the body. (A queue pads small records, and its notes have none.)

    Always true for an encrypted body, whose lengths are unknown.
    """
    count = flags & COUNT_MASK
    if flags & IS_SEALED:
        return True
    if not flags & HAS_TABLE:
        return count * record_size <= size
    if 4 * count > size:
        return False
    begin = 0
    for place in range(count):
        end = load32(block + body + 4 * place)
        if end < begin:
            return False
        begin = end
    return 4 * count + begin <= size


@compiled(nogil=True)
def walk_segments(block: int, state: Any, columns: Any) -> int:
    """List whole segments from AT_OFFSET on; return their number.

    Args:
        state: AT_OFFSET is the offset after them; AT_STATUS says why there are no more (WAIT, ENDED with AT_LINK,
            BROKEN, or FILLED if the columns are full).
        columns: filled, a row for each column.
    """
    data_end = load64(block + HEADER_DATA_END)
    offset, count, status = state[AT_OFFSET], 0, FILLED
    while count < columns.shape[1]:
        length = 0
        if offset + LINK_SIZE <= data_end:
            length = load32_acquire(block + offset)
        if length == 0:
            status = WAIT
            break
        if length == END_MARK:
            status = ENDED
            state[AT_LINK] = load64(block + offset + 8)
            break
        if not is_whole(block, offset, length, data_end):
            status = BROKEN
            break
        flags, record_size = load32(block + offset + 24), load32(block + offset + 28)
        columns[OFFSET, count] = offset
        columns[LENGTH, count] = length
        columns[FIRST_SEQUENCE, count] = load64(block + offset + 8)
        columns[APPENDED_AT, count] = load64(block + offset + 16)
        columns[FLAGS, count] = flags
        columns[RECORD_SIZE, count] = record_size
        columns[IS_CONSISTENT, count] = _fits(block, offset + SEGMENT_SIZE, length - SEGMENT_SIZE, flags, record_size)
        offset = (offset + length + 7) & -8
        count += 1
    state[AT_OFFSET], state[AT_STATUS] = offset, status
    return count
