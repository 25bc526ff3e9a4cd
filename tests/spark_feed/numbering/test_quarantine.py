"""Rows that make no message go to the quarantine table with file, row and reason; the stream goes on."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import BY_LETTER
from tandemfeed.spark_feed.numbering.rows.packing import Block
from tandemfeed.spark_feed.numbering.rows.screening import Rules
from tandemfeed.spark_feed.numbering.tasks import reading
from tandemfeed.spark_feed.numbering.tasks.quarantine import quarantined_count
from tandemfeed.spark_feed.numbering.tasks.reading import FileReader
from tandemfeed.spark_feed.recordings.recording import RecordingError, part_path
from tests.losing_disk import FailsAt, losing_disk
from tests.spark_feed.source_material import (
    FEED,
    MESSAGES_MAX,
    SOURCE_FORMAT,
    assert_gapless,
    make_recording,
    packets_of,
)

ROWS = 200  # of a file
PLAIN = SOURCE_FORMAT.read_text()


def change(recording: Path, number: int, **columns: dict[int, object] | None) -> None:
    """Change values of a file by row; None: leave the column out."""
    path = part_path(recording, number)
    table = pq.read_table(path)
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        if values is None:
            table = table.remove_column(place)
            continue
        column = table.column(name).to_pylist()
        for row, value in values.items():
            column[row] = value
        table = table.set_column(place, name, pa.array(column, table.schema.field(name).type))
    pq.write_table(table, path)


def quarantine_of(
    folder: Path, rules: Rules | None = None, source_format: str = PLAIN
) -> tuple[list[dict[str, Any]], list[list[Block]]]:
    """(the quarantine table, the blocks of each file)."""
    (folder / "format.xml").write_text(source_format)
    loaded = load_source_format(folder / "format.xml")
    reader = FileReader(loaded, BY_LETTER, 2, rules or Rules(), ROWS, folder / "quarantine")
    parts = []
    for path in sorted((folder / "recording").glob("part-*.parquet")):
        parts.append([block for blocks in reader.blocks(path.as_uri()) for block in blocks])
    tables = [pq.read_table(path) for path in sorted((folder / "quarantine").glob("*.parquet"))]
    return [row for table in tables for row in table.to_pylist()], parts


def rows_of_kind(recording: Path, number: int, kind: str) -> list[int]:
    """The rows of a file that are of a kind."""
    kinds = pq.read_table(part_path(recording, number)).column("kind").to_pylist()
    return [row for row, each in enumerate(kinds) if each == kind]


def test_each_kind_of_bad_row_is_refused_with_file_row_and_reason(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", 2 * ROWS, ROWS)
    trades = rows_of_kind(tmp_path / "recording", 1, "trade")
    bad = dict(zip(("long", "kind", "size", "empty"), trades, strict=False))
    change(
        tmp_path / "recording", 1,
        symbol={bad["long"]: "TOOLONGNAME", bad["empty"]: ""}, kind={bad["kind"]: "swap"}, size={bad["size"]: -5},
    )  # fmt: skip
    rows, parts = quarantine_of(tmp_path)
    found = {row["row"]: row for row in rows}
    assert {row["file"] for row in rows} == {"part-00000001.parquet"}
    assert found.keys() == set(bad.values())
    assert all(row["record_index"] == ROWS + row["row"] for row in rows)
    expected = {
        "long": "has 11 bytes; it must have 1 to 8", "kind": "no message is named 'swap'",
        "size": "size is -5; it must be 0 to 4294967295", "empty": "has 0 bytes",
    }  # fmt: skip
    for name, text in expected.items():
        assert text in found[bad[name]]["reason"]
    assert json.loads(found[bad["size"]]["record"])["size"] == -5
    assert sum(block.sizes.size for block in parts[1]) == ROWS - len(bad)
    assert all(block[:2] == (ROWS, 2 * ROWS) for block in parts[1])


def refused_rows(folder: Path) -> int:
    return sum(pq.read_table(path).num_rows for path in (folder / "quarantine").glob("*.parquet"))


def test_refused_rows_are_on_the_disk_when_their_task_ends_and_only_its_user_may_read_them(tmp_path: Path) -> None:
    work = tmp_path / "work"
    make_recording(work / "recording", 2 * ROWS, ROWS)
    change(work / "recording", 1, kind={3: "swap"})
    with losing_disk(work, tmp_path / "kept") as disk:
        assert [row["row"] for row in quarantine_of(work)[0]] == [3]
        assert refused_rows(disk.image(tmp_path / "image")) == 1
    (file,) = (work / "quarantine").iterdir()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (work / "quarantine", file)] == [0o700, 0o600]


@pytest.mark.parametrize("operation", ["flush", "flush_folder", "rename"])
def test_rows_that_cannot_be_stored_are_a_problem_of_the_task_which_may_run_again(
    tmp_path: Path, operation: str
) -> None:
    work = tmp_path / "work"
    make_recording(work / "recording", ROWS, ROWS)
    change(work / "recording", 0, kind={3: "swap"})
    matching = "quarantine" if operation == "flush_folder" else "part-00000000"
    fault = FailsAt(1, operations=(operation,), matching=matching)
    with losing_disk(work, tmp_path / "kept", fault) as disk:
        with pytest.raises(RecordingError, match=r"part-00000000\.parquet: .*(could not be flushed|Input/output)"):
            quarantine_of(work)
        assert [row["row"] for row in quarantine_of(work)[0]] == [3]
        assert refused_rows(disk.image(tmp_path / "image")) == 1


@pytest.mark.parametrize("name", ["kind", "symbol", "event_at_ns"])
def test_a_row_without_kind_symbol_or_time_is_refused(tmp_path: Path, name: str) -> None:
    make_recording(tmp_path / "recording", ROWS, ROWS)
    path = part_path(tmp_path / "recording", 0)
    table = pq.read_table(path)
    fields = [field.with_nullable(True) for field in table.schema]
    pq.write_table(pa.Table.from_arrays(table.columns, schema=pa.schema(fields)), path)
    change(tmp_path / "recording", 0, **{name: {3: None}})
    rows, parts = quarantine_of(tmp_path)
    assert [(row["row"], row["reason"].split(";")[0]) for row in rows] == [(3, f"{name} is null")]
    assert sum(block.sizes.size for block in parts[0]) == ROWS - 1


def test_a_price_is_refused_if_the_source_format_forbids_negative_or_null_ones(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", ROWS, ROWS)
    negative, null = rows_of_kind(tmp_path / "recording", 0, "quote")[:2]
    change(tmp_path / "recording", 0, bid_price={negative: -1, null: None})
    assert quarantine_of(tmp_path)[0] == []
    strict = PLAIN.replace(
        '<field name="bid_price" type="int64" exponent="-9" null="9223372036854775807"/>',
        '<field name="bid_price" type="uint64" exponent="-9"/>',
    )
    rows, _ = quarantine_of(tmp_path, source_format=strict)
    expected = [(negative, "bid_price is -1"), (null, "bid_price is null")]
    assert [(row["row"], row["reason"].split(";")[0]) for row in rows] == sorted(expected)


def test_unknown_symbols_and_late_rows_are_refused_by_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_recording(tmp_path / "recording", ROWS, ROWS)
    table = pq.read_table(part_path(tmp_path / "recording", 0))
    symbols, times = table.column("symbol").to_pylist(), table.column("event_at_ns").to_pylist()
    unknown = next(symbol for symbol in symbols if symbol not in symbols[99:102])
    change(tmp_path / "recording", 0, event_at_ns={100: times[99] - 6_000_000, 101: times[99] - 4_000_000})
    known = frozenset(symbol.encode() for symbol in symbols if symbol != unknown)
    for read_count in (1_000, 64):  # whatever is read at once
        monkeypatch.setattr(reading, "READ_COUNT", read_count)
        rows, _ = quarantine_of(tmp_path, Rules(known, late_ms=5))
        assert [(row["row"], row["reason"]) for row in rows if row["reason"].startswith("late")] == [
            (100, "late: 6 ms before a row above it")
        ]
        refused = [row["row"] for row in rows if row["reason"] == f"the symbol {unknown!r} is unknown"]
        assert refused == [row for row, symbol in enumerate(symbols) if symbol == unknown]


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_file_with_another_schema_is_refused_as_a_whole(tmp_path: Path, is_missing: bool) -> None:
    make_recording(tmp_path / "recording", 3 * ROWS, ROWS)
    path = part_path(tmp_path / "recording", 1)
    if is_missing:
        change(tmp_path / "recording", 1, price=None)
    else:
        table = pq.read_table(path)
        place = table.schema.get_field_index("price")
        price = pa.array([0.5] * ROWS)
        pq.write_table(table.set_column(place, "price", price), path)
    rows, parts = quarantine_of(tmp_path)
    reason = "the file has no column 'price'" if is_missing else "column 'price' has type double instead of int64"
    assert {row["reason"] for row in rows} == {f"schema change: {reason}"}
    assert [row["row"] for row in rows] == list(range(ROWS))
    assert [block[:2] for block in parts[1]] == [(ROWS, 2 * ROWS)] * 2
    plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX)
    with SourceJournalWriter(tmp_path / "journal", plan) as writer:
        for batch_id, part in enumerate(parts):
            writer.append_batch(batch_id, [part])
        assert quarantined_count(tmp_path / "quarantine", writer.last_commit.next_record_index) == ROWS
        assert quarantined_count(tmp_path / "quarantine", ROWS + 1) == 1
        writer.end()
    assert sum(assert_gapless(packets_of(tmp_path / "journal")).values()) == 2 * ROWS


def test_numbers_depend_on_the_rules_so_a_journal_keeps_its_own(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", ROWS, ROWS)

    def open_with(rules: Rules) -> None:
        plan = numbering_plan(tmp_path / "recording", SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX, rules)
        CommitLog(tmp_path / "journal", plan).close()

    open_with(Rules())
    with pytest.raises(SourceJournalError, match="rules was None, is 'late 5 ms'"):
        open_with(Rules(late_ms=5))
