"""Bars as Spark queries: of trades, their prices, volume and VWAP; of quotes, statistics of the spread.

The same functions take a live stream, with a watermark, and a journal. Invariant: a bar is a function of the source
messages in its window: the first and the last of several at one time follow from their source identity, which is
the same in every adapter and after every takeover. All arithmetic is exact until a mean is divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

DataFrame: TypeAlias = Any  # pyspark is not typed for mypy

TRADE_FIELDS = ("eventAt", "symbol", "price", "size")
QUOTE_FIELDS = ("eventAt", "symbol", "bidPrice", "askPrice")
PRICE = "decimal(20,9)"
SIZE = "decimal(12,0)"  # so that its product with a price, and the sum of many, keep nine digits
BASIS_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class BarOptions:
    """How bars are made.

    Attributes:
        width: of a bar, as Spark writes durations.
        late: a stream's messages may come this much later than newer ones; bars are written so much later.
        columns: a field of TRADE_FIELDS or QUOTE_FIELDS -> the column that has it, where the names differ.
    """

    width: str = "1 minute"
    late: str = "10 seconds"
    columns: Mapping[str, str] = field(default_factory=dict)

    def column(self, name: str) -> str:
        """The column with a field."""
        return self.columns.get(name, name)


def trade_bars(trades: DataFrame, options: BarOptions) -> DataFrame:
    """Bars of trades: begin_at, symbol, open, high, low, close, volume, turnover, vwap, trade_count."""
    from pyspark.sql import functions as f

    place = _place(options)
    price, size = f.col(options.column("price")).cast(PRICE), f.col(options.column("size")).cast(SIZE)
    bars = _windows(trades, options).agg(
        f.min_by(price, place).alias("open"),
        f.max(price).alias("high"),
        f.min(price).alias("low"),
        f.max_by(price, place).alias("close"),
        f.sum(size).cast("decimal(20,0)").alias("volume"),
        f.sum(price * size).alias("turnover"),
        f.count(price).alias("trade_count"),
    )
    shown = ["symbol", "open", "high", "low", "close", "volume", "turnover"]
    vwap = f.try_divide("turnover", "volume").cast(PRICE).alias("vwap")  # null if all sizes are 0
    return bars.select(f.col("window.start").alias("begin_at"), *shown, vwap, "trade_count")


def quote_bars(quotes: DataFrame, options: BarOptions) -> DataFrame:
    """Bars of quotes: begin_at, symbol, spread_min, spread_max, spread_mean, spread_mean_bp (of the middle price, in
    basis points), middle_close, crossed_count, quote_count. Quotes that lack a side count, and nothing else."""
    from pyspark.sql import functions as f

    bid, ask = (f.col(options.column(name)).cast(PRICE) for name in ("bidPrice", "askPrice"))
    spread, middle = ask - bid, (ask + bid) / 2
    has_both = spread.isNotNull()
    bars = _windows(quotes, options).agg(
        f.min(spread).alias("spread_min"),
        f.max(spread).alias("spread_max"),
        f.avg(spread).cast(PRICE).alias("spread_mean"),
        f.avg(f.try_divide(spread.cast("double"), middle.cast("double")) * BASIS_POINTS).alias("spread_mean_bp"),
        f.max_by(f.when(has_both, middle), f.when(has_both, _place(options))).cast(PRICE).alias("middle_close"),
        f.count_if(spread < 0).alias("crossed_count"),
        f.count(f.lit(1)).alias("quote_count"),
    )
    return bars.select(f.col("window.start").alias("begin_at"), *bars.columns[1:])


def _place(options: BarOptions) -> Any:
    """What orders messages in a bar."""
    from pyspark.sql import functions as f

    return f.struct(options.column("eventAt"), "source_stream_id", "source_seq")


def _windows(messages: DataFrame, options: BarOptions) -> Any:
    from pyspark.sql import functions as f

    time = options.column("eventAt")
    if messages.isStreaming:
        messages = messages.withWatermark(time, options.late)
    return messages.groupBy(f.window(time, options.width), f.col(options.column("symbol")).alias("symbol"))
