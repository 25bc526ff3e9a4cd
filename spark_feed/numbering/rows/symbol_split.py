"""Splits that a user describes: ranges of symbols, or a table of symbols and their source streams.

`Split` is what the command line and the sink name by a text; its `value` is in the journal's plan. So a journal that
was begun with another split, or with another table, is refused.
"""

from __future__ import annotations

import csv
import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandemfeed.spark_feed.numbering.rows.split import SplitRule, assign_streams

RANGES, TABLE = "ranges:", "table:"
ANY = b"*"  # in a table: every symbol that has no line of its own


class SplitError(ValueError):
    """A split cannot be used; the text says what to give."""


@dataclass(frozen=True, slots=True)
class SymbolRanges:
    """Ranges in the order of the symbols' bytes. Attributes: firsts: the first symbol of each stream but the first."""

    firsts: tuple[bytes, ...]

    @property
    def value(self) -> str:
        """As on the command line."""
        return RANGES + ",".join(each.decode() for each in self.firsts)

    def places(self, symbols: Sequence[bytes]) -> NDArray[np.int64]:
        """The index of each symbol's source stream."""
        return np.array([bisect_right(self.firsts, symbol) for symbol in symbols], np.int64)


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """Symbols one by one. Attributes: default: the index of the stream of all others."""

    streams: dict[bytes, int] = field(hash=False)
    default: int

    @property
    def value(self) -> str:
        """Identifies the content."""
        lines = sorted(b"%b %d" % each for each in self.streams.items())
        digest = hashlib.sha256(b"\n".join([*lines, b"%d" % self.default])).hexdigest()[:16]
        return TABLE + digest

    def places(self, symbols: Sequence[bytes]) -> NDArray[np.int64]:
        """The index of each symbol's source stream."""
        return np.array([self.streams.get(symbol, self.default) for symbol in symbols], np.int64)


Split = SplitRule | SymbolRanges | SymbolTable


def streams_of_rows(
    split: Split,
    symbols: Sequence[bytes],
    symbol_codes: NDArray[np.int64],
    record_index: NDArray[np.int64],
    stream_count: int,
) -> NDArray[np.int64]:
    """The index of each row's source stream, as `split.assign_streams` has it."""
    if isinstance(split, SplitRule):
        return assign_streams(split, symbols, symbol_codes, record_index, stream_count)
    return split.places(symbols)[symbol_codes]


def parse_split(text: str, source_stream_ids: Sequence[int]) -> Split:
    """Read `letter`, `hash`, `index`, `ranges:FIRST,…` or `table:FILE`.

    Raises:
        SplitError: it is none of these, or does not fit the streams.
        OSError: the table cannot be read.
    """
    if text.startswith(RANGES):
        return _ranges(text.removeprefix(RANGES), len(source_stream_ids))
    if text.startswith(TABLE):
        return _table(Path(text.removeprefix(TABLE)), source_stream_ids)
    words = [rule.value for rule in SplitRule]
    if text not in words:
        raise SplitError(f"split {text!r}: expected {', '.join(words)}, {RANGES}FIRST,… or {TABLE}FILE")
    return SplitRule(text)


def _ranges(text: str, stream_count: int) -> SymbolRanges:
    firsts = tuple(each.strip().encode() for each in text.split(",") if each.strip())
    if len(firsts) != stream_count - 1 or list(firsts) != sorted(set(firsts)):
        raise SplitError(
            f"split {RANGES}{text}: {stream_count} source streams need {stream_count - 1} symbols in ascending order, "
            "each the first of its stream; what is before them goes to the first stream"
        )
    return SymbolRanges(firsts)


def _table(path: Path, source_stream_ids: Sequence[int]) -> SymbolTable:
    streams: dict[bytes, int] = {}
    for number, symbol, stream in _lines(path):
        if not stream.isdecimal() or int(stream) not in source_stream_ids:
            known = ", ".join(map(str, source_stream_ids))
            raise SplitError(f"{path}, line {number}: source stream {stream!r}; the feed has {known}")
        if symbol in streams:
            raise SplitError(f"{path}, line {number}: {symbol.decode()} has a line already")
        streams[symbol] = source_stream_ids.index(int(stream))
    if ANY not in streams:
        raise SplitError(f"{path} has no line for the symbol *, which says where all other symbols go")
    return SymbolTable(streams, streams.pop(ANY))


def _lines(path: Path) -> Iterator[tuple[int, bytes, str]]:
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            if not row or row[0].startswith("#"):
                continue
            if len(row) != 2:
                raise SplitError(f"{path}, line {number}: {len(row)} values; expected SYMBOL,SOURCE_STREAM_ID")
            yield number, row[0].strip().encode(), row[1].strip()
