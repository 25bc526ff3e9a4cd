"""Splits of a column by ranges and by a table: where values go, what is refused and kept by a journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import (
    BY_HASH,
    BY_LETTER,
    IN_TURN,
    Split,
    SplitError,
    parse_split,
    streams_of_rows,
)
from tandemfeed.spark_feed.numbering.rows.columns import RecordedRows
from tests.spark_feed.source_material import FEED, MESSAGES_MAX, SOURCE_FORMAT, make_recording

STREAMS = (7, 8, 9)
SYMBOLS = ["A", "G", "GZ", "N", "Z", "a"]


def streams(split: Split, values: Sequence[object]) -> list[int]:
    rows = RecordedRows(pa.table({split.column: pa.array(values)}))
    split.check(rows.rows.schema)
    places = streams_of_rows(split, rows, np.arange(len(values)), len(STREAMS))
    return [STREAMS[place] for place in places.tolist()]


def test_ranges_begin_with_the_symbols_that_are_named() -> None:
    assert streams(parse_split("ranges:G,N", STREAMS), SYMBOLS) == [7, 8, 8, 9, 9, 9]


def test_a_table_names_symbols_and_where_all_others_go(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("# busy symbols\nG,9\n\nZ, 8\n*,7\n")
    assert streams(parse_split(f"table:{tmp_path / 'table.csv'}", STREAMS), SYMBOLS) == [7, 9, 7, 7, 8, 7]


@pytest.mark.parametrize("split", [BY_LETTER, BY_HASH, IN_TURN])
def test_the_other_rules_are_words(split: Split) -> None:
    assert parse_split(split.value, STREAMS) == split


def test_any_column_of_texts_or_integers_can_be_split(tmp_path: Path) -> None:
    (tmp_path / "venues.csv").write_text("XNAS,8\n101,9\n*,7\n")
    table = parse_split(f"table:{tmp_path / 'venues.csv'}", STREAMS, "venue")
    assert streams(table, ["XNAS", "XNYS", None]) == [8, 7, 7]
    assert streams(table, [7, 101, None]) == [7, 9, 7]
    numbers = parse_split("ranges:9,100", STREAMS, "instrument")  # in the order of numbers, not of their digits
    assert streams(numbers, [-5, 8, 9, 99, 100, None]) == [7, 7, 8, 8, 9, 7]
    by_hash = parse_split("hash", STREAMS, "venue")
    assert streams(by_hash, [101, 7]) == streams(by_hash, ["101", "7"])
    assert (by_hash.value, table.value[:6]) == ("hash of venue", "table:")


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("hash", "price", r"split hash of price: the column 'price' is double; split by a column of texts or integers"),
        ("hash", "desk", r"there is no column 'desk'.*: price, venue, instrument"),
        ("ranges:9,100", "venue", "each value must be greater than the one before it"),
        ("ranges:100,9", "instrument", "each value must be greater than the one before it"),
        ("ranges:A,B", "instrument", "the column has integers"),
        ("letter", "instrument", "split letter divides texts, and the column has numbers"),
    ],
)
def test_a_split_that_does_not_fit_its_column_is_refused(text: str, column: str, reason: str) -> None:
    schema = pa.schema({"price": pa.float64(), "venue": pa.string(), "instrument": pa.int64()})
    with pytest.raises(SplitError, match=reason):
        parse_split(text, STREAMS, column).check(schema)


def test_rows_in_turn_divide_no_column() -> None:
    with pytest.raises(SplitError, match="it divides no column; leave out the column 'venue'"):
        parse_split("index", STREAMS, "venue")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("letters", r"split 'letters': expected letter, hash, index, ranges:FIRST,… or table:FILE"),
        ("ranges:G", "3 source streams need 2 values in ascending order"),
        ("ranges:N,G", "split ranges:N,G: each value must be greater than the one before it"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SplitError, match=reason):
        parse_split(text, STREAMS)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("G,7\n", "no line for \\*"),
        ("*,7\nG,5\n", "line 2: source stream '5'; the feed has 7, 8, 9"),
        ("*,7\nG,8\nG,9\n", "line 3: G has a line already"),
        ("*,7\nG\n", "line 2: 1 values; expected VALUE,SOURCE_STREAM_ID"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_its_line(lines: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(lines)
    with pytest.raises(SplitError, match=reason):
        parse_split(f"table:{tmp_path / 'table.csv'}", STREAMS)


def test_a_journal_is_not_continued_with_a_table_that_changed(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 20, 20)
    table, ids = tmp_path / "table.csv", FEED.source_stream_ids

    def begin(lines: str) -> None:
        table.write_text(lines)
        split = parse_split(f"table:{table}", ids)
        with CommitLog(
            tmp_path / "journal", numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, split, MESSAGES_MAX)
        ):
            pass

    begin(f"*,{ids[0]}\nG,{ids[1]}\n")
    begin(f"# the same in another order\nG,{ids[1]}\n*,{ids[0]}\n")
    with pytest.raises(SourceJournalError, match=r"split was 'table:.*give the same options, or a new journal"):
        begin(f"*,{ids[0]}\nN,{ids[1]}\n")
