"""Order books in the kernel against those of the interpreter, which are dictionaries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adapter.conversion import CompiledConverter, ConverterTable, InterpretedConverter
from adapter.conversion.loading import load_checked_table
from benchmarks.conversion import header, itch_messages

BOOK = Path(__file__).resolve().parents[2] / "benchmarks" / "itch_book"
PER_PACKET = 20


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


def test_books_are_the_same_message_by_message(table: ConverterTable) -> None:
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    for number, data in enumerate(packets(4_000, stocks=3, alive_min=60)):
        same(compiled, oracle, data)
        if number % 50 == 49:
            assert compiled.digests().tolist() == oracle.digests().tolist()
    assert compiled.counts() == oracle.counts()
    assert compiled.snapshot() == oracle.snapshot()
    assert compiled.key_count() < 400, "orders and books that are gone are forgotten"


def test_a_restored_book_goes_on_as_the_one_it_was_taken_from(table: ConverterTable) -> None:
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    stream = packets(2_000, stocks=4, alive_min=80)
    for data in stream[:60]:
        same(compiled, oracle, data)
    joining = CompiledConverter(table)
    joining.convert(stream[70], 0, PER_PACKET, np.zeros(4_096, np.uint8), 0, 4_096)  # something else, to be forgotten
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
