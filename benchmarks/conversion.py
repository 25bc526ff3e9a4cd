"""The conversion kernels alone: the tick table, ITCH with full order books, many symbols, a second start.

Only `convert` is timed, called once per packet as the adapter does, on packets made in advance and with warm state.
Times are processor times, so that other load on the machine matters little.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.feedcore.wire.source_packet import encode_source_header

ROOT = Path(__file__).resolve().parent.parent
TICKS = ROOT / "deploy" / "examples" / "ticks"
BOOK = ROOT / "benchmarks" / "itch_book"
MESSAGES_PER_PACKET = 34
SYMBOLS = 10_000
ROUND_PACKETS = 10_000
ROUNDS = 5
OUT = np.zeros(8_192, np.uint8)
SECOND_START = """
import time; began = time.perf_counter()
from pathlib import Path
from tandemfeed.adapter.conversion.loading.converter_loading import load_converter
folder = Path({folder!r})
load_converter(folder / "source-format.xml", folder / "converter-table.xml", folder / "message-model.xml")
print(time.perf_counter() - began)
"""


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def header(count: int) -> bytes:
    """The header of a source packet."""
    return encode_source_header(
        feed_id=1, source_stream_id=1, message_count=count, session=20_261_121, first_source_seq=1, sent_at_ns=0
    )


def converter_of(folder: Path) -> CompiledConverter:
    """The converter made of the three documents in a folder."""
    return CompiledConverter(table_of(folder))


def table_of(folder: Path) -> ConverterTable:
    """The converter table made of the three documents in a folder."""
    return load_checked_table(
        folder / "source-format.xml", folder / "converter-table.xml", folder / "message-model.xml"
    )


def messages_per_s(converter: CompiledConverter, packets: list[bytes]) -> float:
    """Messages converted per second: the median of a few rounds over the packets."""
    rates = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for packet in packets:
            converter.convert(packet, 0, MESSAGES_PER_PACKET, OUT, 0, len(OUT))
        rates.append(len(packets) * MESSAGES_PER_PACKET / (time.process_time() - began))
    return statistics.median(rates)


def tick_packets(symbols: int, count: int) -> list[bytes]:
    """Packets of trades in random symbols."""
    random = np.random.default_rng(1)
    table = table_of(TICKS)
    trade = table.source_format.messages["trade"]
    total = count * MESSAGES_PER_PACKET
    keys = random.integers(0, symbols, total)
    names = np.array([b"%08d" % number for number in range(symbols)], dtype="S8")
    rows = trade.encode(
        {
            "symbol": names[keys],
            "price": random.integers(1, 10**12, total),
            "size": random.integers(1, 1_000, total),
        },
        total,
    )
    raw, size = rows.tobytes(), trade.frame_size * MESSAGES_PER_PACKET
    return [header(MESSAGES_PER_PACKET) + raw[at : at + size] for at in range(0, len(raw), size)]


def tick_rate(symbols: int) -> float:
    """Messages per second with state for `symbols` symbols, all of which occurred before."""
    converter = converter_of(TICKS)
    packets = tick_packets(symbols, max(ROUND_PACKETS, 3 * symbols // MESSAGES_PER_PACKET))
    for packet in packets:
        converter.convert(packet, 0, MESSAGES_PER_PACKET, OUT, 0, len(OUT))
    return messages_per_s(converter, packets[:ROUND_PACKETS])


def itch_messages(count: int, stocks: int = 500, alive_min: int = 5_000) -> list[bytes]:
    """ITCH 5.0 frames of orders as on a trading day: added near the best price, executed, replaced, deleted."""
    random = np.random.default_rng(2)
    alive: list[tuple[int, int, int]] = []  # id, stock, price
    frames = []
    kinds, near = random.random(count), random.integers(0, 40, count)
    picks, sizes = random.random(count), random.integers(20, 500, count) * 1_000
    for number in range(count):
        at = number.to_bytes(6, "big")
        stock = int(picks[number] * stocks)
        if kinds[number] < 0.45 or len(alive) < alive_min:
            side, sign = (b"B", -1) if number % 2 else (b"S", 1)
            price = 1_000_000 + 10_000 * (stock % 50) + sign * 100 * (1 + int(near[number]))
            body = struct.pack(
                ">cHH6sQcI8sI", b"A", stock, 0, at, number + 1, side, int(sizes[number]), b"STOCK   ", price
            )
            alive.append((number + 1, stock, price))
        else:
            place = int(picks[number] * len(alive))
            order, stock, price = alive[place]
            if kinds[number] < 0.85:
                body = struct.pack(">cHH6sQ", b"D", stock, 0, at, order)
                alive[place] = alive[-1]
                alive.pop()
            elif kinds[number] < 0.93:
                body = struct.pack(">cHH6sQIQ", b"E", stock, 0, at, order, 10, number)
            else:
                body = struct.pack(">cHH6sQQII", b"U", stock, 0, at, order, number + 1, int(sizes[number]), price)
                alive[place] = (number + 1, stock, price)
        frames.append(len(body).to_bytes(2, "big") + body)
    return frames


def itch_rate() -> float:
    """Messages per second through the order books; each message gives the best bid and ask of its stock."""
    frames = itch_messages(ROUND_PACKETS * MESSAGES_PER_PACKET)
    packets = [
        header(MESSAGES_PER_PACKET) + b"".join(frames[at : at + MESSAGES_PER_PACKET])
        for at in range(0, len(frames), MESSAGES_PER_PACKET)
    ]
    rates = []
    converter = converter_of(BOOK)
    empty = converter.snapshot()
    for _ in range(3):
        converter.restore(empty)
        began = time.process_time()
        for packet in packets:
            converter.convert(packet, 0, MESSAGES_PER_PACKET, OUT, 0, len(OUT))
        rates.append(len(frames) / (time.process_time() - began))
    wrong = {reason: count for reason, count in converter.counts().items() if count}
    if wrong:
        raise AssertionError(f"the converter refused messages; counts by reason: {wrong}")
    return statistics.median(rates)


def second_start_s() -> float:
    """Seconds a new process needs to import everything and load a converter that is compiled already."""
    code = SECOND_START.format(folder=str(TICKS))
    starts = [
        float(subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    return statistics.median(starts)


def run(_: argparse.Namespace) -> dict[str, object]:
    """Measure everything."""
    began = time.perf_counter()
    converter_of(TICKS)
    first = time.perf_counter() - began
    say(f"tick table: kernel ready after {first:.2f} s (compiled unless it was on the disk)")
    rate = tick_rate(SYMBOLS)
    say(f"tick table, {SYMBOLS:,} symbols: {rate:,.0f} messages/s")
    few, many = tick_rate(1_000), tick_rate(1_000_000)
    say(f"tick table, 1,000 symbols: {few:,.0f} messages/s; 1,000,000 symbols: {many:,.0f} messages/s")
    book = itch_rate()
    say(f"ITCH with order books: {book:,.0f} messages/s")
    second = second_start_s()
    say(f"second start: {second:.2f} s, imports included")
    return {
        "tick_msgs_per_s": round(rate),
        "itch_book_msgs_per_s": round(book),
        "cost_ratio_1m_vs_1k_symbols": round(few / many, 2),
        "first_start_s": round(first, 2),
        "second_start_s": round(second, 2),
    }
