"""ITCH: after every real message, the books equal those of plain Python and those of another library."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from itch.parser import MessageParser
from meatpy.itch50 import ITCH50MarketProcessor
from meatpy.itch50.itch50_market_message import ITCH50MarketMessage
from meatpy.lob import LimitOrderBook

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.formats.files.binary_file import read_binary_file
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.conversion.formats.book_material import NOTHING, Levels, PlainBook, book_table, books_of
from tests.real_data import shared_file

ADD = '<order book="book" action="add" by="stock_locate" id="order_ref" side="side" price="price" size="shares"/>'
REDUCE = '<order book="book" action="reduce" by="stock_locate" id="order_ref" size="shares"/>'
ORDERS = {
    "addOrder": ADD,
    "addOrderAttributed": ADD,
    "orderExecuted": REDUCE,
    "orderExecutedWithPrice": REDUCE,
    "orderCancel": REDUCE,
    "orderDelete": '<order book="book" action="delete" by="stock_locate" id="order_ref"/>',
    "orderReplace": '<order book="book" action="replace" by="stock_locate" id="order_ref" newId="new_order_ref" '
    'price="price" size="shares"/>',
}
DEPTH = 5  # of the compared books
OPENING = "itch50/12302019_SNIPPET.NASDAQ_ITCH50"
TEST_DAY = "itch50/ex20101224.TEST_ITCH_50.gz"


def chunks_of(file: str) -> list[FrameChunk]:
    data = shared_file(file).read_bytes()
    data = gzip.decompress(data) if file.endswith(".gz") else data
    return list(read_binary_file(BytesIO(data), load_source_format(document("itch50.xml")), 5_000))


def bodies(chunks: list[FrameChunk]) -> Iterator[bytes]:
    """Each message without its length."""
    for chunk in chunks:
        offset = 0
        while offset < len(chunk.frames):
            size = int.from_bytes(chunk.frames[offset : offset + 2], "big")
            yield chunk.frames[offset + 2 : offset + 2 + size]
            offset += 2 + size


def apply(book: PlainBook, message: Any) -> bool:
    """Apply an order message, as itchfeed reads it, to the book; False if the order is unknown."""
    kind, order_id = message.message_type, message.order_reference_number
    if kind in (b"A", b"F"):
        book.put(order_id, message.buy_sell_indicator.decode(), message.price, message.shares)
        return True
    if kind in (b"E", b"C"):
        return book.reduce(order_id, message.executed_shares)
    if kind == b"X":
        return book.reduce(order_id, message.cancelled_shares)
    if kind == b"U" and order_id in book.orders:
        side = book.orders[order_id][0]
        book.remove(order_id)
        book.put(message.new_order_reference_number, side, message.price, message.shares)
        return True
    return book.remove(order_id)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("itch")


@pytest.fixture(scope="module")
def table(folder: Path) -> ConverterTable:
    return book_table(folder, document("itch50.xml"), ORDERS, by="stock_locate", exponent=-4, depth=DEPTH)


@pytest.mark.parametrize(
    ("file", "messages", "unknown", "stocks"), [(OPENING, 987, 399, 316), (TEST_DAY, 7_000, 117, 3)]
)
def test_books_equal_those_of_plain_python_after_every_message(
    table: ConverterTable, folder: Path, file: str, messages: int, unknown: int, stocks: int
) -> None:
    chunks, parser = chunks_of(file), MessageParser()
    books: dict[int, PlainBook] = defaultdict(PlainBook)
    ours = books_of(CompiledConverter(table), folder, chunks, unknown_orders=unknown)
    compared, not_known = 0, 0
    for body in bodies(chunks):
        if body[:1] in b"AFECXDU":
            message = parser.get_message_type(body)
            not_known += not apply(books[message.stock_locate], message)
            assert next(ours) == books[message.stock_locate].levels(DEPTH), f"message {compared}: {message}"
            compared += 1
    assert next(ours, None) is None
    assert (compared, not_known, len(books)) == (messages, unknown, stocks)


def levels_of(processor: ITCH50MarketProcessor) -> Levels:
    """The best levels of a book rebuilt by meatpy."""
    book = processor.current_lob
    levels: Levels = []
    for side in (book.get_bid_levels(DEPTH), book.get_ask_levels(DEPTH)) if book else ([], []):
        for level in side:
            levels += [level.price, sum(order.volume for order in level.queue), len(level.queue)]
        levels += NOTHING * (DEPTH - len(side))
    return levels or NOTHING * 2 * DEPTH


def test_books_equal_those_of_another_rebuilder_after_every_message(
    table: ConverterTable, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """meatpy rebuilds the book of one stock; the day has three. Its made-up executions may be out of turn."""
    monkeypatch.setattr(LimitOrderBook, "skip_exception", lambda *_: True)
    chunks = chunks_of(TEST_DAY)
    processors: dict[int, ITCH50MarketProcessor] = {}
    ours, compared = books_of(CompiledConverter(table), folder, chunks, unknown_orders=117), 0
    for body in bodies(chunks):
        locate = int.from_bytes(body[1:3], "big")
        if body[:1] == b"R":
            processors[locate] = ITCH50MarketProcessor(body[11:19], datetime(2010, 12, 24))
        message = ITCH50MarketMessage.from_bytes(body)
        for processor in processors.values():
            processor.process_message(message)
        if body[:1] in b"AFECXDU":
            assert next(ours) == levels_of(processors[locate]), f"message {compared}: {message}"
            compared += 1
    assert next(ours, None) is None
    assert compared == 7_000
