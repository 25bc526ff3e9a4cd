"""Databento's market by order. After every record, its books equal those of plain Python. They agree with the trades in
the recording, and with market by price if a recording has both."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import databento_dbn as db
import pytest
from zstandard import ZstdDecompressor

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.formats.files.dbn import read_dbn
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.feedcore.replica.output.converter import Converter
from tests.conversion.formats.book_material import DEPTH, NOTHING, NULL, Levels, PlainBook, book_table, books_of
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.real_data import shared_file

# A fill reports what a following cancel does to the order, so neither trades nor fills change the book.
ORDERS = {
    "mbo": '<order book="book" action="clear" by="instrument_id" if="action" is="R"/>'
    '<order book="book" action="add" by="instrument_id" id="order_id" side="side" price="price" size="size" '
    'if="action" is="A"/>'
    '<order book="book" action="modify" by="instrument_id" id="order_id" side="side" price="price" size="size" '
    'if="action" is="M"/>'
    '<order book="book" action="reduce" by="instrument_id" id="order_id" size="size" if="action" is="C"/>'
}
MBO = struct.Struct("<BBHIQQqIBBccQiI")
SIDES = {"A": "S", "B": "B", "N": "N"}
SNAPSHOT_FLAG, LAST_FLAG = 32, 128  # the record belongs to a snapshot; it is the last record of an event
NANO = 10**9
# Only the snapshot is among the recordings; the other files are in the same public repository.
SNAPSHOT = "futures/esh4-glbx-mdp3-20231224.mbo.dbn.zst"
OPENING = "futures/esh4-glbx-mdp3-20231225.mbo.dbn.zst"  # from a Monday evening, beginning before the book opens
SECONDS = "futures/orderbooks_mbo_2024-05-08T00-00-00_2024-05-08T00-00-02.dbn.zst"  # two seconds of a running session
OPENS_AT_NS = 1_703_545_200 * NANO  # 23:00 UTC


def records_of(data: bytes) -> list[Any]:
    """The records as Databento's decoder reads them."""
    if data[:4] == b"\x28\xb5\x2f\xfd":
        data = ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    decoder = db.DBNDecoder(upgrade_policy=db.VersionUpgradePolicy.AS_IS)
    decoder.write(data)
    found: list[Any] = decoder.decode()[1:]
    return found


def apply(book: PlainBook, record: Any) -> None:
    """Change the book as Databento's documentation of the record says."""
    action, side = str(record.action), SIDES[str(record.side)]
    if action == "R":
        book.clear()
    elif action in ("A", "M"):
        book.put(record.order_id, side, record.price, record.size)
    elif action == "C":
        known = book.orders[record.order_id]
        assert known[:2] == (side, record.price), "a cancel says side and price of its order"
        assert book.reduce(record.order_id, record.size)
    else:
        assert action in ("T", "F", "N")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dbn")


@pytest.fixture(scope="module")
def table(folder: Path) -> ConverterTable:
    return book_table(folder, document("dbn.xml"), ORDERS, by="instrument_id", exponent=-9, ids="perBook")


@pytest.mark.parametrize(
    ("file", "count", "actions"),
    [
        (SNAPSHOT, 8_725, {"A"}),
        (OPENING, 68_792, {"A", "C", "M", "T", "F"}),
        (SECONDS, 13_796, {"R", "A", "C", "M", "T", "F"}),
    ],
)
def test_market_by_order_makes_the_same_book_as_plain_python_after_every_record(
    table: ConverterTable, folder: Path, file: str, count: int, actions: set[str]
) -> None:
    data = shared_file(file).read_bytes()
    records, book = records_of(data), PlainBook()
    ours = books_of(CompiledConverter(table), folder, read_dbn(data).chunks())
    for number, (record, levels) in enumerate(zip(records, ours, strict=True)):
        apply(book, record)
        assert levels == book.levels(), f"record {number}: {record}"
    assert (len(records), {str(record.action) for record in records}) == (count, actions)
    assert len(book.orders) > 8_000


@pytest.mark.parametrize(
    ("file", "from_ns", "crossed", "trades"), [(OPENING, OPENS_AT_NS, 891, 2_833), (SECONDS, 0, 0, 5)]
)
def test_a_running_book_is_never_crossed_and_every_event_trades_first_at_its_best_price(
    table: ConverterTable, folder: Path, file: str, from_ns: int, crossed: int, trades: int
) -> None:
    """The recording itself is the reference. Before a market opens, orders are not matched, so the book is crossed."""
    data = shared_file(file).read_bytes()
    records, found = records_of(data), Counter[str]()
    ours = books_of(CompiledConverter(table), folder, read_dbn(data).chunks())
    before, is_first = NOTHING * 2 * DEPTH, True  # the book at the end of the last event
    for record, levels in zip(records, ours, strict=True):
        if record.flags & SNAPSHOT_FLAG:
            before = levels
            continue
        if is_first and str(record.action) == "T" and record.ts_event > from_ns:
            assert record.price == (before[0] if str(record.side) == "A" else before[3 * DEPTH]), record
            found["trades"] += 1
        is_first = bool(record.flags & LAST_FLAG)
        if is_first:
            before = levels
            is_crossed = levels[0] != NULL and levels[0] >= levels[3 * DEPTH]
            found["crossed" if record.ts_event >= from_ns else "crossed before"] += is_crossed
    assert (found["crossed before"], found["crossed"], found["trades"]) == (crossed, 0, trades)


def mbo_frame(action: bytes, order_id: int, side: bytes, price: int, size: int, instrument_id: int) -> bytes:
    """A record made for the test."""
    return MBO.pack(14, 160, 1, instrument_id, 0, order_id, price, size, 0, 0, action, side, 0, 0, 0)


class Seed:
    """Made-up orders that form the levels of a market-by-price record, with the same order counts and sizes.

    Attributes:
        smallest: by side and price, an order of size 1, if the level has several orders.
    """

    def __init__(self, record: Any, depth: int) -> None:
        self.frames: list[bytes] = []
        self.instrument_id = record.instrument_id
        self.smallest: dict[tuple[bytes, int], int] = {}
        for level in record.levels[:depth]:
            self._add(b"B", level.bid_px, level.bid_sz, level.bid_ct)
            self._add(b"A", level.ask_px, level.ask_sz, level.ask_ct)

    def _add(self, side: bytes, price: int, size: int, orders: int) -> None:
        for number in range(orders):
            order_id, part = len(self.frames) + 1, 1 if number < orders - 1 else size - orders + 1
            self.frames.append(mbo_frame(b"A", order_id, side, price, part, self.instrument_id))
            if part == 1:
                self.smallest[side, price] = order_id


def levels_said(record: Any, depth: int) -> Levels:
    """The levels of a market-by-price record."""
    bids = [number for level in record.levels[:depth] for number in (level.bid_px, level.bid_sz, level.bid_ct)]
    return bids + [number for level in record.levels[:depth] for number in (level.ask_px, level.ask_sz, level.ask_ct)]


def shown(levels: Levels, depth: int) -> Levels:
    return levels[: 3 * depth] + levels[3 * DEPTH : 3 * (DEPTH + depth)]


@pytest.mark.parametrize("make", [CompiledConverter, InterpretedConverter])
def test_market_by_order_agrees_with_market_by_price_of_the_same_recording(
    make: Callable[[ConverterTable], Converter], table: ConverterTable, folder: Path
) -> None:
    """ESH1 has two records of each kind; one of them is the same event in both."""
    data = shared_file("dbn/test_data.mbo.v3.dbn").read_bytes()
    by_order = records_of(data)
    by_price = records_of(shared_file("dbn/test_data.mbp-10.v3.dbn.zst").read_bytes())
    one, other = (
        (each.sequence, str(each.action), str(each.side), each.price, each.size) for each in (by_order[0], by_price[0])
    )
    assert one == other, "both tell of this cancel"
    assert by_order[0].sequence < by_order[1].sequence < by_price[1].sequence
    assert by_order[1].price > by_price[0].levels[DEPTH - 1].ask_px, "a cancel beyond ten levels is none of theirs"
    seed = Seed(by_price[0], DEPTH)
    frames = seed.frames + [
        mbo_frame(b"A", each.order_id, b"A", each.price, each.size, seed.instrument_id) for each in by_order
    ]
    recorded = read_dbn(data).records
    frames += [recorded[: MBO.size], recorded[MBO.size :]]
    cancelled = seed.smallest[b"B", by_price[1].price]  # their second record follows from their first
    frames.append(mbo_frame(b"C", cancelled, b"B", by_price[1].price, by_price[1].size, seed.instrument_id))
    *_, first, second, third = books_of(make(table), folder, [FrameChunk(b"".join(frames), len(frames), 1)])
    assert first == second == levels_said(by_price[0], DEPTH)
    assert third == levels_said(by_price[1], DEPTH)


def test_a_record_of_market_by_price_follows_from_the_one_before(table: ConverterTable, folder: Path) -> None:
    one, two = records_of(shared_file("dbn/test_data.mbp-1.v3.dbn.zst").read_bytes())
    assert str(two.action) == "A"
    seed = Seed(one, 1)
    frames = [*seed.frames, mbo_frame(b"A", 1_000, str(two.side).encode(), two.price, two.size, seed.instrument_id)]
    *_, before, after = books_of(CompiledConverter(table), folder, [FrameChunk(b"".join(frames), len(frames), 1)])
    assert shown(before, 1) == levels_said(one, 1)
    assert shown(after, 1) == levels_said(two, 1)
