"""LOBSTER message files: CSV without a header; each row is an event of one stock's book, framed as in `lobster.xml`.

The columns are time, type, order id, size, price and direction. The accompanying file of the book's levels is not a
stream of messages. It serves to check a book that was rebuilt from the messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tandemfeed.adapter.conversion.formats.chunks import MESSAGE_COUNT_MAX, FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.files.tick_table import SYMBOL_SIZE, nine_decimals, unreadable
from tandemfeed.feedcore.documents.source_layout import SourceFormat

COLUMNS = {  # in the order of the file
    "time": pa.string(),
    "type": pa.uint8(),
    "order_id": pa.int64(),
    "size": pa.uint32(),
    "price": pa.int64(),
    "direction": pa.int8(),
}
FILE_NAME = re.compile(r"([^_]+)_\d{4}-\d\d-\d\d_\d+_\d+_message_\d+\.csv")


def read_lobster(path: Path, source_format: SourceFormat, symbol: str = "") -> Iterator[FrameChunk]:
    """The rows of a message file (.csv, .csv.gz), in chunks, numbered from 1.

    Args:
        source_format: `lobster.xml`.
        symbol: the symbol of every row; by default, the one in the file's name, if LOBSTER's naming is used.

    Raises:
        FormatError: the text gives the invalid row, or the reason.
        OSError: the file cannot be read.
    """
    named = FILE_NAME.match(path.name)
    data = (symbol or (named[1] if named else "")).encode()
    if len(data) > SYMBOL_SIZE:
        raise FormatError(f"symbol {symbol!r} has more than {SYMBOL_SIZE} bytes")
    table = _read(path)
    types = np.asarray(table["type"])
    known = {message.type_id for message in source_format.messages.values()}
    for row in np.flatnonzero(~np.isin(types, sorted(known)))[:1]:
        raise FormatError(f"row {row + 1}: unknown event type {types[row]}")
    # All messages have the same fields: encode the rows as one type, then set each row's type.
    message = next(iter(source_format.messages.values()))
    values = {name: np.asarray(table[name]) for name in COLUMNS if name in message.fields and name != "time"}
    rows = message.encode({**values, "time": _times(table["time"]), "symbol": np.full(len(table), data)}, len(table))
    rows["message_type"] = types
    for first in range(0, len(rows), MESSAGE_COUNT_MAX):
        part = rows[first : first + MESSAGE_COUNT_MAX]
        yield FrameChunk(part.tobytes(), len(part), first + 1)


def _read(path: Path) -> pa.Table:
    """All rows; no cell is empty."""
    try:
        table = pyarrow.csv.read_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(column_names=list(COLUMNS)),
            convert_options=pyarrow.csv.ConvertOptions(column_types=COLUMNS, strings_can_be_null=True),
        ).combine_chunks()
    except pa.ArrowInvalid as wrong:
        raise unreadable(wrong) from None
    for name in COLUMNS:
        empty = pc.index(pc.is_null(table[name]), True).as_py()
        if empty >= 0:
            raise FormatError(f"row {empty + 1} has no {name}")
    return table


def _times(column: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Seconds with a fraction as nanoseconds, exact to the last digit."""
    times = column.combine_chunks()
    try:
        return nine_decimals(times)
    except pa.ArrowInvalid as wrong:
        raise FormatError(f"{_first_bad(times)}{wrong}") from None


def _first_bad(times: pa.Array) -> str:
    """The first row whose time cannot be read, for the error."""
    for row, time in enumerate(times, 1):
        try:
            nine_decimals(pa.array([time.as_py()]))
        except pa.ArrowInvalid:
            return f"row {row}: "
    return ""
