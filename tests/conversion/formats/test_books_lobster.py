"""LOBSTER: the shipped reader reads the same as Python's own reader, and the messages of a real morning rebuild, row by
row, the book that LOBSTER itself rebuilt."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.replica.output.converter import Converter
from tests.conversion.formats.book_material import DEPTH, NOTHING, book_table, books_of
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.real_data import shared_file

FORMAT = load_source_format(document("lobster.xml"))
KINDS = {message.type_id: name for name, message in FORMAT.messages.items()}
DAY = "lobster/AAPL_2012-06-21_34200000_57600000"
ONE_BOOK = '<let name="book" function="constant" value="1"/>'
ORDERS = {
    "submission": '<order book="book" action="add" by="book" id="order_id" side="direction" bid="1" price="price" '
    'size="size"/>',
    "cancellation": '<order book="book" action="reduce" by="book" id="order_id" size="size"/>',
    "deletion": '<order book="book" action="delete" by="book" id="order_id"/>',
    "execution": '<order book="book" action="reduce" by="book" id="order_id" size="size"/>',
    "hiddenExecution": "",
}
SUBMISSION, CANCELLATION, DELETION, EXECUTION, HIDDEN = 1, 2, 3, 4, 5
RESTED = -1_000_000_000_000  # the numbers of orders that existed before the recording are below this


@dataclass(frozen=True, slots=True)
class Event:
    """A row of the message file; `side` is 1 for bids, -1 for asks."""

    kind: int
    order_id: int
    size: int
    price: int
    side: int


def rows_of(part: str) -> list[list[str]]:
    with shared_file(f"{DAY}_{part}_10.csv").open() as lines:
        return list(csv.reader(lines))


def recorded() -> tuple[list[Event], list[list[int]]]:
    """The messages, and the book after each: price and size of ask and bid, from the first level to the tenth."""
    events = [Event(*map(int, row[1:])) for row in rows_of("message")]
    return events, [list(map(int, row)) for row in rows_of("orderbook")]


def levels_said(row: list[int], side: int) -> list[tuple[int, int]]:
    """(price, size) of the ten levels of a side."""
    at = 0 if side < 0 else 2
    return [(row[4 * level + at], row[4 * level + at + 1]) for level in range(DEPTH)]


@dataclass
class Window:
    """The part of a book that ten visible levels reveal, and the messages that give a converter the same knowledge.

    The message file has only the events within the ten levels. So the content of a level is known if its price has been
    among them without a break since the level was first seen or its first message came. A level that leaves them is
    forgotten, because it may change unseen. A level that comes back or comes up from deeper is learnt from the row that
    shows it: as one order with a made-up number, because no message said which orders it consists of. A later event of
    an order that came with no known message concerns one of those orders: its size is taken off that level's order.

    Attributes:
        worst: the worst known price of each side.
        orders: the orders that messages added: side, price, remaining size.
        rested: by (side, price), the number and size of the order that stands for all other orders.
    """

    worst: dict[int, int] = field(default_factory=dict)
    orders: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    rested: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    numbers: int = RESTED

    def is_known(self, side: int, price: int) -> bool:
        return side in self.worst and side * price >= side * self.worst[side]

    def see(self, row: list[int]) -> tuple[list[Event], int]:
        """Forget what left the row, and learn what it shows for the first time; returns the number of levels learnt."""
        events: list[Event] = []
        seen = 0
        for side in (1, -1):
            said = levels_said(row, side)
            events += self._forget(side, said[-1][0])
            for price, size in said:
                if not self.is_known(side, price):
                    self.numbers -= 1
                    self.rested[side, price] = self.numbers, size
                    events.append(Event(SUBMISSION, self.numbers, size, price, side))
                    seen += 1
            self.worst[side] = said[-1][0]
        return events, seen

    def _forget(self, side: int, worst: int) -> list[Event]:
        """Delete all orders beyond a price."""
        events = [
            Event(DELETION, number, size, price, side)
            for number, (its, price, size) in self.orders.items()
            if its == side and side * price < side * worst
        ]
        for event in events:
            del self.orders[event.order_id]
        for key in [key for key in self.rested if key[0] == side and side * key[1] < side * worst]:
            number, size = self.rested.pop(key)
            events.append(Event(DELETION, number, size, key[1], side))
        return events

    def hear(self, event: Event) -> Event:
        """The event as the converter should get it."""
        if event.kind == HIDDEN:
            return event
        assert self.is_known(event.side, event.price), "the file has events within the ten levels alone"
        if event.kind == SUBMISSION:
            assert event.order_id not in self.orders
            self.orders[event.order_id] = event.side, event.price, event.size
            return event
        if event.order_id not in self.orders:
            number, size = self.rested.pop((event.side, event.price))
            assert event.size <= size
            if event.size < size:
                self.rested[event.side, event.price] = number, size - event.size
            return Event(CANCELLATION, number, event.size, event.price, event.side)
        side, price, left = self.orders[event.order_id]
        assert (side, price) == (event.side, event.price)
        assert event.size == left if event.kind == DELETION else event.size <= left
        self.orders[event.order_id] = side, price, left - event.size
        if left == event.size:
            del self.orders[event.order_id]
        return event


@dataclass
class Replay:
    """All messages for a converter, and the expected result.

    Attributes:
        expected: for each row, where its book is in the output, and the known levels of each side.
        compared, seen: the number of known levels in all rows; the number of levels first shown by a row itself.
    """

    events: list[Event] = field(default_factory=list)
    expected: list[tuple[int, dict[int, list[tuple[int, int]]]]] = field(default_factory=list)
    compared: int = 0
    seen: int = 0


def replay_of(events: list[Event], rows: list[list[int]]) -> Replay:
    """The messages from the second on, applied to the book of the first row."""
    replay, window = Replay(), Window()
    first, replay.seen = window.see(rows[0])
    replay.events += first
    for event, row in zip(events[1:], rows[1:], strict=True):
        replay.events.append(window.hear(event))
        known = {side: [each for each in levels_said(row, side) if window.is_known(side, each[0])] for side in (1, -1)}
        replay.expected.append((len(replay.events) - 1, known))
        replay.compared += sum(map(len, known.values()))
        more, seen = window.see(row)
        replay.events += more
        replay.seen += seen
    return replay


def framed(events: Iterable[Event]) -> list[FrameChunk]:
    frames = b"".join(
        FORMAT.messages[KINDS[event.kind]]
        .encode(
            {
                "order_id": np.array([event.order_id]),
                "size": np.array([event.size]),
                "price": np.array([event.price]),
                "direction": np.array([event.side]),
            },
            1,
        )
        .tobytes()
        for event in events
    )
    return [FrameChunk(frames, len(frames) // FORMAT.messages["submission"].frame_size, 1)]


def check_rows(ours: list[list[int]], replay: Replay) -> int:
    """Compare a converter's books with the rows; returns the number of compared levels."""
    compared = 0
    for row, (place, known) in enumerate(replay.expected, 2):
        bids, asks = ours[place][: 3 * DEPTH], ours[place][3 * DEPTH :]
        for side, levels in ((1, bids), (-1, asks)):
            said = [number for price, size in known[side] for number in (price, size)]
            found = [number for level in range(DEPTH) for number in levels[3 * level : 3 * level + 2]]
            assert found == said + NOTHING[:2] * (DEPTH - len(known[side])), f"row {row}, side {side}"
            compared += len(known[side])
    return compared


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lobster")


@pytest.fixture(scope="module")
def table(folder: Path) -> ConverterTable:
    orders = {message: ONE_BOOK + elements for message, elements in ORDERS.items()}
    return book_table(folder, document("lobster.xml"), orders, by="book", exponent=-4)


@pytest.mark.parametrize("make", [CompiledConverter, InterpretedConverter])
def test_the_lobster_messages_rebuild_its_ten_level_book_row_by_row(
    make: Callable[[ConverterTable], Converter], table: ConverterTable, folder: Path
) -> None:
    events, rows = recorded()
    replay = replay_of(events, rows)
    assert len(events) == len(rows) == 999
    compared = check_rows(list(books_of(make(table), folder, framed(replay.events))), replay)
    # Every level of every row, except those that a row shows first: the first row's, and levels from deeper.
    assert (compared, replay.seen) == (19_642, 20 + 318)
    assert compared == replay.compared == 2 * DEPTH * len(rows) - replay.seen


def test_a_missing_message_is_detected_by_the_comparison_with_the_rows(table: ConverterTable, folder: Path) -> None:
    replay = replay_of(*recorded())
    place = next(place for place, event in enumerate(replay.events) if event.kind == EXECUTION)
    replay.events[place] = Event(HIDDEN, 0, 1, 1, 1)
    with pytest.raises(AssertionError, match=r"row \d+, side"):
        check_rows(list(books_of(InterpretedConverter(table), folder, framed(replay.events[: place + 2]))), replay)
