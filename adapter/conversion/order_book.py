"""Order books inside a kernel: orders by their id, price levels per side kept sorted, best last.

Two key spaces make the books of a table: the orders' (key: order id; digested cells: price, size, side, book key;
local: the book's row) and the books' (key: the book key; local: per side where its levels lie, how many fit, how many
there are). Levels are a consequence of the orders: neither digested nor sent, and rebuilt from them after a restore. A
level is (rank, size, orders), with rank = price for bids and -price for asks, so that the best of either side ranks
highest.

An order is known by its id; where ids are unique only within a book, by id and book key, which then is no cell. Where
a table clears books, each book's orders are a chain, so that clearing costs no more than they do. Keeping it costs a
table up to a sixth of its speed, so others have none. `words` (of the key) and `chained` are constants of a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.state_kernels import (
    DEAD,
    INITIAL,
    KEY,
    ROW_COUNT,
    ROWS,
    STRIDE,
    add_row,
    drop_row,
    hash_of_key,
    seek_row,
    touch,
)
from tandemfeed.adapter.kernel_cache import compiled

POOL_WORDS = 1 << 27  # levels of all books of a table, words; taken only as they are touched
POOL = INITIAL + 8  # in the books' header: the next free word, its end, then a free list per size
POOL_NEXT, POOL_END, POOL_FREE = POOL, POOL + 1, POOL + 2
CAPACITY_FIRST_LOG = 3  # levels of a side that has few
CAPACITY_LOG_MAX = 20
HIDDEN = POOL_FREE + CAPACITY_LOG_MAX + 1  # after them: orders in no level, because there was no room
LEVEL = 3  # words of a level
SIDE = 3  # words per side in a book's row
NULL = (1 << 63) - 1
BID, ASK = 0, 1
PRICE, SIZE, ORDER_SIDE = 0, 1, 2  # an order's cells
BOOK_ROW, CHAIN = 6, 7  # of its row, behind key, hash and cells: its book's cells; slot + 1 of who is behind and before
ORDER_ROW_LOG = 3  # words of an order's row
BEHIND, BEFORE = 32, 0xFFFF_FFFF  # in CHAIN: the one behind above the one before; 0: nobody
FIRST = 2 * SIDE  # of a book's cells, where there are chains: slot + 1 of its first order


@dataclass(frozen=True, slots=True)
class BookSpaces:
    """Numbers of the two key spaces of one <book>.

    Attributes:
        words: of an order's key: 1, its id; 2, id and book key.
        is_chained: the orders of a book are a chain.
    """

    orders: int
    books: int
    words: int = 1
    is_chained: bool = False


def lay_out_pool(arena: NDArray[np.int64], books: int, at: int) -> None:
    """Give the books at header `books` the pool that begins at `at`."""
    arena[books + POOL_NEXT] = at
    arena[books + POOL_END] = at + POOL_WORDS
    arena[books + POOL_FREE : books + POOL_FREE + CAPACITY_LOG_MAX + 1] = -1
    arena[books + HIDDEN] = 0


@compiled()
def take_levels(arena, books, log):  # type: ignore[no-untyped-def]
    """Room for 2**log levels; -1 if the pool is used up."""
    free = arena[books + POOL_FREE + log]
    if free >= 0:
        arena[books + POOL_FREE + log] = arena[free]
        return free
    at = arena[books + POOL_NEXT]
    if at + (LEVEL << log) > arena[books + POOL_END]:
        return np.int64(-1)
    arena[books + POOL_NEXT] = at + (LEVEL << log)
    return at


@compiled()
def place_of(arena, first, count, rank):  # type: ignore[no-untyped-def]
    """Number of levels that rank below `rank`; found fast near the best, where most changes are."""
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


@compiled()
def change_level(arena, books, book, side, price, size, orders):  # type: ignore[no-untyped-def]
    """Add to a level of a book, `size` and `orders` of either sign; a level without orders is gone.

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
        arena[books + HIDDEN] += orders  # it never found room
        return
    if count == arena[at + 1]:
        log = CAPACITY_FIRST_LOG
        while (np.int64(1) << log) <= count:
            log += 1
        wider = np.int64(-1) if log > CAPACITY_LOG_MAX else take_levels(arena, books, log)
        if wider < 0:
            arena[books + HIDDEN] += orders  # the pool is used up: orders stay right, this level is not shown
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


@compiled()
def seek_book(arena, books, book_key):  # type: ignore[no-untyped-def]
    """The book's cells; -1 if it has no order."""
    arena[books + KEY] = book_key
    _, row = seek_row(arena, books, hash_of_key(arena, books + KEY, 1))
    return row + 2 if row >= 0 else np.int64(-1)


@compiled()
def find_book(arena, books, book_key):  # type: ignore[no-untyped-def]
    """The book's cells, made if it is new. There are never more books than orders, and room for as many."""
    cells = seek_book(arena, books, book_key)
    return cells if cells >= 0 else add_row(arena, books, hash_of_key(arena, books + KEY, 1)) + 2


@compiled()
def forget_if_empty(arena, books, book):  # type: ignore[no-untyped-def]
    """A book without orders gives back what it holds: else a table of all keys ever seen would grow."""
    if arena[book + 2] > 0 or arena[book + SIDE + 2] > 0 or arena[books + HIDDEN] > 0:
        return  # while orders are hidden, a book without levels may be theirs
    for at in (book, book + SIDE):
        if arena[at + 1] > 0:
            log = CAPACITY_FIRST_LOG
            while (np.int64(1) << log) < arena[at + 1]:
                log += 1
            arena[arena[at]] = arena[books + POOL_FREE + log]
            arena[books + POOL_FREE + log] = arena[at]
    arena[books + KEY] = arena[book - 2]
    key_hash = hash_of_key(arena, books + KEY, 1)
    place, row = seek_row(arena, books, key_hash)
    drop_row(arena, books, key_hash, place, row)


@compiled()
def book_key_of(arena, words, row):  # type: ignore[no-untyped-def]
    """Which book an order is of: the last cell, or the key's second word."""
    return arena[row + 5] if words == 1 else arena[row + 1]


@compiled()
def link(arena, orders, row, book):  # type: ignore[no-untyped-def]
    """Put an order first into its book's chain."""
    rows, first = arena[orders + ROWS], arena[book + FIRST]
    slot = ((row - rows) >> ORDER_ROW_LOG) + 1
    arena[row + CHAIN] = first << BEHIND
    if first != 0:
        arena[rows + ((first - 1) << ORDER_ROW_LOG) + CHAIN] |= slot
    arena[book + FIRST] = slot


@compiled()
def unlink(arena, orders, row, book):  # type: ignore[no-untyped-def]
    """Take an order out of its book's chain."""
    rows, chain = arena[orders + ROWS], arena[row + CHAIN]
    behind, before = chain >> BEHIND, chain & BEFORE
    if behind != 0:
        other = rows + ((behind - 1) << ORDER_ROW_LOG) + CHAIN
        arena[other] = (arena[other] >> BEHIND << BEHIND) | before
    if before != 0:
        other = rows + ((before - 1) << ORDER_ROW_LOG) + CHAIN
        arena[other] = (behind << BEHIND) | (arena[other] & BEFORE)
    else:
        arena[book + FIRST] = behind


@compiled()
def seek_order(arena, orders, words, book_key, order_id):  # type: ignore[no-untyped-def]
    """(hash of its key, place in the index, row) of an order, whose key is then in scratch; row -1: it is unknown."""
    arena[orders + KEY] = order_id
    if words == 2:
        arena[orders + KEY + 1] = book_key
    key_hash = hash_of_key(arena, orders + KEY, words)
    place, row = seek_row(arena, orders, key_hash)
    return key_hash, place, row


@compiled()
def drop_order(arena, orders, books, words, chained, book_key, order_id):  # type: ignore[no-untyped-def]
    """Take an order out of its book and forget it; False if it is unknown."""
    key_hash, place, row = seek_order(arena, orders, words, book_key, order_id)
    if row < 0:
        return False
    cells = row + words + 1
    book, side = arena[row + BOOK_ROW], arena[cells + ORDER_SIDE]
    change_level(arena, books, book, side, arena[cells + PRICE], -arena[cells + SIZE], -1)
    if chained:
        unlink(arena, orders, row, book)
    forget_if_empty(arena, books, book)
    drop_row(arena, orders, key_hash, place, row)
    return True


@compiled()
def add_order(arena, orders, books, words, chained, book_key, order_id, side, price, size):  # type: ignore[no-untyped-def]
    """Put an order into a book; one of the same id is replaced. False if there are as many orders as may be.

    Without a price or a size there is no order.
    """
    drop_order(arena, orders, books, words, chained, book_key, order_id)
    if price == NULL or price == -NULL - 1 or size <= 0:  # the smallest price has no rank among asks
        return True
    row = add_row(arena, orders, hash_of_key(arena, orders + KEY, words))  # its key is still in scratch
    if row < 0:
        return False
    cells = row + words + 1
    book = find_book(arena, books, book_key)
    arena[cells + PRICE] = price
    arena[cells + SIZE] = size
    arena[cells + ORDER_SIDE] = side
    if words == 1:
        arena[cells + ORDER_SIDE + 1] = book_key
    arena[row + BOOK_ROW] = book
    if chained:
        link(arena, orders, row, book)
    change_level(arena, books, book, side, price, size, 1)
    return True


@compiled()
def reduce_order(arena, orders, books, words, chained, book_key, order_id, size):  # type: ignore[no-untyped-def]
    """Take `size` off an order, the whole of it if it has no more; False if it is unknown."""
    key_hash, _, row = seek_order(arena, orders, words, book_key, order_id)
    if row < 0:
        return False
    cells = row + words + 1
    if size >= arena[cells + SIZE]:
        return drop_order(arena, orders, books, words, chained, book_key, order_id)
    touch(arena, orders, row, key_hash)
    arena[cells + SIZE] -= size
    change_level(arena, books, arena[row + BOOK_ROW], arena[cells + ORDER_SIDE], arena[cells + PRICE], -size, 0)
    return True


@compiled()
def replace_order(  # type: ignore[no-untyped-def]
    arena, orders, books, words, chained, book_key, order_id, new_id, price, size
):
    """Put an order of the same book and side in the place of another one; False if that is unknown."""
    _, _, row = seek_order(arena, orders, words, book_key, order_id)
    if row < 0:
        return False
    side, its_book = arena[row + words + 1 + ORDER_SIDE], book_key_of(arena, words, row)
    drop_order(arena, orders, books, words, chained, book_key, order_id)
    # In the place of the one that went.
    add_order(arena, orders, books, words, chained, its_book, new_id, side, price, size)
    return True


@compiled()
def known_order(arena, orders, words, book_key, order_id):  # type: ignore[no-untyped-def]
    """(price, size, side as 66 or 83) of an order; (NULL, 0, NULL) if it is unknown."""
    _, _, row = seek_order(arena, orders, words, book_key, order_id)
    if row < 0:
        return np.int64(NULL), np.int64(0), np.int64(NULL)
    cells = row + words + 1
    side = np.int64(66) if arena[cells + ORDER_SIDE] == BID else np.int64(83)
    return arena[cells + PRICE], arena[cells + SIZE], side


@compiled()
def clear_book(arena, orders, books, words, book_key):  # type: ignore[no-untyped-def]
    """Forget all orders of a book, which are a chain."""
    book = seek_book(arena, books, book_key)
    slot = arena[book + FIRST] if book >= 0 else np.int64(0)
    while slot != 0:
        row = arena[orders + ROWS] + ((slot - 1) << ORDER_ROW_LOG)
        slot = arena[row + CHAIN] >> BEHIND
        drop_order(arena, orders, books, words, True, book_key, arena[row])


@compiled()
def level_rank(arena, book, side, depth):  # type: ignore[no-untyped-def]
    """Where the level at `depth` (0: the best) lies; -1 if the side has not so many, or there is no book."""
    if book < 0:
        return np.int64(-1)
    at = book + SIDE * side
    place = arena[at + 2] - 1 - depth
    return arena[at] + LEVEL * place if place >= 0 else np.int64(-1)


@compiled()
def level_price(arena, book, side, depth):  # type: ignore[no-untyped-def]
    """Price of a level; NULL if there is none."""
    level = level_rank(arena, book, side, depth)
    if level < 0:
        return np.int64(NULL)
    return arena[level] if side == BID else -arena[level]


@compiled()
def level_count(arena, book, side):  # type: ignore[no-untyped-def]
    """Levels of a side."""
    return arena[book + SIDE * side + 2] if book >= 0 else np.int64(0)


@compiled()
def level_size(arena, book, side, depth):  # type: ignore[no-untyped-def]
    """Size at a level; 0 if there is none."""
    level = level_rank(arena, book, side, depth)
    return arena[level + 1] if level >= 0 else np.int64(0)


@compiled()
def level_orders(arena, book, side, depth):  # type: ignore[no-untyped-def]
    """Orders at a level; 0 if there is none."""
    level = level_rank(arena, book, side, depth)
    return arena[level + 2] if level >= 0 else np.int64(0)


@compiled()
def rebuild(arena, orders, books, words, chained):  # type: ignore[no-untyped-def]
    """Rebuild the levels from the orders."""
    arena[books + HIDDEN] = 0
    for slot in range(arena[books + ROW_COUNT]):
        row = arena[books + ROWS] + slot * arena[books + STRIDE]
        if arena[row + 1] != DEAD:
            arena[row + 4] = 0
            arena[row + SIDE + 4] = 0
            if chained:
                arena[row + FIRST + 2] = 0
            forget_if_empty(arena, books, row + 2)
    for slot in range(arena[orders + ROW_COUNT]):
        row = arena[orders + ROWS] + slot * arena[orders + STRIDE]
        if arena[row + words] != DEAD:
            cells = row + words + 1
            book = find_book(arena, books, book_key_of(arena, words, row))
            arena[row + BOOK_ROW] = book
            if chained:
                link(arena, orders, row, book)
            change_level(arena, books, book, arena[cells + ORDER_SIDE], arena[cells + PRICE], arena[cells + SIZE], 1)
