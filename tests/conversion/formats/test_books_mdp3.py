"""CME's books from converted messages: positions, implied levels, resets, snapshots and orders.

Two books are written otherwise: fixed arrays of levels, filled from the messages as another decoder reads them, and a
matching engine's own orders, from which a venue's messages are made.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.formats.packets.mdp3 import decode_mdp_packet
from tandemfeed.client_lib.messages.sbe_writing import SbeWriter
from tandemfeed.feedcore.replica.output.converter import Converter
from tests.conversion.formats.test_format_mdp3 import ours, table, text, theirs
from tests.conversion.formats.tick_material import as_another_decoder_reads, converted, messages
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.real_data import shared_file

NANO = 10**9
DEPTHS = {"L": 10, "I": 2}  # CME's: of books by price, and of implied ones
Level = tuple[int, int] | None  # price and size; None: not seen since the recording began


@dataclass
class BookOfEvents:
    """An instrument's books, from `OrderEvent`s, by the rules in docs/formats/mdp3.md."""

    levels: dict[tuple[str, str], list[Level]] = field(default_factory=dict)  # by book and side, best first
    orders: dict[int, tuple[str, int, int]] = field(default_factory=dict)  # id: side, price, size

    def apply(self, event: dict[str, Any]) -> None:
        book, side, action = event["book"], event.get("side"), event["action"]
        if action == "C":
            self._clear(book, side)
        elif book == "O":
            self._change_order(event)
        elif book in DEPTHS:
            self._change_level(self.levels.setdefault((book, side or ""), []), event, DEPTHS[book])

    def _clear(self, book: str, side: str | None) -> None:
        for kind, each in list(self.levels):
            if book in ("A", kind) and side in (None, "N", each):
                self.levels[kind, each] = []
        if book in ("A", "O"):
            self.orders.clear()

    def _change_order(self, event: dict[str, Any]) -> None:
        if event["action"] == "D":
            self.orders.pop(event["orderId"], None)
        else:
            self.orders[event["orderId"]] = event["side"], event["price"], event["size"]

    @staticmethod
    def _change_level(levels: list[Level], event: dict[str, Any], depth: int) -> None:
        place, action = event["level"] - 1, event["action"]
        levels += [None] * (place + (action != "I") - len(levels))
        if action == "F":
            del levels[: place + 1]
        elif action == "D":
            del levels[place]
        else:
            level = event["price"], event["size"]
            levels[place : place + (action != "I")] = [level]
        del levels[depth:]

    def best(self, book: str, side: str) -> list[Level]:
        levels = list(self.levels.get((book, side), []))
        while levels and levels[-1] is None:
            levels.pop()
        return levels


Books = dict[int, BookOfEvents]


def follow(books: Books, converter: Converter, chunk: FrameChunk) -> None:
    """Apply the converted messages of a packet."""
    for frames in converted(converter, [chunk]):
        for message in messages(frames):
            name, event = as_another_decoder_reads(message)
            if name != "OrderEvent":
                continue
            if "instrumentId" in event:
                books.setdefault(event["instrumentId"], BookOfEvents()).apply(event)
            else:
                for book in books.values():
                    book.apply(event)


class ArrayBook:
    """One side of a book by price as an array of fixed depth, whose levels are copied up and down."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.array: list[Level] = [None] * depth

    def change(self, action: int, level: int, new: Level) -> None:
        array, depth = self.array, self.depth
        if action == 0:
            for place in range(depth - 1, level - 1, -1):
                array[place] = array[place - 1]
        if action in (0, 1, 5):
            array[level - 1] = new
        elif action in (2, 4):  # one level, or all up to it
            first, count = (level - 1, 1) if action == 2 else (0, level)
            for place in range(first, depth):
                array[place] = array[place + count] if place + count < depth else None
        elif action == 3:
            self.array = [None] * depth

    def best(self) -> list[Level]:
        levels = list(self.array)
        while levels and levels[-1] is None:
            levels.pop()
        return levels


SIDES = {"0": ("L", "B"), "1": ("L", "S"), "E": ("I", "B"), "F": ("I", "S")}


def changes(frames: bytes) -> Iterator[tuple[int, str, int, int, Level]]:
    """(security, entry type, action, level, price and size) of every entry of a book, as the other decoder reads it."""
    offset = 0
    while offset < len(frames):
        size = int.from_bytes(frames[offset : offset + 2], "little")
        message, _ = theirs().build(frames[offset : offset + size], 0)
        offset += size
        factor = {32: 100, 46: 1}.get(message.template_id.value)
        for entry in message.no_md_entries.repeating_groups if factor else ():
            level = entry.md_entry_px.mantissa.value * factor, entry.md_entry_size.value * NANO
            kind = text(entry.md_entry_type.raw_value)
            yield (entry.security_id.value, kind, entry.md_update_action.raw_value, entry.md_price_level.value, level)


def test_books_after_every_packet_of_a_recording_are_those_of_another_book() -> None:
    path, converter = shared_file("cme/v1.6-v6.1.pcap"), InterpretedConverter(table())
    found: Books = {}
    wanted: dict[tuple[int, str], ArrayBook] = {}
    seen, compared = set(), 0
    for datagram in islice(CaptureReader(path.open("rb")), 3_000):
        packet = decode_mdp_packet(datagram.payload)
        if packet.sequence in seen:
            continue  # the other line
        seen.add(packet.sequence)
        follow(found, converter, FrameChunk(packet.frames, packet.message_count, len(seen), packet.sent_at_ns))
        touched = set()
        for security, kind, action, level, new in changes(packet.frames):
            book = wanted.setdefault((security, kind), ArrayBook(DEPTHS[SIDES[kind][0]]))
            book.change(action, level, new)
            touched.add((security, kind))
        for security, kind in touched:
            assert found[security].best(*SIDES[kind]) == wanted[security, kind].best(), (packet.sequence, security)
            assert_in_order(found[security].best(*SIDES[kind]), SIDES[kind][1])
            compared += 1
    assert compared > 2_000
    assert {kind for _, kind in wanted} == set(SIDES), "implied books too"


def assert_in_order(levels: list[Level], side: str) -> None:
    """Positions agree with prices: levels that merge two books, or miss one, are out of order."""
    prices = [level[0] for level in levels if level is not None]
    assert prices == sorted(set(prices), reverse=side == "B")


@dataclass
class Engine:
    """The orders of one instrument, and the messages that a venue makes of their changes."""

    chance: random.Random
    orders: dict[int, tuple[str, int, int]] = field(default_factory=dict)  # id: side, price, size
    sequence: int = 0

    def view(self, side: str) -> list[tuple[int, int]]:
        """The best levels of a side: price and size."""
        sizes: dict[int, int] = {}
        for each, price, size in self.orders.values():
            if each == side:
                sizes[price] = sizes.get(price, 0) + size
        best = sorted(sizes, reverse=side == "B")[: DEPTHS["L"]]
        return [(price, sizes[price]) for price in best]

    def step(self) -> dict[str, Any]:
        """Change an order; the values of a Book46 message that says so."""
        before = {side: self.view(side) for side in "BS"}
        self.sequence += 1
        if self.orders and self.chance.random() < 0.45:
            order = self.chance.choice(list(self.orders))
            side, price, size = self.orders[order]
            if size > 1 and self.chance.random() < 0.5:
                action, now = "Update", (side, price, self.chance.randrange(1, size))
                self.orders[order] = now
            else:
                action, now = "Delete", self.orders.pop(order)
        else:
            order, side = self.sequence, self.chance.choice("BS")
            price = self.chance.randrange(1, 20) * (-1 if side == "B" else 1)
            action, now = "New", (side, price, self.chance.randrange(1, 9))
            self.orders[order] = now
        entries = list(self.entries(side, before[side], self.view(side)))
        if not any(entry["MDEntryPx"]["mantissa"] == now[1] * NANO for entry in entries):
            return {"NoMDEntries": [], "orders": [(order, action, now)]}
        reference = next(n for n, entry in enumerate(entries, 1) if entry["MDEntryPx"]["mantissa"] == now[1] * NANO)
        row = {"OrderID": order, "MDDisplayQty": now[2], "ReferenceID": reference, "OrderUpdateAction": action}
        return {"NoMDEntries": entries, "NoOrderIDEntries": [row], "orders": []}

    def entries(
        self, side: str, before: list[tuple[int, int]], after: list[tuple[int, int]]
    ) -> Iterator[dict[str, Any]]:
        """The changes of levels that turn one view of a side into another, one level at a time."""
        levels = list(before)
        prices = [price for price, _ in after]
        for place in range(len(levels) - 1, -1, -1):
            fell = (
                len(after) == DEPTHS["L"]
                and place == len(levels) - 1
                and self._is_beyond(side, levels[place][0], after)
            )
            if levels[place][0] not in prices and not fell:
                yield self._entry(side, "Delete", place, levels.pop(place))
        for place, level in enumerate(after):
            if place < len(levels) and levels[place][0] == level[0]:
                if levels[place] != level:
                    levels[place] = level
                    yield self._entry(side, self.chance.choice(["Change", "Overlay"]), place, level)
                continue
            levels.insert(place, level)
            yield self._entry(side, "New", place, level)

    @staticmethod
    def _is_beyond(side: str, price: int, after: list[tuple[int, int]]) -> bool:
        """True if a level fell out of the book because a better one came."""
        return price < after[-1][0] if side == "B" else price > after[-1][0]

    def _entry(self, side: str, action: str, place: int, level: tuple[int, int]) -> dict[str, Any]:
        values = {"MDEntrySize": level[1], "MDPriceLevel": place + 1, "MDUpdateAction": action}
        values |= {"MDEntryPx": {"mantissa": level[0] * NANO, "exponent": -9}, "RptSeq": self.sequence}
        return values | {"SecurityID": 7, "NumberOfOrders": 1, "MDEntryType": {"B": "Bid", "S": "Offer"}[side]}


TIMES = {"TransactTime": 1, "MatchEventIndicator": set()}


def framed(name: str, values: dict[str, Any]) -> bytes:
    message = SbeWriter(ours()).write(name, values)
    return (len(message) + 2).to_bytes(2, "little") + message


def chunk_of(*frames: bytes) -> FrameChunk:
    return FrameChunk(b"".join(frames), len(frames), 1, 0)


def of_step(step: dict[str, Any], engine: Engine) -> list[bytes]:
    """A change as CME sends it: with its levels, or alone if it is deeper than the book by price."""
    frames = []
    if step["NoMDEntries"]:
        values = {name: value for name, value in step.items() if name != "orders"}
        frames.append(framed("MDIncrementalRefreshBook46", TIMES | values))
    for order, action, (side, price, size) in step["orders"]:
        row = {"OrderID": order, "MDDisplayQty": size, "SecurityID": 7}
        row |= {"MDEntryPx": {"mantissa": price * NANO, "exponent": -9}}
        row |= {"MDUpdateAction": {"Update": "Change"}.get(action, action)}
        row |= {"MDEntryType": {"B": "Bid", "S": "Offer"}[side]}
        frames.append(framed("MDIncrementalRefreshOrderBook47", TIMES | {"NoMDEntries": [row]}))
    return frames


def assert_books_equal(book: BookOfEvents, engine: Engine) -> None:
    """Orders, and levels, are the engine's; and levels are the sums of orders."""
    assert book.orders == {
        order: (side, price * NANO, size * NANO) for order, (side, price, size) in engine.orders.items()
    }
    for side in "BS":
        assert book.best("L", side) == [(price * NANO, size * NANO) for price, size in engine.view(side)]


@pytest.mark.parametrize("seed", range(3))
def test_books_by_price_and_by_order_agree_with_the_engine_that_sent_their_changes(seed: int) -> None:
    engine, converter = Engine(random.Random(seed)), InterpretedConverter(table())
    books: Books = {}
    for _ in range(300):
        frames = of_step(engine.step(), engine)
        follow(books, converter, chunk_of(*frames))
        assert_books_equal(books[7], engine)
    assert min(len(engine.view(side)) for side in "BS") == DEPTHS["L"], "the books are full"


@pytest.fixture
def filled() -> tuple[Books, Engine, InterpretedConverter]:
    """The books of an instrument after some changes, and an implied bid in them."""
    engine, converter = Engine(random.Random(5)), InterpretedConverter(table())
    books: Books = {}
    for _ in range(60):
        follow(books, converter, chunk_of(*of_step(engine.step(), engine)))
    implied = engine._entry("B", "New", 0, engine.view("B")[0]) | {"MDEntryType": "ImpliedBid"}
    follow(books, converter, chunk_of(framed("MDIncrementalRefreshBook46", TIMES | {"NoMDEntries": [implied]})))
    return books, engine, converter


def test_an_implied_level_leaves_the_outright_book_alone(
    filled: tuple[Books, Engine, InterpretedConverter],
) -> None:
    books, engine, _ = filled
    assert_books_equal(books[7], engine)
    assert books[7].best("I", "B") == [books[7].best("L", "B")[0]]


@pytest.mark.parametrize(("action", "level", "left"), [("DeleteFrom", 3, slice(3, None)), ("DeleteThru", 1, slice(0))])
def test_delete_from_removes_the_best_levels_and_delete_thru_the_whole_side(
    filled: tuple[Books, Engine, InterpretedConverter], action: str, level: int, left: slice
) -> None:
    books, engine, converter = filled
    bids, offers = books[7].best("L", "B"), books[7].best("L", "S")
    entry = engine._entry("B", action, level - 1, (0, 0))
    follow(books, converter, chunk_of(framed("MDIncrementalRefreshBook46", TIMES | {"NoMDEntries": [entry]})))
    assert (books[7].best("L", "B"), books[7].best("L", "S")) == (bids[left], offers)
    assert books[7].best("I", "B"), "the implied book is another"


def test_a_book_reset_clears_all_books_of_the_instrument_before_the_entries_that_follow(
    filled: tuple[Books, Engine, InterpretedConverter],
) -> None:
    books, engine, converter = filled
    reset = engine._entry("B", "New", 0, (0, 0)) | {"MDEntryType": "BookReset"}
    entries = [reset, engine._entry("S", "New", 0, (4, 2))]
    books[8] = BookOfEvents(orders={1: ("B", 1, 1)})
    follow(books, converter, chunk_of(framed("MDIncrementalRefreshBook46", TIMES | {"NoMDEntries": entries})))
    left = {place: levels for place, levels in books[7].levels.items() if levels}
    assert (left, books[7].orders) == ({("L", "S"): [(4 * NANO, 2 * NANO)]}, {})
    assert books[8].orders
    follow(books, converter, chunk_of(framed("ChannelReset4", TIMES | {"NoMDEntries": [{"ApplID": 1}]})))
    assert not any(any(book.levels.values()) or book.orders for book in books.values())


def test_a_snapshot_replaces_the_books_that_a_lost_packet_spoilt(
    filled: tuple[Books, Engine, InterpretedConverter],
) -> None:
    books, engine, converter = filled
    for _ in range(40):
        engine.step()  # lost
    header = {"SecurityID": 7, "TransactTime": 1, "TotNumReports": 1, "LastMsgSeqNumProcessed": 9}
    entries = [
        {"MDEntryPx": {"mantissa": price * NANO, "exponent": -9}, "MDEntrySize": size, "MDPriceLevel": place,
         "MDEntryType": kind}
        for kind, side in (("Bid", "B"), ("Offer", "S")) for place, (price, size) in enumerate(engine.view(side), 1)
    ]  # fmt: skip
    entries.append({"MDEntryPx": {"mantissa": 5, "exponent": -9}, "MDEntrySize": 1, "MDEntryType": "Trade"})
    rows = [
        {"OrderID": order, "MDEntryPx": {"mantissa": price * NANO, "exponent": -9}, "MDDisplayQty": size,
         "MDEntryType": {"B": "Bid", "S": "Offer"}[side]}
        for order, (side, price, size) in engine.orders.items()
    ]  # fmt: skip
    levels = header | {"LastUpdateTime": 1, "RptSeq": engine.sequence, "TradeDate": 1, "NoMDEntries": entries}
    chunks = [header | {"NoChunks": 2, "CurrentChunk": n, "NoMDEntries": part}
              for n, part in ((1, rows[:2]), (2, rows[2:]))]  # fmt: skip
    frames = [framed("SnapshotFullRefresh52", levels)]
    frames += [framed("SnapshotFullRefreshOrderBook53", chunk) for chunk in chunks]
    follow(books, converter, chunk_of(*frames))
    assert_books_equal(books[7], engine)
    assert books[7].best("I", "B") == [], "the snapshot has no implied level"
    for _ in range(40):
        follow(books, converter, chunk_of(*of_step(engine.step(), engine)))
        assert_books_equal(books[7], engine)


def test_the_kernel_converts_books_as_the_interpreter_does() -> None:
    engine, converters = Engine(random.Random(1)), (CompiledConverter(table()), InterpretedConverter(table()))
    for _ in range(50):
        chunk = chunk_of(*of_step(engine.step(), engine))
        kernel, interpreter = (list(converted(each, [chunk])) for each in converters)
        assert kernel == interpreter
    path = shared_file("cme/v1.9-MdIncrementalRefreshBook.pcap")
    for datagram in CaptureReader(path.open("rb")):
        packet = decode_mdp_packet(datagram.payload)
        chunk = FrameChunk(packet.frames, packet.message_count, 1, packet.sent_at_ns)
        kernel, interpreter = (list(converted(each, [chunk])) for each in converters)
        assert kernel == interpreter
        orders = [as_another_decoder_reads(each)[1] for frames in kernel for each in messages(frames)]
        by_order = [event for event in orders if event.get("book") == "O"]
        by_price = {(event["instrumentId"], event["price"], event["side"]) for event in orders if event.get("level")}
        assert len(by_order) == 16
        assert all((event["instrumentId"], event["price"], event["side"]) in by_price for event in by_order)
