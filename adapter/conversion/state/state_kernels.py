"""Conversion state in one flat int64 array, the arena, and the functions by which kernels find, add and drop its rows.

A key space has a header, an index and rows. A row is its key words, its settled hash and its cells. The index uses open
addressing; an entry is a slot number with 31 bits of hash above it. To double, the index moves a few entries with each
new key, so that no message waits long. Memory for the largest allowed number of rows is reserved at the start; the
operating system provides it when it is first touched.

A row's hash is part of its bucket's digest. Before a row changes, `touch` takes its old hash out of the digest and puts
the row in a queue; `settle` adds the new hash. The kernel keeps the queue short; a digest settles the rest.
"""

from __future__ import annotations

import numpy as np

from tandemfeed.adapter.conversion.kernel.unaligned import prefetch
from tandemfeed.adapter.kernel_cache import compiled, compiled_once, compiled_part

BUCKET_COUNT = 64
MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2**64 / golden ratio, odd (Knuth, TAOCP 6.4)
MIX = np.uint64(0xBF58_476D_1CE4_E5B9)  # from splitmix64's finalizer

# Arena: counts of bad messages by reason, samples of them, digests, then the spaces' headers.
SAMPLE_COUNT = 31  # number of sampled bad messages of this call
SAMPLES = 32  # (frame's position, index and reason) each
SAMPLES_MAX = 32  # per call; Python extracts them from the datagram
DIGESTS = SAMPLES + 2 * SAMPLES_MAX
NEAR_ROWS = DIGESTS + BUCKET_COUNT  # with no more rows than this, all are in the caches: no prefetch
HINTS = NEAR_ROWS + 8  # (space, hash of the key) of rows to prefetch for this packet
HINTS_MAX = 128  # per packet; a full one of 1,472 bytes has some 70 messages
HEADERS = HINTS + 2 * HINTS_MAX
HEADER_SIZE = 88

# Indexes of the words of a space's header.
WORDS, CELLS, STRIDE, ROWS, INDEX = 0, 1, 2, 3, 4
KEYS_MAX, ROW_COUNT, LIVE_COUNT, FREE_ROW = 5, 6, 7, 8
TABLE_SIZE, MIGRATED = 9, 10
QUEUE, QUEUE_COUNT, NUMBER = 11, 12, 13
SESSION_CELL = 15  # the cell with the session that the resettable cells belong to; -1: none
RESET_FIRST = 16  # the first cell that a new session resets; the last is the one before SESSION_CELL
DIGESTED = 17  # number of cells in digests and snapshots; they come first
KEY = 18  # scratch: the key to look up, at most KEY_WORDS_MAX words
KEY_WORDS_MAX = 8
INITIAL = 26  # the initial values of the cells
CELLS_MAX = 38
GIVEN = INITIAL + CELLS_MAX  # in the header of an order book's levels: the ids and the key that a kernel gives

TABLE_SIZE_FIRST = 1_024
MOVED_PER_KEY = 8  # at least 2, or the next doubling would begin before the last one ended
QUEUE_SIZE = 32_768
QUEUE_AIM = 16_384  # the most rows that a digest has to settle
SETTLED_PER_MESSAGE = 4
DIRTY, DEAD = 0, 1  # stand in place of a row's hash, which is 2 or more
TOMB = -1  # a moved entry, in an index that is being moved
SLOT_MASK = 0xFFFF_FFFF
NEAR_ROWS_DEFAULT = 2_048  # fit in the processor's caches; prefetching them costs more than it saves
LINE = 8  # words of a cache line


@compiled_part
def hash_of(value):  # type: ignore[no-untyped-def]
    """A hash of a word, spread over 64 bits; the same in every process."""
    mixed = np.uint64(value) * MULTIPLIER
    mixed ^= mixed >> np.uint64(32)
    mixed *= MIX
    return np.int64(mixed ^ (mixed >> np.uint64(29)))


@compiled_part
def hash_of_key(arena, at, words):  # type: ignore[no-untyped-def]
    """The hash of the key words at `at`."""
    mixed = hash_of(arena[at])
    for place in range(1, words):
        mixed = hash_of(mixed ^ arena[at + place])
    return mixed


@compiled_once
def row_hash(arena, space, row, key_hash):  # type: ignore[no-untyped-def]
    """The hash of a row: its key, its space, and the digested cells, each with its place; never DIRTY or DEAD."""
    mixed = hash_of(key_hash ^ arena[space + NUMBER])
    cell = row + arena[space + WORDS] + 1
    for place in range(arena[space + DIGESTED]):
        mixed ^= hash_of(arena[cell + place] ^ (key_hash + np.int64(place + 1) * np.int64(0x1E37_79B9_7F4A_7C15)))
    mixed = hash_of(mixed)
    return mixed if mixed != DIRTY and mixed != DEAD else np.int64(2)


@compiled()
def settle(arena, space, count):  # type: ignore[no-untyped-def]
    """Add the new hashes of the last `count` queued rows to the digests."""
    words = arena[space + WORDS]
    for _ in range(min(count, arena[space + QUEUE_COUNT])):
        arena[space + QUEUE_COUNT] -= 1
        row = arena[arena[space + QUEUE] + arena[space + QUEUE_COUNT]]
        if arena[row + words] == DIRTY:  # otherwise it was dropped in the meantime
            key_hash = hash_of_key(arena, row, words)
            value = row_hash(arena, space, row, key_hash)
            arena[row + words] = value
            arena[DIGESTS + (key_hash & (BUCKET_COUNT - 1))] += value


@compiled_part
def settle_down(arena, space):  # type: ignore[no-untyped-def]
    """Keep the queue short; called between messages, when no row is half changed.

    It settles the rows that were queued last, while they are still in the processor's caches. The rows that were queued
    first stay in the queue, because they are likely to change again before the next digest.
    """
    if arena[space + QUEUE_COUNT] > QUEUE_AIM:
        settle(arena, space, SETTLED_PER_MESSAGE)


@compiled_part
def push_dirty(arena, space, row):  # type: ignore[no-untyped-def]
    """Queue a row; the queue has room for QUEUE_SIZE - QUEUE_AIM rows changed by one message."""
    arena[arena[space + QUEUE] + arena[space + QUEUE_COUNT]] = row
    arena[space + QUEUE_COUNT] += 1


@compiled_part
def touch(arena, space, row, key_hash):  # type: ignore[no-untyped-def]
    """Take a row's hash out of the digest; must be called before the row is changed."""
    at = row + arena[space + WORDS]
    former = arena[at]
    if former != DIRTY:
        arena[DIGESTS + (key_hash & (BUCKET_COUNT - 1))] -= former
        arena[at] = DIRTY
        push_dirty(arena, space, row)


@compiled_part
def _seek(arena, space, key_hash, size):  # type: ignore[no-untyped-def]
    """The position of the scratch key in the index of `size` entries; -1 if it is not found."""
    index = arena[space + INDEX] + size
    words = arena[space + WORDS]
    tag = (key_hash >> 33) & 0x7FFF_FFFF
    place = tag & (size - 1)
    while True:
        entry = arena[index + place]
        if entry == 0:
            return np.int64(-1)
        if entry >> 32 == tag:
            row = arena[space + ROWS] + ((entry & SLOT_MASK) - 1) * arena[space + STRIDE]
            same = True
            for word in range(words):
                same = same and arena[row + word] == arena[space + KEY + word]
            if same:
                return index + place
        place = (place + 1) & (size - 1)


@compiled_part
def _put(arena, space, entry, size):  # type: ignore[no-untyped-def]
    """Put an entry into the index of `size` entries, which must not contain it yet."""
    index = arena[space + INDEX] + size
    place = (entry >> 32) & (size - 1)
    while arena[index + place] != 0:
        place = (place + 1) & (size - 1)
    arena[index + place] = entry


@compiled_once
def _move(arena, space, count):  # type: ignore[no-untyped-def]
    """Move `count` places of the old index into the new one."""
    size = arena[space + TABLE_SIZE]
    former = size >> 1
    index = arena[space + INDEX] + former
    at = arena[space + MIGRATED]
    end = min(at + count, former)
    while at < end:
        entry = arena[index + at]
        if entry > 0:
            _put(arena, space, entry, size)
            arena[index + at] = TOMB
        at += 1
    arena[space + MIGRATED] = -1 if at == former else at


@compiled_part
def seek_row(arena, space, key_hash):  # type: ignore[no-untyped-def]
    """(place in the index, row) of the scratch key; (-1, -1) if it is not found."""
    size = arena[space + TABLE_SIZE]
    place = _seek(arena, space, key_hash, size)
    if place < 0 and arena[space + MIGRATED] >= 0:
        place = _seek(arena, space, key_hash, size >> 1)
    if place < 0:
        return np.int64(-1), np.int64(-1)
    return place, arena[space + ROWS] + ((arena[place] & SLOT_MASK) - 1) * arena[space + STRIDE]


@compiled_part
def add_row(arena, space, key_hash):  # type: ignore[no-untyped-def]
    """Add a row for the scratch key, dirty and with the initial cells; -1 if the number of keys is at its maximum."""
    free = arena[space + FREE_ROW]
    words = arena[space + WORDS]
    if free >= 0:
        row = free
        arena[space + FREE_ROW] = arena[row]
    elif arena[space + ROW_COUNT] < arena[space + KEYS_MAX]:
        row = arena[space + ROWS] + arena[space + ROW_COUNT] * arena[space + STRIDE]
        arena[space + ROW_COUNT] += 1
    else:
        return np.int64(-1)
    arena[space + LIVE_COUNT] += 1
    if arena[space + MIGRATED] >= 0:
        _move(arena, space, MOVED_PER_KEY)
    elif 2 * arena[space + LIVE_COUNT] > arena[space + TABLE_SIZE]:
        arena[space + TABLE_SIZE] *= 2
        arena[space + MIGRATED] = 0
    slot = (row - arena[space + ROWS]) // arena[space + STRIDE]
    _put(arena, space, (((key_hash >> 33) & 0x7FFF_FFFF) << 32) | (slot + 1), arena[space + TABLE_SIZE])
    for word in range(words):
        arena[row + word] = arena[space + KEY + word]
    arena[row + words] = DIRTY
    for cell in range(arena[space + CELLS]):
        arena[row + words + 1 + cell] = arena[space + INITIAL + cell]
    if arena[space + DIGESTED] > 0:  # otherwise it would stay dirty forever; it is part of no digest
        push_dirty(arena, space, row)
    return row


@compiled_part
def drop_row(arena, space, key_hash, place, row):  # type: ignore[no-untyped-def]
    """Drop a row that `seek_row` found at `place`."""
    words = arena[space + WORDS]
    if arena[row + words] != DIRTY:
        arena[DIGESTS + (key_hash & (BUCKET_COUNT - 1))] -= arena[row + words]
    arena[row + words] = DEAD
    arena[row] = arena[space + FREE_ROW]
    arena[space + FREE_ROW] = row
    arena[space + LIVE_COUNT] -= 1
    size = arena[space + TABLE_SIZE]
    index = arena[space + INDEX] + size
    if place < index:
        arena[place] = TOMB  # in the old index
        return
    gap = place - index
    at = (gap + 1) & (size - 1)
    while arena[index + at] != 0:  # fill the gap with entries that were pushed past it
        home = (arena[index + at] >> 32) & (size - 1)
        if ((at - home) & (size - 1)) >= ((at - gap) & (size - 1)):
            arena[index + gap] = arena[index + at]
            gap = at
        at = (at + 1) & (size - 1)
    arena[index + gap] = 0


@compiled_part
def find_row(arena, space, session):  # type: ignore[no-untyped-def]
    """The cells of the scratch key, ready to change; a new key gets a row. -1 if there is no room for one."""
    words = arena[space + WORDS]
    key_hash = hash_of_key(arena, space + KEY, words)
    _, row = seek_row(arena, space, key_hash)
    if row < 0:
        row = add_row(arena, space, key_hash)
        if row < 0:
            return np.int64(-1)
    else:
        touch(arena, space, row, key_hash)
    cells = row + words + 1
    mark = arena[space + SESSION_CELL]
    if mark >= 0 and arena[cells + mark] != session:
        for cell in range(arena[space + RESET_FIRST], mark):
            arena[cells + cell] = arena[space + INITIAL + cell]
        arena[cells + mark] = session
    return cells


@compiled_once
def foresee_row(arena, hints, space, key_hash):  # type: ignore[no-untyped-def]
    """Prefetch a key's index entry, and remember to prefetch its row; returns the number of hints."""
    if hints == HINTS_MAX:
        return hints
    size = arena[space + TABLE_SIZE]
    prefetch(arena, arena[space + INDEX] + size + ((key_hash >> 33) & (size - 1)))
    arena[HINTS + 2 * hints] = space
    arena[HINTS + 2 * hints + 1] = key_hash
    return hints + 1


@compiled_once
def fetch_rows(arena, hints):  # type: ignore[no-untyped-def]
    """Prefetch the rows of the hints. Only hashes are compared; prefetching a wrong row does no harm."""
    for number in range(hints):
        space, key_hash = arena[HINTS + 2 * number], arena[HINTS + 2 * number + 1]
        size = arena[space + TABLE_SIZE]
        index = arena[space + INDEX] + size
        tag = (key_hash >> 33) & 0x7FFF_FFFF
        place = tag & (size - 1)
        entry = arena[index + place]
        while entry != 0 and entry >> 32 != tag:
            place = (place + 1) & (size - 1)
            entry = arena[index + place]
        if entry != 0:
            stride = arena[space + STRIDE]
            row = arena[space + ROWS] + ((entry & SLOT_MASK) - 1) * stride
            prefetch(arena, row)
            if stride > LINE:
                prefetch(arena, row + LINE)


@compiled()
def place_rows(arena, space, keys, cells):  # type: ignore[no-untyped-def]
    """Add rows, shape (count, words) and (count, digested); False if there are more than allowed."""
    words = arena[space + WORDS]
    for number in range(keys.shape[0]):
        for word in range(words):
            arena[space + KEY + word] = keys[number, word]
        key_hash = hash_of_key(arena, space + KEY, words)
        _, row = seek_row(arena, space, key_hash)
        if row < 0:
            row = add_row(arena, space, key_hash)
        else:
            touch(arena, space, row, key_hash)
        if row < 0:
            return False
        for cell in range(cells.shape[1]):
            arena[row + words + 1 + cell] = cells[number, cell]
        settle_down(arena, space)
    return True


@compiled()
def drop_buckets(arena, space, wanted):  # type: ignore[no-untyped-def]
    """Drop the rows of the buckets that are set in `wanted`, shape (BUCKET_COUNT,)."""
    words = arena[space + WORDS]
    for slot in range(arena[space + ROW_COUNT]):
        row = arena[space + ROWS] + slot * arena[space + STRIDE]
        if arena[row + words] != DEAD:
            key_hash = hash_of_key(arena, row, words)
            if wanted[key_hash & (BUCKET_COUNT - 1)]:
                for word in range(words):
                    arena[space + KEY + word] = arena[row + word]
                place, _ = seek_row(arena, space, key_hash)
                drop_row(arena, space, key_hash, place, row)
