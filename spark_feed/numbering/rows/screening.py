"""Decides which rows of a recording become messages. A refused row keeps its record index and makes no message.

Pure. Invariant: whether a row is refused depends on its file up to that row, the source format and the rules alone, so
numbers are the same whenever, and in whatever micro-batch, the file is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.source_layout import SourceField, SourceFormat
from tandemfeed.spark_feed.numbering.rows.columns import Coded, RecordedRows, Table
from tandemfeed.spark_feed.recordings.format_columns import columns_of
from tandemfeed.spark_feed.recordings.prices import signed
from tandemfeed.spark_feed.recordings.recording import NO_NUMBER, NO_TEXT, NULL_PRICE

NEVER_NULL = ("kind", "event_at_ns")
NS_PER_MS = 1_000_000

Finding: TypeAlias = tuple[NDArray[np.int64], str | Callable[[int], str]]  # rows, and what is wrong with each


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

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that they need."""
        return ("symbol",) if self.symbols else ()


class Refused(NamedTuple):
    """A refused row: its place among the screened rows."""

    place: int
    reason: str


class Screen:
    """Screens the rows of one file, from the first to the last."""

    def __init__(self, source_format: SourceFormat, rules: Rules) -> None:
        self._format, self._rules = source_format, rules
        self._newest_ns = 0

    def refused(self, rows: Table | RecordedRows) -> list[Refused]:
        """The rows that make no message, ascending, each with its first reason.

        Args:
            rows: the next rows of the file, with the columns of the source format.
        """
        recorded = rows if isinstance(rows, RecordedRows) else RecordedRows(rows)
        reasons: dict[int, str] = {}
        for places, reason in self._findings(recorded):
            for place in places.tolist():
                reasons.setdefault(place, reason(place) if callable(reason) else reason)
        if self._rules.late_ms:
            self._note_late(recorded, reasons)
        return [Refused(*each) for each in sorted(reasons.items())]

    def _findings(self, recorded: RecordedRows) -> Iterator[Finding]:
        for name in NEVER_NULL:
            yield recorded.nulls(name), f"{name} is null"
        if self._rules.symbols:
            yield from self._unknown_symbols(recorded.coded("symbol"))
        kinds = recorded.coded("kind")
        for code, kind in enumerate(kinds.texts):
            message, members = self._format.messages.get(kind.decode()), _Members(kinds.codes, code)
            if message is None:
                known = ", ".join(self._format.messages)
                yield members.all, f"no message is named {kind.decode()!r}; the messages are {known}"
                continue
            for name, field in columns_of(message).items():
                yield from _nulls(name, field, recorded, members)
                if field.is_text:
                    yield from _lengths(name, field, recorded.coded(name), members)
                elif field.kind.is_float:
                    yield from _large_floats(name, field, recorded, members)
                else:
                    yield from _outside(name, field, recorded, members)

    def _unknown_symbols(self, symbols: Coded) -> Iterator[Finding]:
        for code, symbol in enumerate(symbols.texts):
            if symbol not in self._rules.symbols:
                yield np.flatnonzero(symbols.codes == code), f"the symbol {symbol.decode()!r} is unknown"

    def _note_late(self, recorded: RecordedRows, reasons: dict[int, str]) -> None:
        times = recorded.integers("event_at_ns")
        is_good = np.ones(len(times), np.bool_)
        is_good[list(reasons)] = False  # so that a row with a wrong time does not make others late
        newest = np.maximum.accumulate(np.concatenate([[self._newest_ns], np.where(is_good, times, 0)]))
        late_ns = newest[:-1] - times
        for place in np.flatnonzero(is_good & (late_ns > self._rules.late_ms * NS_PER_MS)).tolist():
            reasons[place] = f"late: {late_ns[place] / NS_PER_MS:g} ms before a row above it"
        self._newest_ns = int(newest[-1])


class _Members:
    """The rows of one kind, found only if something may be wrong with them."""

    def __init__(self, codes: NDArray[np.int64], code: int) -> None:
        self._codes, self._code = codes, code

    @cached_property
    def all(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._codes == self._code)

    def among(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some rows that are of the kind."""
        found: NDArray[np.int64] = rows[self._codes[rows] == self._code]
        return found


def schema_change(found: Any, expected: Any) -> str:
    """Why a file with this Arrow schema is not a part of a recording; empty if it is.

    Args:
        expected: the recording's schema, as the source format has it.
    """
    for field in expected:
        place = found.get_field_index(field.name)
        if place < 0:
            return f"schema change: the file has no column {field.name!r}"
        kind = found.field(place).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(test(kind) and test(field.type) for test in (pa.types.is_integer, pa.types.is_floating, _is_text)):
            return f"schema change: column {field.name!r} has type {kind} instead of {field.type}"
    return ""


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _nulls(name: str, field: SourceField, recorded: RecordedRows, members: _Members) -> Iterator[Finding]:
    """The rows without a value that the field must have."""
    if field.null is None and name not in NO_NUMBER and name not in NO_TEXT:
        yield members.among(recorded.nulls(name)), f"{name} is null; the source format has no null for it"


def _lengths(name: str, field: SourceField, column: Coded, members: _Members) -> Iterator[Finding]:
    """The rows whose text the field cannot hold, or which have no symbol."""
    least = 1 if name == "symbol" else 0
    for code in np.flatnonzero((column.lengths < least) | (column.lengths > field.length)).tolist():
        text, length = column.texts[code].decode(), column.lengths[code]
        reason = f"the {name} {text!r} has {length} bytes; it must have {least} to {field.length}"
        yield members.among(np.flatnonzero(column.codes == code)), reason


def _outside(name: str, field: SourceField, recorded: RecordedRows, members: _Members) -> Iterator[Finding]:
    """The rows whose number the field cannot hold."""
    is_price = field.exponent != 0
    if field.kind.size == 8 and not is_price:
        return  # ids are the two's complement of unsigned ones, so all are in range
    null = signed(int(field.null)) if field.null is not None else (NULL_PRICE if is_price else 0)
    low, high = int(field.kind.minimum), int(field.kind.maximum)
    values = recorded.integers(name, null)
    is_needed = is_price and field.null is None
    if not values.size or (values.min() >= low and values.max() <= (min(high, NULL_PRICE - 1) if is_needed else high)):
        return  # the usual case
    if is_needed:
        yield (
            members.among(np.flatnonzero(values == NULL_PRICE)),
            f"{name} is null; the source format has no null for it",
        )
    wrong = members.among(np.flatnonzero(((values < low) | (values > high)) & (values != null)))
    yield wrong, lambda place: f"{name} is {values[place]}; it must be {low} to {high}"


def _large_floats(name: str, field: SourceField, recorded: RecordedRows, members: _Members) -> Iterator[Finding]:
    """The rows whose number is finite and would be infinite in the field."""
    values, high = recorded.floats(name), np.finfo(np.float32).max
    if field.kind.size == 4:
        wrong = members.among(np.flatnonzero(np.isfinite(values) & (np.abs(values) > high)))
        yield wrong, lambda place: f"{name} is {values[place]}; it must be {-high} to {high}"
