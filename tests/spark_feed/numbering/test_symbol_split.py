"""Splits by ranges and by a table: where symbols go, what is refused, and that a journal keeps its split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.split import SplitRule
from tandemfeed.spark_feed.numbering.rows.symbol_split import Split, SplitError, parse_split, streams_of_rows
from tests.spark_feed.source_material import FEED, MESSAGES_MAX, SOURCE_FORMAT, make_recording

STREAMS = (7, 8, 9)
SYMBOLS = [b"A", b"G", b"GZ", b"N", b"Z", b"a"]


def streams(split: Split, symbols: list[bytes]) -> list[int]:
    codes = np.arange(len(symbols))
    return [STREAMS[place] for place in streams_of_rows(split, symbols, codes, codes, len(STREAMS)).tolist()]


def test_ranges_begin_with_the_symbols_that_are_named() -> None:
    assert streams(parse_split("ranges:G,N", STREAMS), SYMBOLS) == [7, 8, 8, 9, 9, 9]


def test_a_table_names_symbols_and_where_all_others_go(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("# busy symbols\nG,9\n\nZ, 8\n*,7\n")
    assert streams(parse_split(f"table:{tmp_path / 'table.csv'}", STREAMS), SYMBOLS) == [7, 9, 7, 7, 8, 7]


@pytest.mark.parametrize("rule", SplitRule)
def test_the_other_rules_are_words(rule: SplitRule) -> None:
    assert parse_split(rule.value, STREAMS) is rule


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("letters", r"split 'letters': expected letter, hash, index, ranges:FIRST,… or table:FILE"),
        ("ranges:G", "3 source streams need 2 symbols in ascending order"),
        ("ranges:N,G", "3 source streams need 2 symbols in ascending order"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SplitError, match=reason):
        parse_split(text, STREAMS)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("G,7\n", "no line for the symbol \\*"),
        ("*,7\nG,5\n", "line 2: source stream '5'; the feed has 7, 8, 9"),
        ("*,7\nG,8\nG,9\n", "line 3: G has a line already"),
        ("*,7\nG\n", "line 2: 1 values; expected SYMBOL,SOURCE_STREAM_ID"),
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
