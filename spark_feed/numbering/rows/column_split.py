"""Splits that a user describes: a rule, and the column whose values it divides.

`Split` is what the command line and the sink name by texts; its `value` is in the journal's plan. So a journal that was
begun with another split, or with another table, is refused.
"""

from __future__ import annotations

import csv
import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemfeed.spark_feed.numbering.rows.columns import Coded, RecordedRows
from tandemfeed.spark_feed.numbering.rows.split import stream_of_hash, streams_of_letters
from tandemfeed.spark_feed.numbering.split_words import ANY, HASH, INDEX, LETTER, RANGES, SYMBOL, TABLE


class SplitError(ValueError):
    """A split cannot be used; the text says what to give."""


class ColumnRule(Protocol):
    """A function from a column's value to the index of a source stream."""

    @property
    def value(self) -> str:
        """Identifies the rule; as on the command line, if that is all."""

    def check(self, kind: Any) -> None:
        """Check that the rule divides values of an Arrow type. Raises: SplitError."""

    def places(self, column: Coded, stream_count: int) -> NDArray[np.int64]:
        """The index of the source stream of each distinct value, then of a null, which counts as the empty text."""


@dataclass(frozen=True, slots=True)
class Letters:
    """Equal ranges of the first letter."""

    value: str = LETTER

    def check(self, kind: Any) -> None:
        """As of the protocol."""
        if pa.types.is_integer(kind):
            raise SplitError(
                "split letter divides texts, and the column has numbers: give hash, ranges:… or table:FILE"
            )

    def places(self, column: Coded, stream_count: int) -> NDArray[np.int64]:
        """As of the protocol."""
        return streams_of_letters(column.padded(1).reshape(-1), stream_count)


@dataclass(frozen=True, slots=True)
class Hash:
    """The CRC-32 of a text, or of a number's decimal digits."""

    value: str = HASH

    def check(self, kind: Any) -> None:
        """As of the protocol."""

    def places(self, column: Coded, stream_count: int) -> NDArray[np.int64]:
        """As of the protocol."""
        return np.array([stream_of_hash(text, stream_count) for text in (*column.texts, b"")], np.int64)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of texts in the order of their bytes, or of numbers.

    Attributes:
        firsts: the first value of each stream but the first.
    """

    firsts: tuple[bytes, ...]

    @property
    def value(self) -> str:
        """As on the command line."""
        return RANGES + ",".join(each.decode() for each in self.firsts)

    def check(self, kind: Any) -> None:
        """As of the protocol."""
        firsts: Sequence[Any] = self._numbers() if pa.types.is_integer(kind) else self.firsts
        if any(not before < after for before, after in pairwise(firsts)):
            raise SplitError(
                f"split {self.value}: each value must be greater than the one before it, because it is the first of "
                "the next stream"
            )

    def places(self, column: Coded, stream_count: int) -> NDArray[np.int64]:
        """As of the protocol."""
        if pa.types.is_integer(column.distinct.type):
            values = np.asarray(column.distinct, np.int64)
            return np.append(np.searchsorted(self._numbers(), values, side="right"), 0).astype(np.int64)
        return np.array([bisect_right(self.firsts, text) for text in (*column.texts, b"")], np.int64)

    def _numbers(self) -> tuple[int, ...]:
        try:
            return tuple(int(each) for each in self.firsts)
        except ValueError:
            text = f"split {self.value}: the column has integers, so the ranges must begin with integers"
            raise SplitError(text) from None


@dataclass(frozen=True, slots=True)
class Table:
    """Values one by one. Attributes: default: the index of the stream of all others."""

    streams: dict[bytes, int] = field(hash=False)
    default: int

    @property
    def value(self) -> str:
        """Identifies the content."""
        lines = sorted(b"%b %d" % each for each in self.streams.items())
        digest = hashlib.sha256(b"\n".join([*lines, b"%d" % self.default])).hexdigest()[:16]
        return TABLE + digest

    def check(self, kind: Any) -> None:
        """As of the protocol."""

    def places(self, column: Coded, stream_count: int) -> NDArray[np.int64]:
        """As of the protocol."""
        return np.array([self.streams.get(text, self.default) for text in (*column.texts, b"")], np.int64)


@dataclass(frozen=True, slots=True)
class Split:
    """How rows are assigned to source streams.

    Attributes:
        rule: of the values in a column; None: rows in turn.
        column: of the recording.
    """

    rule: ColumnRule | None
    column: str = SYMBOL

    @property
    def value(self) -> str:
        """Identifies the split in the journal's plan."""
        if self.rule is None:
            return INDEX
        return self.rule.value if self.column == SYMBOL else f"{self.rule.value} of {self.column}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it needs."""
        return () if self.rule is None else (self.column,)

    def check(self, schema: Any) -> None:
        """Check that rows of an Arrow schema can be split.

        Raises:
            SplitError: the text says what to give.
        """
        if self.rule is None:
            return
        place = schema.get_field_index(self.column)
        kind = schema.field(place).type if place >= 0 else None
        if kind is not None and pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind is None or not (
            pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
        ):
            found = f"there is no column {self.column!r}" if kind is None else f"the column {self.column!r} is {kind}"
            raise SplitError(
                f"split {self.value}: {found}; split by a column of texts or integers: {', '.join(schema.names)}"
            )
        self.rule.check(kind)


BY_LETTER, BY_HASH, IN_TURN = Split(Letters()), Split(Hash()), Split(None)


def streams_of_rows(
    split: Split, recorded: RecordedRows, record_index: NDArray[np.int64], stream_count: int
) -> NDArray[np.int64]:
    """The index (0 … stream_count - 1) of each row's source stream.

    Args:
        record_index: shape (rows,).
    """
    if split.rule is None:
        return record_index % stream_count
    column = recorded.coded(split.column)
    return split.rule.places(column, stream_count)[column.codes]


def parse_split(text: str, source_stream_ids: Sequence[int], column: str = SYMBOL) -> Split:
    """Read `letter`, `hash`, `index`, `ranges:FIRST,…` or `table:FILE`.

    Args:
        column: whose values are divided.

    Raises:
        SplitError: it is none of these, or does not fit the streams.
        OSError: the table cannot be read.
    """
    if text.startswith(RANGES):
        ranges = _ranges(text.removeprefix(RANGES), len(source_stream_ids))
        if column == SYMBOL:
            ranges.check(pa.string())
        return Split(ranges, column)
    if text.startswith(TABLE):
        return Split(_table(Path(text.removeprefix(TABLE)), source_stream_ids), column)
    words: dict[str, ColumnRule | None] = {LETTER: Letters(), HASH: Hash(), INDEX: None}
    if text not in words:
        raise SplitError(f"split {text!r}: expected {', '.join(words)}, {RANGES}FIRST,… or {TABLE}FILE")
    rule = words[text]
    if rule is None and column != SYMBOL:
        raise SplitError(f"split index takes rows in turn, so it divides no column; leave out the column {column!r}")
    return Split(rule, column if rule is not None else SYMBOL)


def _ranges(text: str, stream_count: int) -> Ranges:
    firsts = tuple(each.strip().encode() for each in text.split(",") if each.strip())
    if len(firsts) != stream_count - 1:
        raise SplitError(
            f"split {RANGES}{text}: {stream_count} source streams need {stream_count - 1} values in ascending order, "
            "each the first of its stream; what is before them goes to the first stream"
        )
    return Ranges(firsts)


def _table(path: Path, source_stream_ids: Sequence[int]) -> Table:
    streams: dict[bytes, int] = {}
    for number, value, stream in _lines(path):
        if not stream.isdecimal() or int(stream) not in source_stream_ids:
            known = ", ".join(map(str, source_stream_ids))
            raise SplitError(f"{path}, line {number}: source stream {stream!r}; the feed has {known}")
        if value in streams:
            raise SplitError(f"{path}, line {number}: {value.decode()} has a line already")
        streams[value] = source_stream_ids.index(int(stream))
    if ANY not in streams:
        raise SplitError(f"{path} has no line for *, which says where all other values go")
    return Table(streams, streams.pop(ANY))


def _lines(path: Path) -> Iterator[tuple[int, bytes, str]]:
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            if not row or row[0].startswith("#"):
                continue
            if len(row) != 2:
                raise SplitError(f"{path}, line {number}: {len(row)} values; expected VALUE,SOURCE_STREAM_ID")
            yield number, row[0].strip().encode(), row[1].strip()
