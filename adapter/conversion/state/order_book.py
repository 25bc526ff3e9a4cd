"""Order books inside a kernel: orders by their id; price levels per side in sorted order, the best last.

Two key spaces make the books of a table. The orders' space has the order id as key; digested cells: price, size, side,
book key; local cell: the book's row. The books' space has the book key as key; local cells: per side, the position of
its levels, how many fit, and how many there are. Levels follow from the orders. They are neither digested nor sent, and
are rebuilt from the orders after a restore. A level is (rank, size, orders). The rank is price for bids and -price for
asks, so that the best level of either side has the highest rank.

An order is known by its id; if ids are unique only within a book, by id and book key, and then the book key is not a
cell. Ids and book keys are numbers or texts, of one or more words. A kernel puts those of the message into the header
of the books' space (ORDER_ID, BOOK_KEY, NEW_ID) before it calls a function here.

In a table that clears books, the orders of each book form a chain, so that the cost of clearing depends only on
their number. Chains cost up to a sixth of a table's speed, so other tables have none.

`ids` and `keys` are the words of an order id and of a book key; `unique` and `chained` are as in `BookSpaces`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.state.state_kernels import (
    DEAD,
    GIVEN,
    INITIAL,
    KEY,
    KEY_WORDS_MAX,
    ROW_COUNT,
    ROWS,
    STRIDE,
    add_row,
    drop_row,
    hash_of_key,
    seek_row,
    touch,
)
from tandemfeed.adapter.kernel_cache import compiled, compiled_once, compiled_part

POOL_WORDS = 1 << 27  # words for the levels of all books of a table; memory is used only when they are touched
POOL = INITIAL + 8  # in the books' header: the next free word, the end of the pool, then a free list per size
POOL_NEXT, POOL_END, POOL_FREE = POOL, POOL + 1, POOL + 2
CAPACITY_FIRST_LOG = 3  # capacity of a side with few levels
CAPACITY_LOG_MAX = 20
HIDDEN = POOL_FREE + CAPACITY_LOG_MAX + 1  # number of orders that are in no level, because there was no room
LEVEL = 3  # words of a level
SIDE = 3  # words per side in a book's row
NULL = (1 << 63) - 1
BID, ASK = 0, 1
PRICE, SIZE, ORDER_SIDE = 0, 1, 2  # the cells of an order
# In an order's row, after its id, the key of its book, its hash and its other cells: the position of its book's cells,
# and its neighbours in the chain.
BOOK_ROW, CHAIN = 4, 5
UNIT_LOG = 3  # the rows of orders are multiples of 8 words; a place in a chain is the row's distance in units, plus 1
NEXT_SHIFT, PREVIOUS_MASK = 32, 0xFFFF_FFFF  # in CHAIN: the places of the next and of the previous order; 0: none
FIRST = 2 * SIDE  # in a book's cells, if there are chains: the place of its first order
BOOK_KEY, ORDER_ID, NEW_ID = GIVEN, GIVEN + KEY_WORDS_MAX, GIVEN + 2 * KEY_WORDS_MAX  # in the books' header


@dataclass(frozen=True, slots=True)
class BookSpaces:
    """Numbers of the two key spaces of one <book>.

    Attributes:
        ids_are_unique: an order is known by its id alone.
        is_chained: the orders of a book form a chain.
        id_words, key_words: the words of an order id, and of a book's key.
    """

    orders: int
    books: int
    ids_are_unique: bool = True
    is_chained: bool = False
    id_words: int = 1
    key_words: int = 1

    @property
    def order_words(self) -> int:
        """The words by which an order is known."""
        return self.id_words if self.ids_are_unique else self.id_words + self.key_words

    @property
    def has_words(self) -> bool:
        """True if ids and keys are single words."""
        return self.id_words == 1 and self.key_words == 1


def lay_out_pool(arena: NDArray[np.int64], books: int, at: int) -> None:
    """Give the pool that begins at `at` to the books with header `books`."""
    arena[books + POOL_NEXT] = at
    arena[books + POOL_END] = at + POOL_WORDS
    arena[books + POOL_FREE : books + POOL_FREE + CAPACITY_LOG_MAX + 1] = -1
    arena[books + HIDDEN] = 0


@compiled_once
def take_levels(arena, books, log):  # type: ignore[no-untyped-def]
    """Take room for 2**log levels; -1 if the pool is used up."""
    free = arena[books + POOL_FREE + log]
    if free >= 0:
        arena[books + POOL_FREE + log] = arena[free]
        return free
    at = arena[books + POOL_NEXT]
    if at + (LEVEL << log) > arena[books + POOL_END]:
        return np.int64(-1)
    arena[books + POOL_NEXT] = at + (LEVEL << log)
    return at


@compiled_part
def place_of(arena, first, count, rank):  # type: ignore[no-untyped-def]
    """The number of levels with a rank below `rank`; fast near the best level, where most changes are."""
    high = count
    for _ in range(4):
        if high == 0 or arena[first + LEVEL * (high - 1)] < rank:
            return high
        high -= 1
    low = np.int64(0)
    while low < high:
        middle = (low + high) >> 1
        if arena[first + LEVEL * middle] < rank:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_part
def change_level(arena, books, book, side, price, size, orders):  # type: ignore[no-untyped-def]
    """Add `size` and `orders`, which may be negative, to a level of a book; a level without orders is removed.

    Args:
        book: the book's cells.
    """
    at = book + SIDE * side
    count = arena[at + 2]
    rank = price if side == BID else -price
    first = arena[at]
    place = place_of(arena, first, count, rank)
    level = first + LEVEL * place
    if place < count and arena[level] == rank:
        arena[level + 1] += size
        arena[level + 2] += orders
        if arena[level + 2] == 0:
            for word in range(level, first + LEVEL * (count - 1)):
                arena[word] = arena[word + LEVEL]
            arena[at + 2] = count - 1
        return
    if orders <= 0:
        arena[books + HIDDEN] += orders  # the level never had room
        return
    if count == arena[at + 1]:
        log = CAPACITY_FIRST_LOG
        while (np.int64(1) << log) <= count:
            log += 1
        wider = np.int64(-1) if log > CAPACITY_LOG_MAX else take_levels(arena, books, log)
        if wider < 0:
            arena[books + HIDDEN] += orders  # the pool is used up: the orders stay correct, but this level is not shown
            return
        for word in range(LEVEL * count):
            arena[wider + word] = arena[first + word]
        if count > 0:
            arena[first] = arena[books + POOL_FREE + log - 1]
            arena[books + POOL_FREE + log - 1] = first
        first = wider
        arena[at] = first
        arena[at + 1] = np.int64(1) << log
        level = first + LEVEL * place
    word = first + LEVEL * count - 1
    while word >= level:
        arena[word + LEVEL] = arena[word]
        word -= 1
    arena[level] = rank
    arena[level + 1] = size
    arena[level + 2] = orders
    arena[at + 2] = count + 1


@compiled_part
def copy_words(arena, target, source, words):  # type: ignore[no-untyped-def]
    """Copy words within the arena."""
    for word in range(words):
        arena[target + word] = arena[source + word]


@compiled_part
def seek_book(arena, books, keys):  # type: ignore[no-untyped-def]
    """The cells of the book with the given key; -1 if it has no orders."""
    copy_words(arena, books + KEY, books + BOOK_KEY, keys)
    _, row = seek_row(arena, books, hash_of_key(arena, books + KEY, keys))
    return row + keys + 1 if row >= 0 else np.int64(-1)


@compiled_part
def find_book(arena, books, keys):  # type: ignore[no-untyped-def]
    """The cells of the book with the given key, added if it is new.

    There are never more books than orders, so there is always room.
    """
    cells = seek_book(arena, books, keys)
    return cells if cells >= 0 else add_row(arena, books, hash_of_key(arena, books + KEY, keys)) + keys + 1


@compiled_part
def forget_if_empty(arena, books, keys, book):  # type: ignore[no-untyped-def]
    """Drop a book without orders and free its memory; otherwise, the table would grow with every key ever seen."""
    if arena[book + 2] > 0 or arena[book + SIDE + 2] > 0 or arena[books + HIDDEN] > 0:
        return  # while there are hidden orders, they may belong to a book without levels
    for at in (book, book + SIDE):
        if arena[at + 1] > 0:
            log = CAPACITY_FIRST_LOG
            while (np.int64(1) << log) < arena[at + 1]:
                log += 1
            arena[arena[at]] = arena[books + POOL_FREE + log]
            arena[books + POOL_FREE + log] = arena[at]
    copy_words(arena, books + KEY, book - keys - 1, keys)
    key_hash = hash_of_key(arena, books + KEY, keys)
    place, row = seek_row(arena, books, key_hash)
    drop_row(arena, books, key_hash, place, row)


@compiled_part
def words_of_order(ids, keys, unique):  # type: ignore[no-untyped-def]
    """The words by which an order is known: as `BookSpaces.order_words`."""
    return ids if unique else ids + keys


@compiled_part
def key_of_order(row, ids, unique):  # type: ignore[no-untyped-def]
    """The position of the key of an order's book: after the other cells, or in the order's own key."""
    return row + ids + ORDER_SIDE + 2 if unique else row + ids


@compiled_part
def link(arena, orders, row, chain, book):  # type: ignore[no-untyped-def]
    """Put an order at the start of its book's chain.

    Args:
        chain: the distance of CHAIN from the start of a row.
    """
    rows, first = arena[orders + ROWS], arena[book + FIRST]
    place = ((row - rows) >> UNIT_LOG) + 1
    arena[row + chain] = first << NEXT_SHIFT
    if first != 0:
        arena[rows + ((first - 1) << UNIT_LOG) + chain] |= place
    arena[book + FIRST] = place


@compiled_part
def unlink(arena, orders, row, chain, book):  # type: ignore[no-untyped-def]
    """Remove an order from its book's chain."""
    rows, both = arena[orders + ROWS], arena[row + chain]
    following, previous = both >> NEXT_SHIFT, both & PREVIOUS_MASK
    if following != 0:
        other = rows + ((following - 1) << UNIT_LOG) + chain
        arena[other] = (arena[other] >> NEXT_SHIFT << NEXT_SHIFT) | previous
    if previous != 0:
        other = rows + ((previous - 1) << UNIT_LOG) + chain
        arena[other] = (following << NEXT_SHIFT) | (arena[other] & PREVIOUS_MASK)
    else:
        arena[book + FIRST] = following


@compiled_part
def seek_order(arena, orders, books, ids, keys, unique):  # type: ignore[no-untyped-def]
    """(hash of its key, place in the index, row) of the given order; leaves its key in scratch. Row -1: unknown."""
    copy_words(arena, orders + KEY, books + ORDER_ID, ids)
    if not unique:
        copy_words(arena, orders + KEY + ids, books + BOOK_KEY, keys)
    key_hash = hash_of_key(arena, orders + KEY, words_of_order(ids, keys, unique))
    place, row = seek_row(arena, orders, key_hash)
    return key_hash, place, row


@compiled_part
def drop_order(arena, orders, books, ids, keys, unique, chained):  # type: ignore[no-untyped-def]
    """Remove the given order from its book and drop it; False if it is unknown."""
    key_hash, place, row = seek_order(arena, orders, books, ids, keys, unique)
    if row < 0:
        return False
    cells = row + words_of_order(ids, keys, unique) + 1
    book, side = arena[row + ids + keys + BOOK_ROW], arena[cells + ORDER_SIDE]
    change_level(arena, books, book, side, arena[cells + PRICE], -arena[cells + SIZE], -1)
    if chained:
        unlink(arena, orders, row, ids + keys + CHAIN, book)
    forget_if_empty(arena, books, keys, book)
    drop_row(arena, orders, key_hash, place, row)
    return True


@compiled_part
def add_order(arena, orders, books, ids, keys, unique, chained, side, price, size):  # type: ignore[no-untyped-def]
    """Put the given order into a book; it replaces one with the same id. False if there are too many orders.

    An order without a price or a size is not added.
    """
    drop_order(arena, orders, books, ids, keys, unique, chained)
    if price == NULL or price == -NULL - 1 or size <= 0:  # the smallest price has no rank among asks
        return True
    words = words_of_order(ids, keys, unique)
    row = add_row(arena, orders, hash_of_key(arena, orders + KEY, words))  # its key is still in scratch
    if row < 0:
        return False
    cells = row + words + 1
    book = find_book(arena, books, keys)
    arena[cells + PRICE] = price
    arena[cells + SIZE] = size
    arena[cells + ORDER_SIDE] = side
    if unique:
        copy_words(arena, key_of_order(row, ids, unique), books + BOOK_KEY, keys)
    arena[row + ids + keys + BOOK_ROW] = book
    if chained:
        link(arena, orders, row, ids + keys + CHAIN, book)
    change_level(arena, books, book, side, price, size, 1)
    return True


@compiled_part
def reduce_order(arena, orders, books, ids, keys, unique, chained, size):  # type: ignore[no-untyped-def]
    """Take `size` off the given order, or remove it if it has no more than that; False if it is unknown."""
    key_hash, _, row = seek_order(arena, orders, books, ids, keys, unique)
    if row < 0:
        return False
    cells = row + words_of_order(ids, keys, unique) + 1
    if size >= arena[cells + SIZE]:
        return drop_order(arena, orders, books, ids, keys, unique, chained)
    touch(arena, orders, row, key_hash)
    arena[cells + SIZE] -= size
    book = arena[row + ids + keys + BOOK_ROW]
    change_level(arena, books, book, arena[cells + ORDER_SIDE], arena[cells + PRICE], -size, 0)
    return True


@compiled_part
def replace_order(arena, orders, books, ids, keys, unique, chained, price, size):  # type: ignore[no-untyped-def]
    """Replace the given order with that of NEW_ID, in the same book and on the same side; False if it is unknown."""
    _, _, row = seek_order(arena, orders, books, ids, keys, unique)
    if row < 0:
        return False
    side = arena[row + words_of_order(ids, keys, unique) + 1 + ORDER_SIDE]
    copy_words(arena, books + BOOK_KEY, key_of_order(row, ids, unique), keys)
    drop_order(arena, orders, books, ids, keys, unique, chained)
    # The row that was just dropped is free, so there is room.
    copy_words(arena, books + ORDER_ID, books + NEW_ID, ids)
    add_order(arena, orders, books, ids, keys, unique, chained, side, price, size)
    return True


@compiled_part
def known_order(arena, orders, books, ids, keys, unique):  # type: ignore[no-untyped-def]
    """(price, size, side as 66 or 83) of the given order; (NULL, 0, NULL) if it is unknown."""
    _, _, row = seek_order(arena, orders, books, ids, keys, unique)
    if row < 0:
        return np.int64(NULL), np.int64(0), np.int64(NULL)
    cells = row + words_of_order(ids, keys, unique) + 1
    side = np.int64(66) if arena[cells + ORDER_SIDE] == BID else np.int64(83)
    return arena[cells + PRICE], arena[cells + SIZE], side


@compiled_part
def find_book_key(arena, orders, books, ids, keys):  # type: ignore[no-untyped-def]
    """Set BOOK_KEY to that of the given order, whose id is unique; its first word is NULL if the order is unknown."""
    _, _, row = seek_order(arena, orders, books, ids, keys, True)
    if row >= 0:
        copy_words(arena, books + BOOK_KEY, key_of_order(row, ids, True), keys)
    else:
        forget_book_key(arena, books, keys)


@compiled_part
def forget_book_key(arena, books, keys):  # type: ignore[no-untyped-def]
    """Set BOOK_KEY to the key of no book; a blank text may be that of one."""
    arena[books + BOOK_KEY] = NULL
    for word in range(1, keys):
        arena[books + BOOK_KEY + word] = 0


@compiled_part
def clear_book(arena, orders, books, ids, keys, unique):  # type: ignore[no-untyped-def]
    """Drop all orders of the book with the given key, which form a chain."""
    book = seek_book(arena, books, keys)
    place = arena[book + FIRST] if book >= 0 else np.int64(0)
    while place != 0:
        row = arena[orders + ROWS] + ((place - 1) << UNIT_LOG)
        place = arena[row + ids + keys + CHAIN] >> NEXT_SHIFT
        copy_words(arena, books + ORDER_ID, row, ids)
        drop_order(arena, orders, books, ids, keys, unique, True)


@compiled_part
def level_rank(arena, book, side, depth):  # type: ignore[no-untyped-def]
    """The position of the level at `depth` (0: the best); -1 if the side has fewer levels, or there is no such book."""
    if book < 0:
        return np.int64(-1)
    at = book + SIDE * side
    place = arena[at + 2] - 1 - depth
    return arena[at] + LEVEL * place if place >= 0 else np.int64(-1)


@compiled_part
def level_price(arena, book, side, depth):  # type: ignore[no-untyped-def]
    """The price of a level; NULL if there is none."""
    level = level_rank(arena, book, side, depth)
    if level < 0:
        return np.int64(NULL)
    return arena[level] if side == BID else -arena[level]


@compiled_part
def level_count(arena, book, side):  # type: ignore[no-untyped-def]
    """The number of levels of a side."""
    return arena[book + SIDE * side + 2] if book >= 0 else np.int64(0)


@compiled_part
def level_size(arena, book, side, depth):  # type: ignore[no-untyped-def]
    """The size at a level; 0 if there is none."""
    level = level_rank(arena, book, side, depth)
    return arena[level + 1] if level >= 0 else np.int64(0)


@compiled_part
def level_orders(arena, book, side, depth):  # type: ignore[no-untyped-def]
    """The number of orders at a level; 0 if there is none."""
    level = level_rank(arena, book, side, depth)
    return arena[level + 2] if level >= 0 else np.int64(0)


@compiled()
def rebuild(arena, orders, books, ids, keys, unique, chained):  # type: ignore[no-untyped-def]
    """Rebuild the levels from the orders."""
    arena[books + HIDDEN] = 0
    for slot in range(arena[books + ROW_COUNT]):
        row = arena[books + ROWS] + slot * arena[books + STRIDE]
        if arena[row + keys] != DEAD:
            cells = row + keys + 1
            arena[cells + 2] = 0
            arena[cells + SIDE + 2] = 0
            if chained:
                arena[cells + FIRST] = 0
            forget_if_empty(arena, books, keys, cells)
    words = words_of_order(ids, keys, unique)
    for slot in range(arena[orders + ROW_COUNT]):
        row = arena[orders + ROWS] + slot * arena[orders + STRIDE]
        if arena[row + words] != DEAD:
            cells = row + words + 1
            copy_words(arena, books + BOOK_KEY, key_of_order(row, ids, unique), keys)
            book = find_book(arena, books, keys)
            arena[row + ids + keys + BOOK_ROW] = book
            if chained:
                link(arena, orders, row, ids + keys + CHAIN, book)
            change_level(arena, books, book, arena[cells + ORDER_SIDE], arena[cells + PRICE], arena[cells + SIZE], 1)
