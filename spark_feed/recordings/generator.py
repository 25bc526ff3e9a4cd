"""Generates realistic ticks from a seed: a busy open and close, a quiet noon, and thousands of unevenly active symbols.

One seeded numpy Generator draws everything in chunks of fixed size, whole arrays at a time, so equal options give equal
bytes. The mid price of a symbol is a random walk on the tick grid that moves only with quotes. A trade happens at the
bid or the ask of the symbol's last quote; a symbol's first message is a quote.

Invariant: event times never decrease, and bid < ask in every quote.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemfeed.spark_feed.recordings.recording import complete
from tandemfeed.spark_feed.recordings.tickers import make_tickers

CHUNK_COUNT = 250_000  # messages per draw; changing it changes what a seed produces
CENT = 10_000_000  # one cent with exponent -9
MID_FLOOR_TICKS = 10  # the walk is reflected here, so that no bid falls below one tick
SPREAD_TICKS_MAX = 8
DAY_POINTS = 2_048


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """What to generate.

    Attributes:
        trade_share: share of messages that are trades; the rest are quotes.
        zipf_exponent: how unevenly symbols trade; 0 is evenly.
        open_at, duration: trading hours in UTC.
    """

    message_count: int
    symbol_count: int
    seed: int
    trade_share: float = 0.25
    zipf_exponent: float = 1.05
    day: date = date(2026, 11, 20)
    open_at: timedelta = timedelta(hours=14, minutes=30)
    duration: timedelta = timedelta(hours=6, minutes=30)

    def __post_init__(self) -> None:
        if self.message_count < 1:
            raise ValueError(f"the number of messages is {self.message_count}; it must be at least 1")
        if not 0 <= self.trade_share < 1:
            raise ValueError(f"the trade share is {self.trade_share}; it must be at least 0 and less than 1")


class TickGenerator:
    """Generates one day in chunks. Call `tables()` only once."""

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._rng = np.random.default_rng(options.seed)
        count = options.symbol_count
        self.tickers = make_tickers(self._rng, count)
        self._symbols = pa.array(self.tickers)
        weights = (np.arange(count) + 3.0) ** -options.zipf_exponent
        self._activity = np.cumsum(weights / weights.sum())
        self._walk = np.maximum(self._rng.lognormal(8.3, 0.9, count).astype(np.int64), 2 * MID_FLOOR_TICKS)
        self._spread = np.zeros(count, np.int64)  # 0: not quoted yet
        self._open_ns = _open_ns(options)
        self._day = _cumulative_day()

    def tables(self) -> Iterator[pa.Table]:
        """The day's ticks in order, as tables without record_index."""
        total = self._options.message_count
        for start in range(0, total, CHUNK_COUNT):
            yield self._chunk(start, min(CHUNK_COUNT, total - start))

    def _chunk(self, start: int, count: int) -> pa.Table:
        rng = self._rng
        events = self._event_times(start, count)
        symbols = np.minimum(np.searchsorted(self._activity, rng.random(count)), len(self._activity) - 1)
        order = np.argsort(symbols, kind="stable")
        by_symbol = symbols[order]
        starts = np.flatnonzero(np.r_[True, by_symbol[1:] != by_symbol[:-1]])
        is_quote = rng.random(count) >= self._options.trade_share
        is_quote[starts[self._spread[by_symbol[starts]] == 0]] = True
        bid, spread = self._walk_prices(by_symbol, starts, is_quote)
        at_ask = rng.random(count) < 0.5
        price = np.where(at_ask, bid + spread, bid) * CENT
        back = np.empty(count, np.int64)
        back[order] = np.arange(count)
        sizes = _sizes(rng, (3, count))
        return _table(
            symbols=self._symbols.take(pa.array(symbols)),
            events=events,
            is_quote=is_quote[back],
            price=price[back],
            at_ask=at_ask[back],
            bid=(bid * CENT)[back],
            ask=((bid + spread) * CENT)[back],
            sizes=sizes,
        )

    def _event_times(self, start: int, count: int) -> NDArray[np.int64]:
        # One uniform draw per equal share of the day's activity ascends without a sort, chunk by chunk.
        shares = (np.arange(start, start + count) + self._rng.random(count)) / self._options.message_count
        at = np.interp(shares, self._day, np.linspace(0.0, 1.0, DAY_POINTS))
        duration_ns = self._options.duration // timedelta(microseconds=1) * 1_000
        return self._open_ns + (at * duration_ns).astype(np.int64)

    def _walk_prices(
        self, by_symbol: NDArray[np.int64], starts: NDArray[np.int64], is_quote: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Bid and spread, in ticks, of the last quote at each message; messages are grouped by symbol."""
        count = len(by_symbol)
        group_sizes = np.diff(np.r_[starts, count])
        steps = self._rng.choice(np.array([-2, -1, 0, 1, 2]), size=count, p=(0.02, 0.16, 0.64, 0.16, 0.02))
        moved = np.cumsum(np.where(is_quote, steps, 0))
        before = np.r_[0, moved][starts]  # the sum over all earlier groups
        walk = np.repeat(self._walk[by_symbol[starts]] - before, group_sizes) + moved
        # A reflected walk is the absolute distance of the free walk from the floor; only the free walk is kept.
        mid = MID_FLOOR_TICKS + np.abs(walk - MID_FLOOR_TICKS)
        drawn = np.minimum(self._rng.geometric(0.55, count), SPREAD_TICKS_MAX)
        last_quote = np.maximum.accumulate(np.where(is_quote, np.arange(count), -1))
        carried = last_quote < np.repeat(starts, group_sizes)  # the last quote lies in an earlier chunk
        spread = np.where(carried, np.repeat(self._spread[by_symbol[starts]], group_sizes), drawn[last_quote])
        ends = starts + group_sizes - 1
        self._walk[by_symbol[starts]] = walk[ends]
        self._spread[by_symbol[starts]] = spread[ends]
        return mid - spread // 2, spread


def _open_ns(options: GeneratorOptions) -> int:
    midnight = datetime(options.day.year, options.day.month, options.day.day, tzinfo=UTC)
    return int((midnight + options.open_at).timestamp()) * 1_000_000_000


def _cumulative_day() -> NDArray[np.float64]:
    at = np.linspace(0.0, 1.0, DAY_POINTS)
    intensity = 0.45 + 5.0 * np.exp(-at / 0.035) + 1.1 * (2 * at - 1) ** 2 + 2.5 * np.exp(-(1 - at) / 0.03)
    total = np.cumsum(intensity)
    return np.asarray((total - total[0]) / (total[-1] - total[0]))


def _sizes(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.int64]:
    lots = np.maximum(1, rng.lognormal(0.6, 0.9, shape).astype(np.int64)) * 100
    odd = rng.integers(1, 100, shape)
    return np.where(rng.random(shape) < 0.3, odd, lots)


def _table(
    *,
    symbols: pa.Array,
    events: NDArray[np.int64],
    is_quote: NDArray[np.bool_],
    price: NDArray[np.int64],
    at_ask: NDArray[np.bool_],
    bid: NDArray[np.int64],
    ask: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> pa.Table:
    quotes = pa.array(is_quote)
    side = pa.array(["A", "B"]).take(pa.array(at_ask.astype(np.int8)))  # a trade at the ask was started by a buyer
    columns = {
        "kind": pa.array(["trade", "quote"]).take(pa.array(is_quote.astype(np.int8))),
        "symbol": symbols,
        "event_at_ns": pa.array(events),
        "price": pa.array(price, mask=is_quote),
        "size": pa.array(sizes[0], mask=is_quote),
        "side": pc.if_else(quotes, pa.scalar(None, pa.string()), side),
        "flags": pa.array(np.zeros(len(events), np.int16), mask=is_quote),
        "bid_price": pa.array(bid, mask=~is_quote),
        "ask_price": pa.array(ask, mask=~is_quote),
        "bid_size": pa.array(sizes[1], mask=~is_quote),
        "ask_size": pa.array(sizes[2], mask=~is_quote),
    }
    return complete(columns, len(events))
