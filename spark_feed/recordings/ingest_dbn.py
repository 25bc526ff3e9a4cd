"""DBN files (Databento Binary Encoding) as recording tables: every record of the file's schema is kept.

mbo becomes orders, trades become trades; mbp-1, tbbo and the bbo schemas become quotes. Null prices keep DBN's value,
the largest 64-bit integer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import databento_dbn
import numpy as np
import pyarrow as pa
import zstandard

from tandemfeed.spark_feed.recordings.ingest_columns import Ingested, IngestOptions
from tandemfeed.spark_feed.recordings.recording import SYMBOL_SIZE_MAX, RecordingError, complete

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
READ_SIZE = 1 << 20
NS_PER_DAY = 86_400 * 10**9


def read_dbn_file(path: Path, options: IngestOptions) -> Ingested:
    """Read a whole DBN file, compressed or not.

    Raises:
        RecordingError: names the file and says what is wrong.
    """
    decoder = databento_dbn.DBNDecoder()
    metadata: Any = None
    rows: list[tuple[Any, ...]] = []
    taken: _Kind | None = None
    skipped = 0
    try:
        for piece in _pieces(path):
            decoder.write(piece)
            for record in decoder.decode():
                if metadata is None:
                    metadata = record
                    taken = _kind_of(path, metadata)
                elif taken is not None and isinstance(record, taken.types):
                    rows.append(taken.row(record))
                else:
                    skipped += 1
    except (databento_dbn.DBNError, zstandard.ZstdError, ValueError) as error:
        raise RecordingError(f"{path}: not a complete DBN file ({error})") from error
    if taken is None:
        raise RecordingError(f"{path}: no DBN metadata; give a complete file, not a fragment")
    if skipped:
        raise RecordingError(f"{path}: {skipped} records do not belong to the file's schema, {metadata.schema}")
    if not rows:
        raise RecordingError(f"{path} contains no records")
    columns = dict(zip(("instrument_id", *taken.columns), zip(*rows, strict=True), strict=True))
    return Ingested(_table(path, taken, columns, metadata, options), "DBN integers, exact")


class _Kind:
    """How records of a schema become rows: first the instrument id, then the named columns."""

    def __init__(self, name: str, types: tuple[type, ...], columns: str, row: Callable[[Any], tuple[Any, ...]]) -> None:
        self.name = name
        self.types = types
        self.columns = columns.split()
        self.row = row


def _order_row(r: Any) -> tuple[Any, ...]:
    return (
        *(r.instrument_id, r.ts_event, r.ts_recv, _signed(r.order_id), r.price, r.size, r.sequence, r.ts_in_delta),
        *(str(r.action), str(r.side), int(r.flags), r.channel_id),
    )


def _trade_row(r: Any) -> tuple[Any, ...]:
    return r.instrument_id, r.ts_event, r.price, r.size, str(r.side), int(r.flags)


def _quote_row(r: Any) -> tuple[Any, ...]:
    level = r.levels[0]
    return r.instrument_id, r.ts_event, level.bid_px, level.ask_px, level.bid_sz, level.ask_sz


_ORDER = _Kind(
    "order",
    (databento_dbn.MBOMsg,),
    "event_at_ns received_at_ns order_id price size sequence received_delta_ns action side flags venue_channel",
    _order_row,
)
_TRADE = _Kind("trade", (databento_dbn.TradeMsg,), "event_at_ns price size side flags", _trade_row)
_QUOTE = _Kind(
    "quote",
    (databento_dbn.MBP1Msg, databento_dbn.BBOMsg),
    "event_at_ns bid_price ask_price bid_size ask_size",
    _quote_row,
)
_KINDS = {"mbo": _ORDER, "trades": _TRADE, "mbp-1": _QUOTE, "tbbo": _QUOTE, "bbo-1s": _QUOTE, "bbo-1m": _QUOTE}


def _kind_of(path: Path, metadata: Any) -> _Kind:
    kind = _KINDS.get(str(metadata.schema))
    if kind is None:
        raise RecordingError(
            f"{path}: schema {metadata.schema} is not supported; supported schemas are {', '.join(_KINDS)}"
        )
    return kind


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        magic = file.read(len(ZSTD_MAGIC))
        file.seek(0)
        source: Any = file
        if magic == ZSTD_MAGIC:
            # A file may consist of several consecutive frames; the metadata may be one of them.
            source = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        while piece := source.read(READ_SIZE):
            yield piece


def _table(path: Path, kind: _Kind, columns: dict[str, Any], metadata: Any, options: IngestOptions) -> Any:
    count = len(columns["event_at_ns"])
    instruments = columns.pop("instrument_id")
    arrays: dict[str, Any] = {name: pa.array(values) for name, values in columns.items()}
    arrays["kind"] = pa.array([kind.name] * count, pa.string())
    if options.symbol is not None:
        arrays["symbol"] = pa.array([options.symbol] * count)
    else:
        days = np.array(columns["event_at_ns"], np.int64) // NS_PER_DAY
        names = _Symbols(metadata)
        arrays["symbol"] = pa.array([names(int(i), int(d)) for i, d in zip(instruments, days, strict=True)])
    for symbol in arrays["symbol"].unique().to_pylist():
        if len(symbol.encode()) > SYMBOL_SIZE_MAX:
            row = arrays["symbol"].index(symbol).as_py()
            raise RecordingError(
                f"{path}: record {row + 1}: symbol {symbol!r} is longer than {SYMBOL_SIZE_MAX} bytes; give --symbol"
            )
    return complete(arrays, count)


class _Symbols:
    """Maps an instrument id and a day to a symbol, using the file's metadata; an unmapped id stays its own symbol."""

    def __init__(self, metadata: Any) -> None:
        self._known: dict[tuple[int, int], str] = {}
        self._intervals: dict[str, list[tuple[date, date, str]]] = {}
        for symbol, intervals in metadata.mappings.items():
            for interval in intervals:
                row = (interval["start_date"], interval["end_date"], symbol)
                self._intervals.setdefault(interval["symbol"], []).append(row)

    def __call__(self, instrument_id: int, day: int) -> str:
        key = (instrument_id, day)
        if key not in self._known:
            intervals = self._intervals.get(str(instrument_id), [])
            at = datetime.fromtimestamp(day * 86_400, UTC).date()
            # Snapshot records have event times before the interval; the id is still clear if it has only one symbol.
            names = [name for start, end, name in intervals if start <= at < end] or [
                name for _, _, name in intervals if len({name for _, _, name in intervals}) == 1
            ]
            self._known[key] = names[0] if names else str(instrument_id)
        return self._known[key]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
