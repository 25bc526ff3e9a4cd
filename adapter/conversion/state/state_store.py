"""The arena of one converter: key spaces laid out in reserved memory, digests, snapshots and their restoration.

Memory per key: `8 * stride` bytes for its row (key words, hash and cells: 4 words, or more in multiples of 8), and 16
to 48 bytes of index (two to four entries of 8 bytes per key, and half as much again while it doubles). Nothing else
grows.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.state import order_book
from tandemfeed.adapter.conversion.state import state_kernels as kernels
from tandemfeed.adapter.conversion.state.state_kernels import (
    BUCKET_COUNT,
    DIGESTS,
    HEADER_SIZE,
    HEADERS,
    QUEUE_SIZE,
    TABLE_SIZE_FIRST,
)

KEYS_MAX = 1 << 22  # keys of one space, unless the table says otherwise; memory is used only for existing keys
SNAPSHOT_MAGIC = b"TFC2"
BUCKETS_MAGIC = b"TFB2"
SNAPSHOT_HEADER = struct.Struct("<4s16sHH")  # magic, fingerprint, buckets listed, spaces
SPACE_HEADER = struct.Struct("<QHH")  # rows, key words, cells
HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)  # access to rows is random: fewer pages, fewer misses
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # only touched pages use memory


@dataclass(frozen=True, slots=True)
class KeySpace:
    """The rows of state of one kind of key.

    Attributes:
        words: the size of a key in words of 8 bytes.
        initial: the initial values of the cells; those from `reset_first` on are reset at each new session.
        reset_first: the first resettable cell; None if there are none. The cell after the last one has their session.
        local: further cells that only this process understands (positions in its arena), neither digested nor sent.
    """

    name: str
    words: int
    initial: tuple[int, ...]
    reset_first: int | None = None
    local: int = 0
    keys_max: int = KEYS_MAX
    is_digested: bool = True

    @property
    def digested(self) -> int:
        """The number of cells in digests and snapshots."""
        return len(self.initial) if self.is_digested else 0

    @property
    def stride(self) -> int:
        """The distance between rows in words: whole cache lines, or half of one."""
        words = self.words + 1 + len(self.initial) + self.local
        return 4 if words <= 4 else -(-words // 8) * 8

    @property
    def table_size_max(self) -> int:
        """The number of index entries for the largest allowed number of keys."""
        return max(TABLE_SIZE_FIRST, 1 << (2 * self.keys_max - 1).bit_length())

    def size(self) -> int:
        """The number of words of the arena for queue, index and rows."""
        return QUEUE_SIZE + 2 * self.table_size_max + self.keys_max * self.stride


def header_of(number: int) -> int:
    """The position in the arena of the header of the space with this number."""
    return HEADERS + HEADER_SIZE * number


class StateStore:
    """The arena, and the operations on it outside a kernel.

    Args:
        spaces: in the table's order; those of order books come after the table's own.
        books: the spaces that make up order books.
        fingerprint: 16 bytes that identify the table; a snapshot with another fingerprint is refused.
        near_rows: with more rows of one kind, a kernel prefetches those that a packet needs.
    """

    def __init__(
        self,
        spaces: Sequence[KeySpace],
        fingerprint: bytes,
        books: Sequence[order_book.BookSpaces] = (),
        near_rows: int = kernels.NEAR_ROWS_DEFAULT,
    ) -> None:
        self._near_rows = near_rows
        self._spaces = spaces
        self._books = books
        self._fingerprint = fingerprint
        self.arena = self._new_arena()
        # Compile or load now what the first digest and repair need; no packet may wait for that.
        self.digests()
        self.restore_buckets(self.snapshot_buckets([0]))

    def _new_arena(self) -> NDArray[np.int64]:
        head = -(-header_of(len(self._spaces)) // 8) * 8
        pools = sum(order_book.POOL_WORDS for _ in self._books)
        total = head + sum(space.size() for space in self._spaces) + pools
        memory = mmap.mmap(-1, 8 * total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
        if HUGE_PAGES is not None:
            with contextlib.suppress(OSError):  # the system was built without huge pages
                memory.madvise(HUGE_PAGES)
        arena = np.frombuffer(memory, dtype=np.int64)
        arena[kernels.NEAR_ROWS] = self._near_rows
        at = head
        for number, space in enumerate(self._spaces):
            self._lay_out(arena, header_of(number), number, space, at)
            at += space.size()
        for book in self._books:
            order_book.lay_out_pool(arena, header_of(book.books), at)
            at += order_book.POOL_WORDS
        return arena

    def _lay_out(self, arena: NDArray[np.int64], header: int, number: int, space: KeySpace, at: int) -> None:
        count = len(space.initial) + space.local
        index = at + QUEUE_SIZE
        rows = index + 2 * space.table_size_max
        # Touch now the pages that the first message would touch: providing a huge page takes the system 1 to 4 ms.
        arena[[at, index + TABLE_SIZE_FIRST, rows]] = 0
        arena[header + kernels.WORDS] = space.words
        arena[header + kernels.CELLS] = count
        arena[header + kernels.STRIDE] = space.stride
        arena[header + kernels.QUEUE] = at
        arena[header + kernels.INDEX] = index
        arena[header + kernels.ROWS] = rows
        arena[header + kernels.KEYS_MAX] = space.keys_max
        arena[header + kernels.FREE_ROW] = -1
        arena[header + kernels.TABLE_SIZE] = TABLE_SIZE_FIRST
        arena[header + kernels.MIGRATED] = -1
        arena[header + kernels.NUMBER] = number
        arena[header + kernels.DIGESTED] = space.digested
        arena[header + kernels.SESSION_CELL] = -1 if space.reset_first is None else len(space.initial) - 1
        arena[header + kernels.RESET_FIRST] = space.reset_first or 0
        arena[header + kernels.INITIAL : header + kernels.INITIAL + len(space.initial)] = space.initial

    def key_count(self) -> int:
        """The number of keys in all spaces."""
        return sum(int(self.arena[header_of(number) + kernels.LIVE_COUNT]) for number in range(len(self._spaces)))

    def digests(self) -> NDArray[np.uint64]:
        """One digest per bucket of keys, shape (BUCKET_COUNT,)."""
        for number in range(len(self._spaces)):
            kernels.settle(self.arena, header_of(number), QUEUE_SIZE)
        return self.arena[DIGESTS : DIGESTS + BUCKET_COUNT].astype(np.uint64)

    def snapshot(self) -> bytes:
        """A header, then per space the keys in ascending order and their cells: equal state gives equal bytes."""
        parts = [SNAPSHOT_HEADER.pack(SNAPSHOT_MAGIC, self._fingerprint, 0, len(self._sent()))]
        return b"".join(parts + [self._packed(number, None) for number in self._sent()])

    def snapshot_buckets(self, buckets: Sequence[int]) -> bytes:
        """Like `snapshot`, but only for some buckets, which are listed in ascending order after the header."""
        wanted = bucket_list(buckets)
        parts = [SNAPSHOT_HEADER.pack(BUCKETS_MAGIC, self._fingerprint, len(wanted), len(self._sent()))]
        return b"".join([*parts, wanted.tobytes(), *(self._packed(number, wanted) for number in self._sent())])

    def restore(self, snapshot: bytes) -> None:
        """Replace the state.

        Raises:
            ValueError: it is not a snapshot of this table; nothing has changed.
        """
        _, spaces = self._unpack(snapshot, SNAPSHOT_MAGIC)
        former, self.arena = self.arena, self._new_arena()
        self.arena[:DIGESTS] = former[:DIGESTS]  # the counts continue
        self._place(spaces)

    def restore_buckets(self, data: bytes) -> None:
        """Replace the rows of the buckets that `data` contains.

        Raises:
            ValueError: it belongs to another table or is damaged; nothing has changed.
        """
        wanted, spaces = self._unpack(data, BUCKETS_MAGIC)
        marked = np.zeros(BUCKET_COUNT, dtype=np.bool_)
        marked[wanted] = True
        for number in self._sent():
            kernels.drop_buckets(self.arena, header_of(number), marked)
        self._place(spaces)

    def _sent(self) -> list[int]:
        return [number for number, space in enumerate(self._spaces) if space.is_digested]

    def _packed(self, number: int, wanted: NDArray[np.uint16] | None) -> bytes:
        """The rows of one space, in all buckets or in some."""
        space, header = self._spaces[number], header_of(number)
        count, first = int(self.arena[header + kernels.ROW_COUNT]), int(self.arena[header + kernels.ROWS])
        rows = self.arena[first : first + count * space.stride].reshape(count, space.stride)
        rows = rows[rows[:, space.words] != kernels.DEAD]
        keys = rows[:, : space.words]
        if wanted is not None:
            chosen = np.isin(buckets_of(keys), wanted)
            rows, keys = rows[chosen], keys[chosen]
        order = np.lexsort(keys.T[::-1])
        cells = rows[:, space.words + 1 : space.words + 1 + space.digested]
        head = SPACE_HEADER.pack(len(rows), space.words, space.digested)
        packed: bytes = head + keys[order].tobytes() + cells[order].tobytes()
        return packed

    def _unpack(
        self, data: bytes, wanted_magic: bytes
    ) -> tuple[NDArray[np.uint16], list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]]:
        """(buckets, [(space, keys, cells)]); raises ValueError if anything is wrong."""
        if len(data) < SNAPSHOT_HEADER.size:
            raise ValueError("the snapshot is shorter than its header")
        magic, fingerprint, listed, spaces = SNAPSHOT_HEADER.unpack_from(data)
        if magic != wanted_magic or fingerprint != self._fingerprint or spaces != len(self._sent()):
            raise ValueError(
                "the snapshot was made with a different converter table or message model, or is of a different kind"
            )
        at = SNAPSHOT_HEADER.size + 2 * listed
        if len(data) < at:
            raise ValueError("the snapshot is cut short")
        wanted = bucket_list(np.frombuffer(data, "<u2", listed, SNAPSHOT_HEADER.size).tolist())
        found = []
        for number in self._sent():
            space = self._spaces[number]
            if len(data) < at + SPACE_HEADER.size:
                raise ValueError("the snapshot is cut short")
            count, words, cells = SPACE_HEADER.unpack_from(data, at)
            at += SPACE_HEADER.size
            if (words, cells) != (space.words, space.digested):
                raise ValueError("the snapshot was made with a different converter table or message model")
            if count > space.keys_max or len(data) < at + 8 * count * (words + cells):
                raise ValueError("the snapshot is cut short, or has more keys than this table allows")
            keys = np.frombuffer(data, np.int64, count * words, at).reshape(count, words)
            at += 8 * count * words
            found.append((number, keys, np.frombuffer(data, np.int64, count * cells, at).reshape(count, cells)))
            at += 8 * count * cells
        if at != len(data):
            raise ValueError(f"the snapshot has {len(data) - at} extra bytes at its end")
        return wanted, found

    def _place(self, spaces: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]) -> None:
        for number, keys, cells in spaces:
            if not kernels.place_rows(self.arena, header_of(number), keys, cells):
                raise AssertionError("more keys than allowed, though the snapshot's were counted")
        for book in self._books:
            order_book.rebuild(
                self.arena,
                header_of(book.orders),
                header_of(book.books),
                book.id_words,
                book.key_words,
                book.ids_are_unique,
                book.is_chained,
            )


def buckets_of(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bucket of each key, shape (count, words) -> (count,)."""
    mixed = np.zeros(len(keys), dtype=np.uint64)
    for word in range(keys.shape[1]):
        mixed = (mixed ^ keys[:, word].astype(np.uint64)) * kernels.MULTIPLIER
        mixed ^= mixed >> np.uint64(32)
        mixed *= kernels.MIX
        mixed ^= mixed >> np.uint64(29)
    return (mixed % np.uint64(BUCKET_COUNT)).astype(np.int64)


def bucket_list(buckets: Sequence[int]) -> NDArray[np.uint16]:
    """The buckets in ascending order, without duplicates; raises ValueError for one that does not exist."""
    wanted = sorted(set(buckets))
    if wanted and not (wanted[0] >= 0 and wanted[-1] < BUCKET_COUNT):
        raise ValueError(f"the buckets of a snapshot are {wanted}; they must be from 0 to {BUCKET_COUNT - 1}")
    return np.array(wanted, dtype="<u2")
