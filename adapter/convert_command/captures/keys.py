"""Numbers keys (destinations, streams) in the order in which they are found; compiled walks search and add."""

from __future__ import annotations

import numpy as np

from tandemfeed.adapter.convert_command.captures.rows import Bytes, Words
from tandemfeed.adapter.convert_command.output.frame_kernels import are_equal, digest_of
from tandemfeed.adapter.kernel_cache import compiled, compiled_part

WORD_SIZE = 8  # keys are filled in by words
KEY_SIZE = 5 * WORD_SIZE  # an address, its port and family; or a group of destinations and a session
PORT = 16  # where a destination's key has its port
FLAG = KEY_SIZE - 1  # a byte that tells apart keys that are otherwise equal
KEYS_FIRST = 64


@compiled_part
def number_of(keys, slots, counts):  # type: ignore[no-untyped-def]
    """The number of the key in the row after the last one; a new key is added. -1: there is no room for it.

    Args:
        keys, slots, counts: of a `KeyTable`.
    """
    last, mask = counts[0], slots.size - 1
    slot = np.int64(digest_of(keys, last * KEY_SIZE, KEY_SIZE) & np.uint64(mask))
    while slots[slot] != 0:
        found = slots[slot] - 1
        if are_equal(keys, found * KEY_SIZE, last * KEY_SIZE, KEY_SIZE):
            return found
        slot = (slot + 1) & mask
    if last + 1 == keys.shape[0]:
        return np.int64(-1)
    slots[slot] = last + 1
    counts[0] = last + 1
    return last


@compiled()
def add_key(keys, slots, counts):  # type: ignore[no-untyped-def]
    """As `number_of`, for callers in Python."""
    return number_of(keys, slots, counts)


class KeyTable:
    """Keys by number.

    Attributes:
        keys: shape (room, KEY_SIZE); a key to search is written to the row after the last one.
        slots: hash table of numbers + 1; 0: free.
        counts: one element, the number of keys.
    """

    def __init__(self) -> None:
        self.keys: Bytes = np.zeros((KEYS_FIRST, KEY_SIZE), np.uint8)
        self.slots: Words = np.zeros(2 * KEYS_FIRST, np.int64)
        self.counts: Words = np.zeros(1, np.int64)

    def __len__(self) -> int:
        return int(self.counts[0])

    def __getitem__(self, number: int) -> bytes:
        return bytes(self.keys[number])

    def add(self, key: bytes) -> int:
        """The number of a key; a new one is added."""
        self.make_room()
        self.keys[len(self)] = np.frombuffer(key.ljust(KEY_SIZE, b"\0"), np.uint8)
        return int(add_key(self.keys, self.slots, self.counts))

    def make_room(self) -> None:
        """Make room for at least one more key."""
        if len(self) + 1 < len(self.keys):
            return
        old, count = self.keys, len(self)
        self.keys = np.zeros((2 * len(old), KEY_SIZE), np.uint8)
        self.slots, self.counts = np.zeros(4 * len(old), np.int64), np.zeros(1, np.int64)
        for number in range(count):
            self.keys[number] = old[number]
            add_key(self.keys, self.slots, self.counts)
