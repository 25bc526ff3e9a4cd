"""Decides which rows of a recording become messages. A refused row keeps its record index and makes no message.

Pure. Invariant: whether a row is refused depends on its file up to that row, the source format and the rules alone, so
numbers are the same whenever, and in whatever micro-batch, the file is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.source_layout import SourceField, SourceFormat
from tandemfeed.spark_feed.numbering.rows.columns import codes_of, integers_of
from tandemfeed.spark_feed.recordings.recording import NULL_PRICE, SCHEMA

NEVER_NULL = ("kind", "symbol", "event_at_ns")
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Rules:
    """What is refused besides rows that the source format cannot hold.

    Attributes:
        symbols: the known symbols; empty: all are known.
        late_ms: a row is late if its time is this much before the newest time above it in its file; 0: never.
    """

    symbols: frozenset[bytes] = frozenset()
    late_ms: int = 0

    @property
    def text(self) -> str:
        """Identifies the rules, on which numbers depend; empty if there are none."""
        parts = [f"late {self.late_ms} ms"] if self.late_ms else []
        if self.symbols:
            digest = hashlib.sha256(b"\n".join(sorted(self.symbols))).hexdigest()[:16]
            parts.append(f"{len(self.symbols)} symbols {digest}")
        return ", ".join(parts)


class Refused(NamedTuple):
    """A refused row: its place among the screened rows."""

    place: int
    reason: str


class Screen:
    """Screens the rows of one file, from the first to the last."""

    def __init__(self, source_format: SourceFormat, rules: Rules) -> None:
        self._format, self._rules = source_format, rules
        self._newest_ns = 0

    def refused(self, rows: Any) -> list[Refused]:
        """The rows that make no message, ascending, each with its first reason.

        Args:
            rows: the next rows of the file, with the columns of `recording.SCHEMA`.
        """
        reasons: dict[int, str] = {}
        for places, reason in self._findings(rows):
            for place in places.tolist():
                reasons.setdefault(place, reason(place) if callable(reason) else reason)
        if self._rules.late_ms:
            self._note_late(rows, reasons)
        return [Refused(*each) for each in sorted(reasons.items())]

    def _findings(self, rows: Any) -> Iterator[tuple[NDArray[np.int64], Any]]:
        for name in NEVER_NULL:
            yield _where(pc.is_null(rows.column(name))), f"{name} is null"
        kinds, kind_codes = codes_of(rows.column("kind"))
        symbols, symbol_codes = codes_of(rows.column("symbol"))
        if self._rules.symbols:
            for code, symbol in enumerate(symbols):
                if symbol not in self._rules.symbols:
                    yield np.flatnonzero(symbol_codes == code), f"the symbol {symbol.decode()!r} is unknown"
        for code, kind in enumerate(kinds):
            message = self._format.messages.get(kind.decode())
            members = np.flatnonzero(kind_codes == code)
            if message is None:
                known = ", ".join(self._format.messages)
                yield members, f"no message is named {kind.decode()!r}; the messages are {known}"
                continue
            for name, field in message.fields.items():
                if name == "symbol":
                    yield from _long_symbols(field, members, symbols, symbol_codes)
                elif name in rows.column_names and field.kind.is_integer:
                    yield from _outside(name, field, rows.column(name), members)

    def _note_late(self, rows: Any, reasons: dict[int, str]) -> None:
        times = integers_of(rows.column("event_at_ns"))
        is_good = np.ones(len(times), np.bool_)
        is_good[list(reasons)] = False  # so that a row with a wrong time does not make others late
        newest = np.maximum.accumulate(np.concatenate([[self._newest_ns], np.where(is_good, times, 0)]))
        late_ns = newest[:-1] - times
        for place in np.flatnonzero(is_good & (late_ns > self._rules.late_ms * NS_PER_MS)).tolist():
            reasons[place] = f"late: {late_ns[place] / NS_PER_MS:g} ms before a row above it"
        self._newest_ns = int(newest[-1])


def schema_change(found: Any) -> str:
    """Why a file with this Arrow schema is not a part of a recording; empty if it is."""
    for field in SCHEMA:
        place = found.get_field_index(field.name)
        if place < 0:
            return f"schema change: the file has no column {field.name!r}"
        kind = found.field(place).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        is_same = pa.types.is_integer(kind) if pa.types.is_integer(field.type) else _is_text(kind)
        if not is_same:
            return f"schema change: column {field.name!r} has type {kind} instead of {field.type}"
    return ""


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _long_symbols(
    field: SourceField, members: NDArray[np.int64], symbols: list[bytes], codes: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], str]]:
    lengths = np.fromiter(map(len, symbols), np.int64, len(symbols))
    for code in np.flatnonzero((lengths < 1) | (lengths > field.length)).tolist():
        reason = f"the symbol {symbols[code].decode()!r} has {lengths[code]} bytes; it must have 1 to {field.length}"
        yield members[codes[members] == code], reason


def _outside(name: str, field: SourceField, column: Any, members: NDArray[np.int64]) -> Iterator[Any]:
    """The rows whose value the field cannot hold."""
    is_price = field.exponent != 0
    null = field.null if field.null is not None else (NULL_PRICE if is_price else 0)
    low, high = field.kind.minimum, field.kind.maximum
    if field.kind.size == 8 and not is_price:
        return  # ids are the two's complement of unsigned ones, so all are in range
    if not (is_price and field.null is None) and _is_within(column, low, high):
        return
    values = integers_of(column, int(null))[members]
    if is_price and field.null is None:
        yield members[values == NULL_PRICE], f"{name} is null; the source format has no null for it"
    wrong = (values < low) | (values > high)
    of_row = dict(zip(members[wrong].tolist(), values[wrong].tolist(), strict=True))
    yield members[wrong], lambda place: f"{name} is {of_row[place]}; it must be {low} to {high}"


def _is_within(column: Any, low: int, high: int) -> bool:
    """True if no value of a column is outside; the usual case, and quickly found."""
    found = pc.min_max(column).as_py()
    return found["min"] is None or (found["min"] >= low and found["max"] <= high)


def _where(mask: Any) -> NDArray[np.int64]:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False) if isinstance(mask, pa.Array) else mask.to_numpy())
