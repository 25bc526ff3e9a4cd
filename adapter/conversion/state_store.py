"""Conversion state in arrays: an open-addressing hash table from key to slot, and one row of int64 per slot.

The kernels below are what the generated code calls. Growing happens outside, in Python, when the kernel says so: it is
rare, and a kernel that never allocates never stalls a packet.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from adapter.conversion.kernel_source import COUNT, REGISTER_COUNT

CAPACITY_FIRST = 1_024
BUCKET_COUNT = 64
SNAPSHOT_HEADER = struct.Struct("<4s16sII")
SNAPSHOT_MAGIC = b"TFCS"
BUCKETS_HEADER = struct.Struct("<4s16sIIH")
BUCKETS_MAGIC = b"TFCB"
MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2**64 / golden ratio, odd (Knuth, TAOCP 6.4)
MIX = np.uint64(0xBF58_476D_1CE4_E5B9)  # from splitmix64's finalizer


@njit(inline="always")
def hash_of(key):  # type: ignore[no-untyped-def]
    """Spread a key over 64 bits; the same in every process."""
    value = np.uint64(key) * MULTIPLIER
    value ^= value >> np.uint64(32)
    value *= MIX
    return value ^ (value >> np.uint64(29))


@njit
def find_slot(slots, keys, state, registers, key):  # type: ignore[no-untyped-def]
    """The key's slot, taken now if it is new; -1 if the store must grow first."""
    mask = np.uint64(slots.size - 1)
    place = hash_of(key) & mask
    while True:
        slot = slots[place]
        if slot < 0:
            break
        if keys[slot] == key:
            return slot
        place = (place + np.uint64(1)) & mask
    count = registers[COUNT]
    if count >= keys.size:
        return np.int64(-1)
    slots[place] = count
    keys[count] = key
    registers[COUNT] = count + 1
    return count


@njit
def wide_floor_divide(high, low, divisor):  # type: ignore[no-untyped-def]
    """floor((high * 2**32 + low) / divisor) for 0 <= low < 2**32 and divisor > 0; the null value for divisor 0."""
    if divisor == 0:
        return np.int64((1 << 63) - 1)
    quotient = high // divisor
    rest = high - quotient * divisor
    if rest < (1 << 31):
        return (quotient << 32) + ((rest << 32) | low) // divisor
    tail = np.int64(0)
    for bit in range(31, -1, -1):  # long division: rest * 2**32 would not fit
        rest = rest * 2 + ((low >> bit) & 1)
        tail *= 2
        if rest >= divisor:
            rest -= divisor
            tail += 1
    return (quotient << 32) + tail


@njit
def _place_keys(slots, keys, count):  # type: ignore[no-untyped-def]
    mask = np.uint64(slots.size - 1)
    for slot in range(count):
        place = hash_of(keys[slot]) & mask
        while slots[place] >= 0:
            place = (place + np.uint64(1)) & mask
        slots[place] = slot


@njit
def _digest(keys, state, count, digests):  # type: ignore[no-untyped-def]
    for slot in range(count):
        mixed = hash_of(keys[slot])
        bucket = mixed % np.uint64(digests.size)
        for column in range(state.shape[1]):
            mixed = hash_of(mixed ^ np.uint64(state[slot, column]))
        digests[bucket] += mixed  # a sum does not depend on the order of the slots


class StateStore:
    """The arrays of one converter.

    Args:
        initial: a row's values before any message.
        fingerprint: 16 bytes that name the table; a snapshot of another one is refused.
    """

    def __init__(self, initial: Sequence[int], fingerprint: bytes) -> None:
        self._initial = np.array(initial, dtype=np.int64)
        self._fingerprint = fingerprint
        self.registers = np.zeros(REGISTER_COUNT, dtype=np.int64)
        self._allocate(CAPACITY_FIRST)
        # Compile now what the first digest and the first growth need: it takes 0.1 s, which no packet may wait for.
        _place_keys(self.slots, self.keys, 0)
        self.digests()

    def _allocate(self, capacity: int) -> None:
        self.slots = np.full(4 * capacity, -1, dtype=np.int64)  # at most a quarter full: short probes
        self.keys = np.zeros(capacity, dtype=np.int64)
        self.state = np.tile(self._initial, (capacity, 1))

    def grow(self) -> None:
        """Make room for as many keys again."""
        keys, state, count = self.keys, self.state, int(self.registers[COUNT])
        self._allocate(2 * keys.size)
        self.keys[:count] = keys[:count]
        self.state[:count] = state[:count]
        _place_keys(self.slots, self.keys, count)

    def digests(self) -> NDArray[np.uint64]:
        """Per bucket of keys, shape (BUCKET_COUNT,)."""
        digests = np.zeros(BUCKET_COUNT, dtype=np.uint64)
        _digest(self.keys, self.state, int(self.registers[COUNT]), digests)
        return digests

    def snapshot(self) -> bytes:
        """Header, keys ascending, rows in their order: equal state gives equal bytes."""
        count = int(self.registers[COUNT])
        order = np.argsort(self.keys[:count])
        header = SNAPSHOT_HEADER.pack(SNAPSHOT_MAGIC, self._fingerprint, count, len(self._initial))
        return header + self.keys[:count][order].tobytes() + self.state[:count][order].tobytes()

    def buckets(self) -> NDArray[np.int64]:
        """The bucket of each key, shape (count,)."""
        value = self.keys[: int(self.registers[COUNT])].view(np.uint64) * MULTIPLIER
        value ^= value >> np.uint64(32)
        value *= MIX
        return ((value ^ (value >> np.uint64(29))) % np.uint64(BUCKET_COUNT)).astype(np.int64)

    def snapshot_buckets(self, buckets: Sequence[int]) -> bytes:
        """Header, the buckets ascending, their keys ascending, rows in the keys' order."""
        wanted = bucket_list(buckets)
        rows = np.flatnonzero(np.isin(self.buckets(), wanted))
        rows = rows[np.argsort(self.keys[rows])]
        header = BUCKETS_HEADER.pack(BUCKETS_MAGIC, self._fingerprint, len(rows), len(self._initial), len(wanted))
        return header + wanted.tobytes() + self.keys[rows].tobytes() + self.state[rows].tobytes()

    def restore_buckets(self, data: bytes) -> None:
        """Replace the rows of the buckets that `data` was made of.

        Raises:
            ValueError: not of this table, or damaged; nothing has changed.
        """
        wanted, keys, rows = self._unpack_buckets(data)
        count = int(self.registers[COUNT])
        kept = np.flatnonzero(~np.isin(self.buckets(), wanted))
        keys = np.concatenate((self.keys[:count][kept], keys))
        rows = np.concatenate((self.state[:count][kept], rows))
        self._replace(keys, rows)

    def _unpack_buckets(self, data: bytes) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.int64]]:
        if len(data) < BUCKETS_HEADER.size:
            raise ValueError("the snapshot of buckets is shorter than its header")
        magic, fingerprint, count, columns, bucket_count = BUCKETS_HEADER.unpack_from(data)
        if magic != BUCKETS_MAGIC or fingerprint != self._fingerprint or columns != len(self._initial):
            raise ValueError("the snapshot of buckets was made with another converter table or model")
        at = BUCKETS_HEADER.size + 2 * bucket_count
        if len(data) != at + 8 * count * (1 + columns):
            raise ValueError("the snapshot of buckets is cut short")
        wanted = bucket_list(np.frombuffer(data, "<u2", bucket_count, BUCKETS_HEADER.size).tolist())
        keys = np.frombuffer(data, np.int64, count, at)
        rows = np.frombuffer(data, np.int64, count * columns, at + 8 * count).reshape(count, columns)
        return wanted, keys, rows

    def restore(self, snapshot: bytes) -> None:
        """Replace the state.

        Raises:
            ValueError: not a snapshot of this table; nothing has changed.
        """
        if len(snapshot) < SNAPSHOT_HEADER.size:
            raise ValueError("the snapshot is shorter than its header")
        magic, fingerprint, count, columns = SNAPSHOT_HEADER.unpack_from(snapshot)
        if magic != SNAPSHOT_MAGIC or fingerprint != self._fingerprint or columns != len(self._initial):
            raise ValueError("the snapshot was made with another converter table or model")
        if len(snapshot) != SNAPSHOT_HEADER.size + 8 * count * (1 + columns):
            raise ValueError("the snapshot is cut short")
        keys = np.frombuffer(snapshot, np.int64, count, SNAPSHOT_HEADER.size)
        rows = np.frombuffer(snapshot, np.int64, count * columns, SNAPSHOT_HEADER.size + 8 * count)
        self._replace(keys, rows.reshape(count, columns))

    def _replace(self, keys: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        count = len(keys)
        self._allocate(max(CAPACITY_FIRST, 1 << max(count, 1).bit_length()))
        self.keys[:count] = keys
        self.state[:count] = rows
        self.registers[COUNT] = count
        _place_keys(self.slots, self.keys, count)


def bucket_list(buckets: Sequence[int]) -> NDArray[np.uint16]:
    """Buckets ascending, each once; ValueError for one that does not exist."""
    wanted = sorted(set(buckets))
    if wanted and not (wanted[0] >= 0 and wanted[-1] < BUCKET_COUNT):
        raise ValueError(f"buckets {wanted} are not within 0 and {BUCKET_COUNT - 1}")
    return np.array(wanted, dtype="<u2")
