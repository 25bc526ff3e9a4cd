"""Compiled code that readers run per record or segment: look up records, seek, walk, skip damage. Read-only.

Addresses are plain integers, of mapped blocks. The state of a walk is an array from `kernels.new_state`. A segment is
read only after its length was loaded, in acquire order, and its records are returned only if its CRC matches.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit

from tandemfeed.journal.compiled.compiling import compiled
from tandemfeed.journal.compiled.kernels import (
    AT_COUNT,
    AT_LINK,
    AT_OFFSET,
    AT_SEQUENCE,
    AT_SIZE,
    AT_SKIP,
    AT_STATUS,
    BROKEN,
    ENDED,
    FILLED,
    MIXED,
    SEALED,
    WAIT,
    is_whole,
    new_state,
)
from tandemfeed.journal.compiled.memory import load32, load32_acquire, load64, load64_acquire
from tandemfeed.journal.format.layout import (
    COUNT_MASK,
    DATA_OFFSET,
    END_MARK,
    HAS_TABLE,
    HEADER_DATA_END,
    HEADER_INDEX_OFFSET,
    INDEX_ENTRY_COUNT,
    INDEX_ENTRY_SIZE,
    IS_SEALED,
    LINK_SIZE,
    SEGMENT_SIZE,
)

SEQUENCE_JUMP_MAX = 1 << 32  # after damage, a segment is accepted if its sequence is at most this much higher


@compiled(nogil=True)
def read_ahead(
    block: int, offset: int, skip: int, sequence_limit: int, starts: Any, sizes: Any, times: Any, state: Any
) -> int:
    """Find the next records and check their segments: their offsets in the block, sizes and times.

    Args:
        offset: of the first segment; the first `skip` records in it are skipped.
        sequence_limit: records from here on are not visible yet.
        starts, sizes, times: filled, int64.
        state: updated; AT_SEQUENCE is the first record's sequence.

    Returns:
        The number of records, whose sequences are consecutive. If 0, AT_STATUS is WAIT, ENDED, BROKEN or SEALED.
    """
    data_end = load64(block + HEADER_DATA_END)
    capacity, count, status = len(starts), 0, FILLED
    sequence = state[AT_SEQUENCE]
    while count < capacity:
        length = load32_acquire(block + offset)
        if length == 0 or length == END_MARK:
            status = ENDED if length else WAIT
            state[AT_LINK] = load64(block + offset + 8)
            break
        first = load64(block + offset + 8)
        if first + skip >= sequence_limit:
            status = WAIT
            break
        if (count > 0 and first + skip != sequence + count) or not is_whole(block, offset, length, data_end):
            status = BROKEN
            break
        flags = load32(block + offset + 24)
        record_count = flags & COUNT_MASK
        if flags & IS_SEALED:
            status = SEALED
            break
        if count == 0:
            sequence = first + skip
        at_ns = load64(block + offset + 16)
        room = min(record_count - skip, capacity - count, sequence_limit - first - skip)
        body = offset + SEGMENT_SIZE
        if flags & HAS_TABLE:
            data = body + 4 * record_count
            begin = load32(block + body + 4 * (skip - 1)) if skip else 0
            for place in range(skip, skip + room):
                end = load32(block + body + 4 * place)
                starts[count] = data + begin
                sizes[count] = end - begin
                times[count] = at_ns
                begin = end
                count += 1
        else:
            size = load32(block + offset + 28)
            for place in range(skip, skip + room):
                starts[count] = body + place * size
                sizes[count] = size
                times[count] = at_ns
                count += 1
        skip += room
        if skip < record_count:
            break
        offset, skip = (offset + length + 7) & -8, 0
    state[AT_OFFSET], state[AT_SKIP], state[AT_STATUS] = offset, skip, status
    state[AT_SEQUENCE] = sequence
    return count


@compiled(nogil=True)
def read_rows(
    block: int, offset: int, skip: int, sequence_limit: int, count_max: int, starts: Any, counts: Any, times: Any,
    state: Any,
) -> int:  # fmt: skip
    """Find the next records of one size and check their segments: an offset and a count for each segment.

    Args:
        offset, skip, sequence_limit: as for `read_ahead`.
        count_max: maximum number of records.
        starts, counts, times: filled for each segment, int64.
        state: updated; AT_SEQUENCE is the first record's sequence, AT_SIZE their size, AT_COUNT their number.

    Returns:
        The number of segments. If 0, AT_STATUS is the reason.
    """
    data_end = load64(block + HEADER_DATA_END)
    segments, total, status, size = 0, 0, FILLED, -1
    sequence = state[AT_SEQUENCE]
    while segments < len(starts) and total < count_max:
        length = load32_acquire(block + offset)
        if length == 0 or length == END_MARK:
            status = ENDED if length else WAIT
            state[AT_LINK] = load64(block + offset + 8)
            break
        first = load64(block + offset + 8)
        flags, record_size = load32(block + offset + 24), load32(block + offset + 28)
        if first + skip >= sequence_limit:
            status = WAIT
            break
        if flags & (IS_SEALED | HAS_TABLE) or (size >= 0 and record_size != size):
            status = MIXED
            break
        if (total > 0 and first + skip != sequence + total) or not is_whole(block, offset, length, data_end):
            status = BROKEN
            break
        record_count = flags & COUNT_MASK
        if total == 0:
            sequence, size = first + skip, record_size
        room = min(record_count - skip, count_max - total, sequence_limit - first - skip)
        starts[segments] = offset + SEGMENT_SIZE + skip * size
        counts[segments] = room
        times[segments] = load64(block + offset + 16)
        segments += 1
        total += room
        skip += room
        if skip < record_count:
            break
        offset, skip = (offset + length + 7) & -8, 0
    state[AT_OFFSET], state[AT_SKIP], state[AT_STATUS] = offset, skip, status
    state[AT_SEQUENCE], state[AT_SIZE], state[AT_COUNT] = sequence, size, total
    return segments


@compiled(nogil=True)
def find_after_damage(block: int, offset: int, limit: int, sequence: int, state: Any) -> bool:
    """Find the next whole segment after damage at `offset`, before `limit` and at `sequence` or later."""
    candidate = offset + 8
    while candidate + SEGMENT_SIZE <= limit:
        length = load32_acquire(block + candidate)
        first = load64(block + candidate + 8)
        if sequence <= first <= sequence + SEQUENCE_JUMP_MAX and is_whole(block, candidate, length, limit):
            state[AT_OFFSET], state[AT_SKIP], state[AT_SEQUENCE] = candidate, 0, first
            return True
        candidate += 8
    return False


@njit(inline="always")
def _is_entry(block: int, entry: int) -> bool:
    """Whether an index entry is valid: the segment that it names exists."""
    offset = load64_acquire(entry + 16)
    if offset < DATA_OFFSET or offset + SEGMENT_SIZE > load64(block + HEADER_DATA_END):
        return False
    length = load32_acquire(block + offset)
    if length < SEGMENT_SIZE or length == END_MARK:
        return False
    return load64(block + offset + 8) == load64(entry) and load64(block + offset + 16) == load64(entry + 8)


@compiled(nogil=True)
def seek(block: int, target: int, by_time: bool, state: Any) -> bool:
    """Go to the last segment that begins at or before a sequence, or strictly before a time, by the sparse index.

    Walking forward from AT_OFFSET, where AT_SEQUENCE is expected, then finds the target. False: the index has no such
    segment; AT_OFFSET is the block's first segment, and AT_SEQUENCE is unchanged.
    """
    index = block + load64(block + HEADER_INDEX_OFFSET)
    low, high, best = 0, INDEX_ENTRY_COUNT, -1
    while low < high:
        middle = (low + high) // 2
        present = middle
        while present >= low and not _is_entry(block, index + present * INDEX_ENTRY_SIZE):
            present -= 1  # no segment begins in that stretch, or a power loss tore its entry
        if present < low:
            low = middle + 1
            continue
        value = load64(index + present * INDEX_ENTRY_SIZE + (8 if by_time else 0))
        if value < target or (value == target and not by_time):
            best, low = present, middle + 1
        else:
            high = present
    state[AT_SKIP] = 0
    if best < 0:
        state[AT_OFFSET] = DATA_OFFSET
        return False
    state[AT_OFFSET] = load64(index + best * INDEX_ENTRY_SIZE + 16)
    state[AT_SEQUENCE] = load64(index + best * INDEX_ENTRY_SIZE)
    return True


@compiled(nogil=True)
def walk_to(block: int, target: int, by_time: bool, state: Any) -> bool:
    """Walk from AT_OFFSET, where AT_SEQUENCE is expected, to the segment with a sequence, or the first from a time on.

    Follows lengths and sequences; checks CRCs only where sequences jump, and of the result. False: the block ends or is
    damaged before it; AT_STATUS says which, and AT_OFFSET where.
    """
    data_end = load64(block + HEADER_DATA_END)
    offset, due, status = state[AT_OFFSET], state[AT_SEQUENCE], WAIT
    state[AT_SKIP] = 0
    while offset + LINK_SIZE <= data_end:
        length = load32_acquire(block + offset)
        if length == 0:
            break
        if length == END_MARK:
            status = ENDED
            state[AT_LINK] = load64(block + offset + 8)
            break
        first = load64(block + offset + 8)
        count = load32(block + offset + 24) & COUNT_MASK
        is_found = load64(block + offset + 16) >= target if by_time else target < first + count
        if length < SEGMENT_SIZE or offset + length > data_end:
            status = BROKEN
            break
        if (first != due or is_found) and not is_whole(block, offset, length, data_end):
            status = BROKEN
            break
        if is_found:
            due, status = first, FILLED
            state[AT_SKIP] = 0 if by_time else max(target - first, 0)
            break
        due = first + count
        offset = (offset + length + 7) & -8
    state[AT_OFFSET], state[AT_SEQUENCE], state[AT_STATUS] = offset, due, status
    return status == FILLED


@cache
def load_reading() -> None:
    """Load the functions for reading and seeking now: 3 to 5 ms each, for which the first read would wait.

    Also the one that skips damage: otherwise it would be compiled, for seconds, when a crash is to be recovered from.
    Calls them on a block without records.
    """
    empty = np.zeros(max(DATA_OFFSET + SEGMENT_SIZE, INDEX_ENTRY_COUNT * INDEX_ENTRY_SIZE), np.uint8)
    block, state, column = empty.ctypes.data, new_state(), np.empty(1, np.int64)
    seek(block, 0, False, state)
    walk_to(block, 0, False, state)
    read_ahead(block, state[AT_OFFSET], state[AT_SKIP], 0, column, column, column, state)
    read_rows(block, state[AT_OFFSET], state[AT_SKIP], 0, 1, column, column, column, state)
    find_after_damage(block, 0, 0, 0, state)
