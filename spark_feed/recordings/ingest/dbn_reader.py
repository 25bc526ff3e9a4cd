"""DBN files (Databento Binary Encoding) as recording tables: every record of the file's schema is kept.

mbo becomes orders, trades become trades; schemas with quotes become quotes of the best level, and the trades among them
trades as well. Null prices keep DBN's value, the largest 64-bit integer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import databento_dbn
import numpy as np
import pyarrow as pa
import zstandard

from tandemfeed.spark_feed.recordings.ingest.file_columns import IngestOptions
from tandemfeed.spark_feed.recordings.ingest.file_reader import OnRead
from tandemfeed.spark_feed.recordings.recording import SYMBOL_SIZE_MAX, RecordingError, complete

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
READ_SIZE = 1 << 20
TABLE_ROWS = 100_000
NS_PER_DAY = 86_400 * 10**9
UNDEFINED = databento_dbn.UNDEF_TIMESTAMP
TRADE = "T"  # the action of a record of a trade


class DbnReader:
    """Reads a DBN file, compressed or not; as `FileReader`. There is nothing to survey."""

    price_conversion = "DBN integers, exact"
    size_exponent = 0

    def __init__(self, path: Path, options: IngestOptions) -> None:
        self._path, self._options = path, options
        self.work_size = path.stat().st_size

    def survey(self, on_read: OnRead) -> None:
        """Nothing depends on later records."""

    def tables(self, size_exponent: int, on_read: OnRead) -> Iterator[Any]:
        """All records as tables, in order.

        Raises:
            RecordingError: names the file and says what is wrong.
        """
        assert size_exponent == self.size_exponent, "sizes are whole"
        return _tables(self._path, self._options, on_read)


def _tables(path: Path, options: IngestOptions, on_read: OnRead) -> Iterator[Any]:
    """The records in order, some `TABLE_ROWS` at a time."""
    taken: _Kind | None = None
    rows: list[Row] = []
    symbols: _Symbols | None = None
    first_row = skipped = 0
    for record in _records(path, on_read):
        if symbols is None:
            schema, symbols, taken = str(record.schema), _Symbols(record), _kind_of(path, record)
        elif taken is not None and isinstance(record, taken.types):
            rows.extend(taken.rows(record))
        else:
            skipped += 1
        if taken is not None and len(rows) >= TABLE_ROWS:
            yield _table(path, _columns(taken, rows), first_row, symbols, options)
            first_row, rows = first_row + len(rows), []
    if symbols is None or taken is None:
        raise RecordingError(f"{path}: no DBN metadata; give a complete file, not a fragment")
    if skipped:
        raise RecordingError(f"{path}: {skipped} records do not belong to the file's schema, {schema}")
    if not first_row and not rows:
        raise RecordingError(f"{path} contains no records")
    if rows:
        yield _table(path, _columns(taken, rows), first_row, symbols, options)


def _records(path: Path, on_read: OnRead) -> Iterator[Any]:
    """The metadata, then the records."""
    decoder = databento_dbn.DBNDecoder()
    try:
        for piece in _pieces(path, on_read):
            decoder.write(piece)
            yield from decoder.decode()
        if decoder.buffer():
            raise ValueError(f"its last {len(decoder.buffer())} bytes are not a whole record")
    except (databento_dbn.DBNError, zstandard.ZstdError, ValueError) as error:
        raise RecordingError(f"{path}: not a complete DBN file ({error})") from error


FIRST_COLUMNS = ("kind", "instrument_id", "event_at_ns")  # of every row
Row: TypeAlias = tuple[Any, ...]


class _Kind:
    """How records of a schema become rows: the first columns of every row, then the named columns."""

    def __init__(self, types: tuple[type, ...], columns: str, rows: Callable[[Any], Iterable[Row]]) -> None:
        self.types = types
        self.columns = columns.split()
        self.rows = rows


def _at(kind: str, r: Any) -> Row:
    """The first columns. A record without an event's time, such as a summary, has the time at which it was received."""
    event_at_ns = r.ts_event if r.ts_event != UNDEFINED else getattr(r, "ts_recv", UNDEFINED)
    return kind, r.instrument_id, event_at_ns


def _time(value: int) -> int | None:
    return None if value == UNDEFINED else value


def _order(r: Any) -> Iterator[Row]:
    yield (
        *_at("order", r),
        *(_time(r.ts_recv), _signed(r.order_id), r.price, r.size, r.sequence, r.ts_in_delta),
        *(str(r.action), str(r.side), int(r.flags), r.channel_id),
    )


def _trade(r: Any) -> Iterator[Row]:
    yield *_at("trade", r), r.price, r.size, str(r.side), int(r.flags), None, None, None, None


def _quote(r: Any) -> Iterator[Row]:
    level = r.levels[0]
    quoted = (level.bid_px, level.ask_px, level.bid_sz, level.ask_sz)
    yield *_at("quote", r), None, None, None, None, *quoted


def _quote_after_trade(r: Any) -> Iterator[Row]:
    """A change of the book; a trade is reported with the quotes after it."""
    if str(r.action) == TRADE:
        yield from _trade(r)
    yield from _quote(r)


def _quote_before_trade(r: Any) -> Iterator[Row]:
    """A trade, with the quotes before it."""
    yield from _quote(r)
    yield from _trade(r)


_TICK_COLUMNS = "price size side flags bid_price ask_price bid_size ask_size"
_LEVELS = (databento_dbn.MBP1Msg, databento_dbn.MBP10Msg, databento_dbn.CMBP1Msg)
_SUMMARIES = (databento_dbn.BBOMsg, databento_dbn.CBBOMsg)
_ORDERS = _Kind(
    (databento_dbn.MBOMsg,),
    "received_at_ns order_id price size sequence received_delta_ns action side flags venue_channel",
    _order,
)
_TRADES = _Kind((databento_dbn.TradeMsg,), _TICK_COLUMNS, _trade)
_BOOKS = _Kind(_LEVELS, _TICK_COLUMNS, _quote_after_trade)
_TRADES_WITH_QUOTES = _Kind(_LEVELS, _TICK_COLUMNS, _quote_before_trade)
_QUOTES = _Kind(_SUMMARIES, _TICK_COLUMNS, _quote)
_KINDS = {
    "mbo": _ORDERS,
    "trades": _TRADES,
    **dict.fromkeys(("mbp-1", "mbp-10", "cmbp-1"), _BOOKS),
    **dict.fromkeys(("tbbo", "tcbbo"), _TRADES_WITH_QUOTES),
    **dict.fromkeys(("bbo-1s", "bbo-1m", "cbbo-1s", "cbbo-1m"), _QUOTES),
}


def _kind_of(path: Path, metadata: Any) -> _Kind:
    kind = _KINDS.get(str(metadata.schema))
    if kind is None:
        raise RecordingError(
            f"{path}: schema {metadata.schema} is not supported; supported schemas are {', '.join(_KINDS)}"
        )
    return kind


def _pieces(path: Path, on_read: OnRead) -> Iterator[bytes]:
    """The file's content, decompressed.

    Raises:
        ValueError: it ends within a compressed frame.
    """
    with path.open("rb") as file:
        magic = file.read(len(ZSTD_MAGIC))
        file.seek(0)
        stored = _stored(file, on_read)
        yield from _decompressed(stored) if magic == ZSTD_MAGIC else stored


def _stored(file: BinaryIO, on_read: OnRead) -> Iterator[bytes]:
    while piece := file.read(READ_SIZE):
        on_read(len(piece))
        yield piece


def _decompressed(stored: Iterator[bytes]) -> Iterator[bytes]:
    """A file may consist of several consecutive frames; the metadata may be one of them."""
    frame: Any = None
    for piece in stored:
        while piece:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(piece)
            piece = b""
            if frame.eof:
                piece, frame = frame.unused_data, None
    if frame is not None:
        raise ValueError("it ends within a compressed frame")


def _columns(taken: _Kind, rows: list[Row]) -> dict[str, Any]:
    return dict(zip((*FIRST_COLUMNS, *taken.columns), zip(*rows, strict=True), strict=True))


def _table(path: Path, columns: dict[str, Any], first_row: int, names: _Symbols, options: IngestOptions) -> Any:
    count = len(columns["event_at_ns"])
    if UNDEFINED in columns["event_at_ns"]:
        row = first_row + columns["event_at_ns"].index(UNDEFINED) + 1
        raise RecordingError(f"{path}: row {row}: neither the event's time nor the time of its receipt is defined")
    instruments = columns.pop("instrument_id")
    arrays: dict[str, Any] = {name: pa.array(values) for name, values in columns.items()}
    if options.symbol is not None:
        arrays["symbol"] = pa.array([options.symbol] * count)
    else:
        days = np.array(columns["event_at_ns"], np.int64) // NS_PER_DAY
        arrays["symbol"] = pa.array([names(int(i), int(d)) for i, d in zip(instruments, days, strict=True)])
    for symbol in arrays["symbol"].unique().to_pylist():
        if len(symbol.encode()) > SYMBOL_SIZE_MAX:
            row = first_row + arrays["symbol"].index(symbol).as_py()
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
