"""A kernel that prefetches rows of state converts every packet like one that does not."""

from __future__ import annotations

from random import Random

import numpy as np

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.conversion.state.state_kernels import HINTS_MAX, TABLE_SIZE_FIRST
from tandemfeed.benchmarks.conversion import BOOK, TICKS, itch_messages, table_of
from tandemfeed.feedcore.wire.source_packet import encode_source_header
from tests.conversion.formats.tick_material import shipped_table

NEVER = 1 << 60


def packet(frames: list[bytes]) -> bytes:
    """A source packet of these frames."""
    head = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=len(frames), session=20261121, first_source_seq=1, sent_at_ns=0
    )
    return head + b"".join(frames)


def trades(random: Random, count: int, symbols: int) -> list[bytes]:
    """Trades of random symbols, framed as in the example's source format."""
    trade = table_of(TICKS).source_format.messages["trade"]
    names = np.array([b"S%06d" % random.randrange(symbols) for _ in range(count)], dtype="S8")
    columns = {
        "symbol": names,
        "price": np.array([random.randrange(1, 10**12) for _ in range(count)]),
        "size": np.array([random.randrange(1, 1_000) for _ in range(count)]),
    }
    raw, size = trade.encode(columns, count).tobytes(), trade.frame_size
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def agree(table: ConverterTable, packets: list[tuple[bytes, int, int]]) -> None:
    """Packets as (bytes, skip, count): output, counts and state are the same with and without prefetching."""
    foreseeing, plain = CompiledConverter(table, near_rows=0), CompiledConverter(table, near_rows=NEVER)
    ours, theirs = np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8)
    for data, skip, count in packets:
        result = foreseeing.convert(data, skip, count, ours, 0, len(ours))
        assert result == plain.convert(data, skip, count, theirs, 0, len(theirs))
        assert bytes(ours[: result.end]) == bytes(theirs[: result.end])
    assert foreseeing.counts() == plain.counts()
    assert foreseeing.digests().tolist() == plain.digests().tolist()
    assert foreseeing.snapshot() == plain.snapshot()


def test_the_index_can_grow_while_rows_are_prefetched() -> None:
    random = Random(1)
    frames = trades(random, 20_000, 4 * TABLE_SIZE_FIRST)
    agree(table_of(TICKS), [(packet(frames[at : at + 34]), 0, 34) for at in range(0, len(frames), 34)])


def test_packets_with_more_messages_than_hints_and_parts_of_packets_are_converted_alike() -> None:
    random = Random(2)
    packets = []
    for _ in range(60):
        frames = trades(random, 3 * HINTS_MAX, 5_000)
        skip = random.randrange(len(frames))
        packets.append((packet(frames), skip, random.randrange(len(frames) - skip + 1)))
    agree(table_of(TICKS), packets)


def test_damaged_packets_are_prefetched_up_to_the_damage() -> None:
    random = Random(3)
    packets = []
    for _ in range(2_000):
        data = bytearray(packet(trades(random, 12, 3_000)))
        for _ in range(random.randrange(4)):
            data[random.randrange(32, len(data))] = random.randrange(256)
        packets.append((bytes(data[: random.randrange(32, len(data) + 1)]), 0, 12))
    agree(table_of(TICKS), packets)


def test_orders_are_prefetched_by_their_ids() -> None:
    frames = itch_messages(20_000, alive_min=3_000)
    assert "foresee_row(arena, hints, SPACE_" in kernel_source(table_of(BOOK)).text
    agree(table_of(BOOK), [(packet(frames[at : at + 34]), 0, 34) for at in range(0, len(frames), 34)])


def test_a_table_without_state_prefetches_nothing() -> None:
    assert "foresee(" not in kernel_source(shipped_table("iex")).text
