"""Compiled functions on the two state bits of each item: settle, find the next pending one, count; and find notes.

Addresses are plain integers, of a block's state area (`state`) or of the block; the caller keeps the map alive. They do
not release the interpreter lock (except `next_note`), so each is atomic for other threads.

Invariant: an item's bits change once, from zero.
"""

from __future__ import annotations

from tandemfeed.journal.compiled.compiling import compiled
from tandemfeed.journal.compiled.memory import load32, load64, store64
from tandemfeed.journal.format.layout import COUNT_MASK

EVEN = 0x5555_5555_5555_5555  # the lower bit of each of the 32 items of a word


@compiled()
def settle(state: int, first: int, end: int, bits: int) -> int:
    """Set these bits for every pending item from `first` to before `end`; return how many there were."""
    count, place = 0, first
    while place < end:
        base = place & -32
        until = min(end - base, 32)
        address = state + (base >> 2)
        word = load64(address)
        pending = (EVEN << 2 * (place - base)) & (EVEN >> 2 * (32 - until)) & ~(word | word >> 1)
        if pending:
            store64(address, word | pending * bits)
        while pending:
            pending &= pending - 1
            count += 1
        place = base + until
    return count


@compiled()
def next_pending(state: int, first: int, end: int) -> int:
    """The first pending item from `first` to before `end`; `end` if there is none."""
    place = first
    while place < end:
        word = load64(state + (place >> 5 << 3))
        settled = (word | word >> 1) & EVEN
        if settled == EVEN:
            place = (place | 31) + 1
            continue
        stop = min((place | 31) + 1, end)
        while place < stop:
            if not settled >> 2 * (place & 31) & 1:
                return place
            place += 1
    return end


@compiled()
def count_settled(state: int, end: int) -> int:
    """How many of the first `end` items are not pending."""
    count, base = 0, 0
    while base < end:
        word = load64(state + (base >> 2))
        settled = (word | word >> 1) & (EVEN >> 2 * (32 - min(end - base, 32)))
        while settled:
            settled &= settled - 1
            count += 1
        base += 32
    return count


@compiled()
def bits_of(state: int, place: int) -> int:
    """An item's two bits."""
    return load64(state + (place >> 5 << 3)) >> 2 * (place & 31) & 3


@compiled(nogil=True)
def next_note(block: int, offset: int, end: int) -> int:
    """The first note among the whole segments from `offset` to before `end`; -1: none."""
    while offset < end:
        if load32(block + offset + 24) & COUNT_MASK == 0:
            return offset
        offset = (offset + load32(block + offset) + 7) & -8
    return -1
