"""Order books in the kernel compared with those of the interpreter, which are dictionaries."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.state.order_book import CAPACITY_FIRST_LOG, HIDDEN, LEVEL, POOL_END, POOL_NEXT
from tandemfeed.adapter.conversion.state.state_store import header_of
from tandemfeed.benchmarks.conversion import header, itch_messages
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.conversion.packet_material import load

BOOK = Path(__file__).resolve().parents[3] / "benchmarks" / "itch_book"
PER_PACKET = 20
NO_PRICE = -(1 << 63)  # null in the benchmark's model


@pytest.fixture(scope="module")
def table() -> ConverterTable:
    return load_checked_table(BOOK / "source-format.xml", BOOK / "converter-table.xml", BOOK / "message-model.xml")


def packets(count: int, stocks: int, alive_min: int) -> list[bytes]:
    frames = itch_messages(count, stocks, alive_min)
    return [
        header(len(part)) + b"".join(part)
        for part in (frames[at : at + PER_PACKET] for at in range(0, len(frames), PER_PACKET))
    ]


def same(compiled: CompiledConverter, oracle: InterpretedConverter, data: bytes) -> None:
    ours, theirs = np.zeros(4_096, np.uint8), np.zeros(4_096, np.uint8)
    count = int.from_bytes(data[10:12], "little")
    result = compiled.convert(data, 0, count, ours, 0, 4_096)
    assert result == oracle.convert(data, 0, count, theirs, 0, 4_096)
    assert bytes(ours[: result.end]) == bytes(theirs[: result.end])


def test_kernel_and_interpreter_have_the_same_books_after_every_message(table: ConverterTable) -> None:
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    for number, data in enumerate(packets(4_000, stocks=3, alive_min=60)):
        same(compiled, oracle, data)
        if number % 50 == 49:
            assert compiled.digests().tolist() == oracle.digests().tolist()
    assert compiled.counts() == oracle.counts()
    assert compiled.snapshot() == oracle.snapshot()
    assert compiled.key_count() < 400, "orders and books that are gone are forgotten"


def test_a_conversion_may_peek_at_what_a_later_one_keeps_of_an_order(tmp_path: Path) -> None:
    peek = '<convert message="other" to="out"><field name="first" function="peek" by="a" cell="left"/></convert>'
    keep = """<convert message="m"><order book="k" action="add" by="b" id="a" side="b" bid="1" price="a" size="b"/>
        <let name="what" function="order_size" book="k"/>
        <keep function="last" of="what" by="a" cell="left"/></convert>"""
    for converts in (keep + peek, peek + keep):
        assert len(load(tmp_path, '<book name="k"/>' + converts).conversions) == 2


def test_a_restored_book_behaves_like_the_original(table: ConverterTable) -> None:
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    stream = packets(2_000, stocks=4, alive_min=80)
    for data in stream[:60]:
        same(compiled, oracle, data)
    joining = CompiledConverter(table)
    # some other state, which the restore replaces
    joining.convert(stream[70], 0, PER_PACKET, np.zeros(4_096, np.uint8), 0, 4_096)
    joining.restore(compiled.snapshot())
    for data in stream[60:80]:
        same(joining, oracle, data)
    repaired = CompiledConverter(table)
    repaired.restore_buckets(joining.snapshot_buckets(range(64)))
    for data in stream[80:]:
        same(repaired, oracle, data)
    assert repaired.digests().tolist() == oracle.digests().tolist()


def test_thousands_of_orders_come_and_go_while_the_index_grows(table: ConverterTable) -> None:
    compiled = CompiledConverter(table)
    out = np.zeros(4_096, np.uint8)
    for data in packets(30_000, stocks=50, alive_min=4_000):
        compiled.convert(data, 0, int.from_bytes(data[10:12], "little"), out, 0, 4_096)
    assert compiled.counts()["unknown_order"] == 0
    digests, again = compiled.digests().tolist(), CompiledConverter(table)
    again.restore(compiled.snapshot())
    assert again.digests().tolist() == digests
    assert again.snapshot() == compiled.snapshot()


def table_with(folder: Path, *changes: tuple[str, str]) -> ConverterTable:
    """The benchmark's table, with changes."""
    text = (BOOK / "converter-table.xml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "table.xml").write_text(text)
    return load_checked_table(BOOK / "source-format.xml", folder / "table.xml", BOOK / "message-model.xml")


PER_BOOK = ('<book name="book"', '<book ids="perBook" name="book"')
CLEARING = (  # adding an order without a size clears its book
    '<order book="book" action="add"',
    '<order book="book" action="clear" by="stock_locate" if="shares" is="0"/><order book="book" action="add"',
)


def message(
    kind: bytes, stock: int, order: int, *, size: int = 0, price: int = 0, side: bytes = b"B", new: int = 0
) -> bytes:
    """One ITCH frame."""
    body = struct.pack(">cHH6sQ", kind, stock, 0, bytes(6), order)
    body += {
        b"A": struct.pack(">cI8sI", side, size, b"STOCK", price),
        b"E": struct.pack(">IQ", size, 0),
        b"D": b"",
        b"U": struct.pack(">QII", new, size, price),
    }[kind]
    return struct.pack(">H", len(body)) + body


def packet(*frames: bytes) -> bytes:
    return header(len(frames)) + b"".join(frames)


def any_message(random: Random) -> bytes:
    """A message for one of three stocks, whose orders often have the same ids; sometimes it clears a book."""
    kind = random.choice([b"A", b"A", b"A", b"E", b"D", b"U"])
    size = 0 if random.random() < 0.01 else random.randint(1, 50)
    price, side = random.randint(90, 110), random.choice([b"B", b"S"])
    order, new = random.randint(1, 30), random.randint(1, 30)
    return message(kind, random.randint(1, 3), order, size=size, price=price, side=side, new=new)


@pytest.mark.parametrize("changes", [(CLEARING,), (CLEARING, PER_BOOK)], ids=["unique", "perBook"])
def test_kernel_and_interpreter_have_the_same_books_for_random_messages(
    tmp_path: Path, changes: tuple[tuple[str, str], ...]
) -> None:
    table, random = table_with(tmp_path, *changes), Random(3)
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    for number in range(300):
        same(compiled, oracle, packet(*(any_message(random) for _ in range(PER_PACKET))))
        if number % 20 == 19:
            assert compiled.digests().tolist() == oracle.digests().tolist()
            assert compiled.snapshot() == oracle.snapshot()
        if number % 60 == 59:
            compiled.restore(oracle.snapshot())
            compiled.restore_buckets(oracle.snapshot_buckets(range(0, 64, 3)))
    assert compiled.counts() == oracle.counts()
    assert compiled.counts()["unknown_order"] > 100


def best(table: ConverterTable, data: bytes) -> list[tuple[int, int, int]]:
    """(stock, best bid, its size) after each message of a packet."""
    out = np.zeros(4_096, np.uint8)
    end = CompiledConverter(table).convert(data, 0, int.from_bytes(data[10:12], "little"), out, 0, 4_096).end
    ((_, rows),) = load_message_model(BOOK / "message-model.xml").arrays(bytes(out[:end]))
    return [(int(row["stock"]), int(row["bidPrice"]), int(row["bidSize"])) for row in rows]


def test_orders_of_two_books_may_have_one_id_if_the_table_says_so(table: ConverterTable, tmp_path: Path) -> None:
    data = packet(
        message(b"A", 1, 7, size=10, price=100),
        message(b"A", 2, 7, size=20, price=200),
        message(b"E", 1, 7, size=4),
        message(b"U", 2, 7, new=8, size=5, price=201),
        message(b"D", 2, 7),  # its id is 8 now
        message(b"D", 1, 7),
    )
    assert best(table_with(tmp_path, PER_BOOK), data) == [
        (1, 100, 10), (2, 200, 20), (1, 100, 6), (2, 201, 5), (2, 201, 5), (1, NO_PRICE, 0)
    ]  # fmt: skip
    assert best(table, data)[2] == (1, NO_PRICE, 0), "else the second took the place of the first"


def test_clearing_a_book_does_not_clear_other_books(tmp_path: Path) -> None:
    table = table_with(tmp_path, CLEARING)
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    orders = [message(b"A", 1 + number % 3, number, size=5, price=100 + number % 7) for number in range(1, 31)]
    same(compiled, oracle, packet(*orders))
    assert compiled.key_count() == 30 + 3
    same(compiled, oracle, packet(message(b"A", 2, 99, size=0)))
    assert compiled.key_count() == 20 + 2
    same(compiled, oracle, packet(message(b"A", 2, 99, size=0), message(b"D", 1, 3), message(b"A", 2, 99, size=1)))
    assert compiled.snapshot() == oracle.snapshot()


@pytest.mark.parametrize("changes", [(CLEARING,), (CLEARING, PER_BOOK)], ids=["unique", "perBook"])
def test_clearing_a_book_does_not_visit_the_orders_of_other_books(
    tmp_path: Path, changes: tuple[tuple[str, str], ...]
) -> None:
    compiled = CompiledConverter(table_with(tmp_path, *changes))
    out = np.zeros(4_096, np.uint8)

    def seconds(stock: int, clears: int) -> float:
        """The time for adding an order to a book and clearing the book, this many times."""
        pair = message(b"A", stock, 1 << 30, size=1, price=100), message(b"A", stock, 1 << 30, size=0)
        data = packet(*pair * 10)
        began = time.process_time()
        for _ in range(clears):
            compiled.convert(data, 0, 20, out, 0, 4_096)
        return time.process_time() - began

    few = min(seconds(2, 200) for _ in range(5))
    for first in range(0, 200_000, PER_PACKET):
        orders = [message(b"A", 1, first + number, size=1, price=1 + number) for number in range(PER_PACKET)]
        compiled.convert(packet(*orders), 0, PER_PACKET, out, 0, 4_096)
    assert compiled.key_count() == 200_001
    many = min(seconds(2, 200) for _ in range(5))
    assert many < 20 * few, "2,000 clears that looked at 200,000 orders each took a thousand times as long"


def test_orders_without_room_in_a_level_are_cleared_and_dropped_like_others(tmp_path: Path) -> None:
    table = table_with(tmp_path, CLEARING)
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    arena, books = compiled._store.arena, header_of(table.books[0].spaces.books)
    # enough for one side of one book
    arena[books + POOL_END] = arena[books + POOL_NEXT] + (LEVEL << CAPACITY_FIRST_LOG)
    out = np.zeros(4_096, np.uint8)

    def hear(*frames: bytes) -> None:
        data = packet(*frames)
        for converter in (compiled, oracle):
            converter.convert(data, 0, len(frames), out, 0, 4_096)
        assert compiled.digests().tolist() == oracle.digests().tolist()
        assert compiled.snapshot() == oracle.snapshot()

    hear(*(message(b"A", 1 + number % 3, number, size=5, price=100) for number in range(1, 13)))
    assert arena[books + HIDDEN] == 8, "the first order's book has the room"
    hear(message(b"A", 3, 99, size=0))  # clears a book without a level
    assert arena[books + HIDDEN] == 4
    hear(message(b"A", 2, 99, size=0))  # and one with levels
    assert arena[books + HIDDEN] == 4
    hear(*(message(b"D", 1, number) for number in (3, 6, 9, 12)))
    assert (arena[books + HIDDEN], compiled.key_count()) == (0, 2), "books that were emptied meanwhile keep their rows"
    same(compiled, oracle, packet(message(b"A", 2, 21, size=5, price=101), message(b"E", 2, 21, size=1)))
    same(compiled, oracle, packet(message(b"D", 2, 21), message(b"A", 4, 22, size=5, price=101)))


def test_an_unknown_scope_of_order_ids_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"table\.xml:4: ids is 'perDay'; it must be one of unique, perBook"):
        table_with(tmp_path, ('<book name="book"', '<book ids="perDay" name="book"'))
