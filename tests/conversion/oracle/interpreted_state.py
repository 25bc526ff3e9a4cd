"""Conversion state in plain Python: rows in dictionaries, and order books as dictionaries of orders. Digests and
snapshots are computed from them each time."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.state.order_book import BookSpaces
from tandemfeed.adapter.conversion.state.state_store import BUCKETS_MAGIC, SNAPSHOT_HEADER, SNAPSHOT_MAGIC, SPACE_HEADER
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.conversion.table.table import (
    Conversion,
    ConverterTable,
    Operand,
    Operation,
    OrderAction,
    type_of,
)
from tandemfeed.adapter.conversion.table.values import NULL
from tests.conversion.oracle.interpreted_doubles import kept_double
from tests.conversion.oracle.interpreted_values import Refused, Scope, Value, compute

MASK64 = (1 << 64) - 1
BUCKETS = 64
Key = tuple[int, ...]
BLANKS = b" \0"
UNKNOWN: Key = (NULL,)  # the key of the book of an unknown order


def hash_of(value: int) -> int:
    """As the kernel's, with Python's unlimited integers."""
    value = value * 0x9E37_79B9_7F4A_7C15 & MASK64
    value ^= value >> 32
    value = value * 0xBF58_476D_1CE4_E5B9 & MASK64
    return value ^ (value >> 29)


def hash_of_key(key: Key) -> int:
    """The hash of a key's words."""
    mixed = hash_of(key[0] & MASK64)
    for word in key[1:]:
        mixed = hash_of(mixed ^ (word & MASK64))
    return mixed


class InterpretedState:
    """The rows of all spaces. The row of an order: price, size, side, and the book key unless it is part of the key."""

    def __init__(self, table: ConverterTable) -> None:
        self._table = table
        self._spaces = table.spaces
        self.rows: list[dict[Key, list[int]]] = [{} for _ in table.spaces]

    # --- changes

    def act(self, conversion: Conversion, scope: Scope, session: int, counts: dict[Reason, int]) -> None:
        """Apply a message's changes, and compute the values that depend on state."""
        rows: dict[tuple[int, Key], list[int] | None] = {}
        for operation in conversion.stateful:
            if operation.space is not None:
                key = self._key(scope, operation.keys)
                rows[operation.space, key] = self._row(operation.space, key, session)
        if None in rows.values():
            raise Refused(Reason.TOO_MANY_KEYS)
        books = {action.book: action.key for action in conversion.orders} | dict(conversion.book_reads)
        # An unknown key: of the order.
        keys = {book: self._book_key(book, scope, key) if key else UNKNOWN for book, key in books.items()}
        has_room = True
        order_values: dict[int, tuple[int, int, int]] = {action.book: (NULL, 0, NULL) for action in conversion.orders}
        for action in conversion.orders:
            if action.guard is None or scope.holds(action.guard):
                if action.key is None:
                    keys[action.book] = self._key_of_order(action, scope)
                has_room &= self._order(action, scope, keys[action.book], order_values, counts)
        scope.of_book = lambda operation, inner: self._of_book(operation, inner, keys, order_values)
        scope.level_count = lambda book, side: len(self._levels(book, side, keys))
        for operation in conversion.stateful:
            if operation.space is not None:
                row = rows[operation.space, self._key(scope, operation.keys)]
                assert row is not None
                scope.results[operation.number] = self._cells(operation, scope, row)
            elif operation.book is not None:
                scope.results[operation.number] = scope.of_book(operation, scope)
            else:
                scope.results[operation.number] = compute(scope, operation)
        if not has_room:
            raise Refused(Reason.TOO_MANY_KEYS)

    @staticmethod
    def _key(scope: Scope, keys: tuple[Operand, ...]) -> Key:
        words: list[int] = []
        for operand in keys:
            size = type_of(operand).text_size
            words += _words(scope.text(operand), -(-size // 8)) if size else [scope.number(operand)]
        return tuple(words)

    def _book_key(self, book: int, scope: Scope, key: Operand) -> Key:
        return self._padded(scope, key, self._table.books[book].spaces.key_words)

    def _padded(self, scope: Scope, operand: Operand, words: int) -> Key:
        """A key in this many words."""
        found = self._key(scope, (operand,))
        return (*found, *(0,) * (words - len(found)))

    def _row(self, number: int, key: Key, session: int) -> list[int] | None:
        """The row of a key, added if it is new; None if the number of rows is at its maximum."""
        space, rows = self._spaces[number], self.rows[number]
        if key not in rows:
            if len(rows) == space.keys_max:
                return None
            rows[key] = list(space.initial)
        row = rows[key]
        if space.reset_first is not None and row[-1] != session:
            row[space.reset_first :] = [*space.initial[space.reset_first : -1], session]
        return row

    def _cells(self, operation: Operation, scope: Scope, row: list[int]) -> Value:
        keeper = operation.peeks or operation
        columns, name = operation.columns, keeper.function.name
        if name == "last_text":
            return _kept_text(None if operation.peeks else scope.text(operation.operands["of"]), row, columns)
        values = {argument: scope.value(operand) for argument, operand in operation.operands.items()}
        if operation.type.bits is not None:
            return kept_double(name, row, columns, None if operation.peeks else values)
        if operation.peeks is None:
            numbers = {argument: value for argument, value in values.items() if isinstance(value, int)}
            _change(name, row, columns, numbers)
        if name == "vwap":
            turnover = (row[columns[0]] << 32) + row[columns[1]]
            return turnover // row[columns[2]] if row[columns[2]] else NULL
        if name == "wide_sum":
            total = (row[columns[0]] << 32) + row[columns[1]]
            return total if -(1 << 63) <= total < 1 << 63 else NULL
        if name == "wide_vwap":
            products, weights = (_of_parts(row[column] for column in part) for part in (columns[:4], columns[4:]))
            return products // weights if weights else NULL
        if name in ("best_bid", "best_ask"):
            offers = [row[column] for column in columns if row[column] != NULL]
            return (max if name == "best_bid" else min)(offers, default=NULL)
        return row[columns[0]]

    # --- order books

    def _order(
        self,
        action: OrderAction,
        scope: Scope,
        key: Key,
        order_values: dict[int, tuple[int, int, int]],
        counts: dict[Reason, int],
    ) -> bool:
        """Change a book; False if the number of orders is at its maximum."""
        spaces = self._table.books[action.book].spaces
        orders = self.rows[spaces.orders]
        ids = {
            name: self._padded(scope, operand, spaces.id_words)
            for name, operand in action.operands.items()
            if name in ("id", "newId")
        }
        values = {name: scope.number(operand) for name, operand in action.operands.items() if name not in ids}
        if action.action == "clear":
            for order in [order for order, row in orders.items() if self._book_of(spaces, order, row) == key]:
                del orders[order]
            return True
        of_book = () if spaces.ids_are_unique else key  # distinguishes orders with the same id
        order_id = (*ids["id"], *of_book)
        known = orders.get(order_id)
        order_values[action.book] = (known[0], known[1], 83 if known[2] else 66) if known else (NULL, 0, NULL)
        if action.action in ("add", "modify"):
            side = int(values["side"] != action.bid)
            order_values[action.book] = (values["price"], values["size"], 83 if side else 66)
            row = [values["price"], values["size"], side, *(() if of_book else key)]
            return self._put(orders, spaces.orders, order_id, row)
        if known is None:
            counts[Reason.UNKNOWN_ORDER] += 1
            return True
        new_id = (*ids.get("newId", ()), *of_book)
        self._change_known(action, orders, spaces.orders, order_id, new_id, values, known)
        left = {"reduce": max(0, known[1] - values.get("size", 0)), "replace": values.get("size", 0)}
        left["resize"] = values.get("size", 0)
        price = values["price"] if action.action == "replace" else order_values[action.book][0]
        order_values[action.book] = (price, left.get(action.action, 0), order_values[action.book][2])
        return True

    def _key_of_order(self, action: OrderAction, scope: Scope) -> Key:
        """The key of the book that has an order whose id is unique."""
        spaces = self._table.books[action.book].spaces
        row = self.rows[spaces.orders].get(self._padded(scope, action.operands["id"], spaces.id_words))
        return UNKNOWN if row is None else tuple(row[3:])

    @staticmethod
    def _book_of(spaces: BookSpaces, order: Key, row: list[int]) -> Key:
        """The key of an order's book: the end of the order's key, or its last cells."""
        return tuple(row[3:]) if spaces.ids_are_unique else order[spaces.id_words :]

    def _put(self, orders: dict[Key, list[int]], number: int, order_id: Key, row: list[int]) -> bool:
        orders.pop(order_id, None)
        if row[0] in (NULL, -NULL - 1) or row[1] <= 0:
            return True
        if len(orders) == self._spaces[number].keys_max:
            return False
        orders[order_id] = row
        return True

    def _change_known(
        self,
        action: OrderAction,
        orders: dict[Key, list[int]],
        number: int,
        order_id: Key,
        new_id: Key,
        values: dict[str, int],
        known: list[int],
    ) -> None:
        left = {"reduce": known[1] - values.get("size", 0), "resize": values.get("size", 0)}.get(action.action, 0)
        if left > 0:
            orders[order_id] = [known[0], left, *known[2:]]
            return
        del orders[order_id]
        if action.action == "replace":
            self._put(orders, number, new_id, [values["price"], values["size"], *known[2:]])

    def _levels(self, book: int, side: int, keys: dict[int, Key]) -> dict[int, list[int]]:
        """The sizes of the orders, by price."""
        levels: dict[int, list[int]] = {}
        spaces = self._table.books[book].spaces
        for order, row in self.rows[spaces.orders].items():
            price, size, of_side = row[:3]
            if self._book_of(spaces, order, row) == keys[book] and of_side == side:
                levels.setdefault(price, []).append(size)
        return levels

    def _of_book(
        self, operation: Operation, scope: Scope, keys: dict[int, Key], order_values: dict[int, tuple[int, int, int]]
    ) -> Value:
        book, name = operation.book, operation.function.name
        assert book is not None
        if name == "order_by":
            if not operation.type.text_size:
                return keys[book][0]
            return b"" if keys[book] == UNKNOWN else struct.pack(f"<{len(keys[book])}q", *keys[book]).rstrip(BLANKS)
        if name.startswith("order_"):
            return order_values[book][("order_price", "order_size", "order_side").index(name)]
        side, depth = int(str(operation.constants["side"])), int(str(operation.constants["depth"]))
        if "level" in operation.operands:
            depth = scope.number(operation.operands["level"]) - 1
        levels = self._levels(book, side, keys)
        prices = sorted(levels, reverse=side == 0)
        if depth >= len(prices):
            return NULL if name == "book_price" else 0
        sizes = levels[prices[depth]]
        return {"book_price": prices[depth], "book_size": sum(sizes), "book_orders": len(sizes)}[name]

    # --- digests and snapshots

    def digests(self) -> NDArray[np.uint64]:
        """One digest per bucket of keys."""
        digests = [0] * BUCKETS
        for number, space in enumerate(self._spaces):
            for key, row in self.rows[number].items() if space.is_digested else ():
                key_hash = hash_of_key(key)
                mixed = hash_of(key_hash ^ number)
                for place, value in enumerate(row):
                    mixed ^= hash_of((value & MASK64) ^ ((key_hash + (place + 1) * 0x1E37_79B9_7F4A_7C15) & MASK64))
                mixed = hash_of(mixed)
                bucket = key_hash % BUCKETS
                digests[bucket] = (digests[bucket] + (mixed if mixed > 1 else 2)) & MASK64
        return np.array(digests, dtype=np.uint64)

    def snapshot(self, buckets: Sequence[int] | None) -> bytes:
        """A snapshot of all buckets, or of some."""
        sent = [number for number, space in enumerate(self._spaces) if space.is_digested]
        magic = SNAPSHOT_MAGIC if buckets is None else BUCKETS_MAGIC
        data = SNAPSHOT_HEADER.pack(magic, self._table.fingerprint, len(buckets or ()), len(sent))
        data += struct.pack(f"<{len(buckets or ())}H", *(buckets or ()))
        for number in sent:
            rows = self.rows[number]
            keys = sorted(key for key in rows if buckets is None or hash_of_key(key) % BUCKETS in buckets)
            space = self._spaces[number]
            data += SPACE_HEADER.pack(len(keys), space.words, space.digested)
            data += b"".join(struct.pack(f"<{space.words}q", *key) for key in keys)
            data += b"".join((cell & MASK64).to_bytes(8, "little") for key in keys for cell in rows[key])
        return data

    def restore(self, snapshot: bytes) -> None:
        """Replace the state; raises ValueError if the snapshot belongs to another table."""
        self.rows = self._read(snapshot, SNAPSHOT_MAGIC)[1]

    def restore_buckets(self, data: bytes) -> None:
        """Replace some buckets; raises ValueError if they belong to another table."""
        buckets, spaces = self._read(data, BUCKETS_MAGIC)
        for number, rows in enumerate(spaces):
            kept = {key: row for key, row in self.rows[number].items() if hash_of_key(key) % BUCKETS not in buckets}
            self.rows[number] = kept | rows

    def _read(self, data: bytes, magic: bytes) -> tuple[list[int], list[dict[Key, list[int]]]]:
        if len(data) < SNAPSHOT_HEADER.size:
            raise ValueError("the snapshot is shorter than its header")
        found, fingerprint, listed, _ = SNAPSHOT_HEADER.unpack_from(data)
        if (found, fingerprint) != (magic, self._table.fingerprint):
            raise ValueError("the snapshot was made with a different converter table, or is of a different kind")
        try:
            buckets = list(struct.unpack_from(f"<{listed}H", data, SNAPSHOT_HEADER.size))
            at, spaces = SNAPSHOT_HEADER.size + 2 * listed, []
            for space in self._spaces:
                rows: dict[Key, list[int]] = {}
                if space.is_digested:
                    count, words, cells = SPACE_HEADER.unpack_from(data, at)
                    at += SPACE_HEADER.size
                    keys = [struct.unpack_from(f"<{words}q", data, at + 8 * words * place) for place in range(count)]
                    at += 8 * words * count
                    for key in keys:
                        rows[key] = list(struct.unpack_from(f"<{cells}q", data, at))
                        at += 8 * cells
                spaces.append(rows)
        except struct.error:
            raise ValueError("the snapshot is cut short") from None
        if at != len(data):
            raise ValueError("the snapshot has extra bytes at its end")
        return buckets, spaces


def _of_parts(parts: Iterable[int]) -> int:
    """The number in cells of which all but the first have 32 bits."""
    number = 0
    for part in parts:
        number = (number << 32) + part
    return number


def _put_parts(row: list[int], columns: Sequence[int], number: int) -> None:
    for column in reversed(columns[1:]):
        row[column], number = number & 0xFFFF_FFFF, number >> 32
    row[columns[0]] = number


def _words(text: bytes, words: int) -> list[int]:
    """A text as words."""
    return list(struct.unpack(f"<{words}q", text.rstrip(BLANKS).ljust(8 * words, b"\0")))


def _kept_text(text: bytes | None, row: list[int], columns: tuple[int, ...]) -> bytes:
    """Put a text into its cells, unless it is blank; the text in them. Args: text: None: read only."""
    if text is not None and (text := text.rstrip(BLANKS)):
        words = struct.unpack(f"<{len(columns)}q", text.ljust(8 * len(columns), b"\0"))
        for column, word in zip(columns, words, strict=True):
            row[column] = word
    return struct.pack(f"<{len(columns)}q", *(row[column] for column in columns)).split(b"\0")[0]


def _change(name: str, row: list[int], columns: tuple[int, ...], values: dict[str, int]) -> None:
    """Apply a function's update to its cells."""
    of, first = values.get("of", NULL), columns[0]
    if name == "count":
        row[first] += 1
    elif name in ("best_bid", "best_ask"):
        if 0 <= values["source"] < len(columns):
            row[columns[values["source"]]] = of
    elif of == NULL:
        return
    elif name in ("sum", "day_volume"):
        row[first] += of
    elif name in ("max", "day_high"):
        row[first] = of if row[first] == NULL else max(row[first], of)
    elif name in ("min", "day_low"):
        row[first] = min(row[first], of)
    elif name == "wide_sum":
        _put_parts(row, columns, (row[first] << 32) + row[columns[1]] + of)
    elif name == "wide_vwap":
        if values["weight"] != NULL:
            products, weights = columns[:4], columns[4:]
            _put_parts(row, products, _of_parts(row[column] for column in products) + of * values["weight"])
            _put_parts(row, weights, _of_parts(row[column] for column in weights) + values["weight"])
    elif name == "last":
        row[first] = of
    elif name == "first":
        row[first] = of if row[first] == NULL else row[first]
    elif name == "vwap":
        if values["weight"] != NULL:
            turnover = (row[first] << 32) + row[columns[1]] + of * values["weight"]
            row[first], row[columns[1]] = turnover >> 32, turnover & 0xFFFF_FFFF
            row[columns[2]] += values["weight"]
    else:
        raise AssertionError(f"the interpreter does not know {name}")
