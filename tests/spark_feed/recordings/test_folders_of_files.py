"""`ticks ingest` of a folder: all of its files, and what their paths say of their rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandemfeed.adapter.convert_command.cli import main as convert
from tandemfeed.spark_feed.recordings.cli import main as ticks

AT_NS = 1_735_689_600_000_000_000
NULL = "__HIVE_DEFAULT_PARTITION__"


def trades(path: Path, count: int, **columns: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"time": [AT_NS + row for row in range(count)], "price": [1] * count, "size": [1] * count, **columns}
    pq.write_table(pa.table(table), path)
    return path


def symbols(out: Path) -> list[str]:
    parts = sorted(out.glob("*.parquet"))
    return [symbol for part in parts for symbol in pq.read_table(part).column("symbol").to_pylist()]


def ingest(tmp_path: Path, *paths: Path) -> tuple[int, Path]:
    out = tmp_path / "recording"
    return ticks(["ingest", *map(str, paths), "--out", str(out)]), out


def test_the_folders_of_partitions_are_columns_of_their_files(tmp_path: Path) -> None:
    for symbol, count in (("AAPL", 2), ("BRK%2FB", 1), ("IBM", 3)):
        trades(tmp_path / "hive" / f"symbol={symbol}" / "6ECDA408E361.parquet", count)
    (tmp_path / "hive" / "_SUCCESS").touch()
    trades(tmp_path / "hive" / ".staging" / "half.parquet", 9)
    status, out = ingest(tmp_path, tmp_path / "hive")
    assert status == 0
    assert symbols(out) == ["AAPL", "AAPL", "BRK/B", "IBM", "IBM", "IBM"]


def test_files_in_such_folders_may_be_given_one_by_one_and_from_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trades(tmp_path / "day=2025-01-01" / "symbol=AAPL" / "a.parquet", 2)
    text = path.with_name("b.csv")
    text.write_text("time,price,size\n1735689600000000000,1,1\n")
    monkeypatch.chdir(path.parent)
    status, out = ingest(tmp_path, Path("a.parquet"), Path("b.csv"))
    assert status == 0
    assert symbols(out) == ["AAPL"] * 3


def test_a_column_that_is_in_the_file_and_in_its_path_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trades(tmp_path / "symbol=AAPL" / "a.parquet", 1, Symbol=["IBM"])
    assert ingest(tmp_path, path)[0] == 2
    assert "both the file and its path have a column 'symbol'" in capsys.readouterr().err


def test_convert_reads_the_same_columns_from_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trades(tmp_path / "symbol=AAPL" / "a.parquet", 2)
    options = ["--shipped", "tick-table", "--every-field", "--to", str(tmp_path / "out")]
    assert convert(["file", str(path), *options]) == 0
    assert pq.read_table(tmp_path / "out" / "trade.parquet").column("symbol").to_pylist() == ["AAPL", "AAPL"]
    twice = trades(tmp_path / "symbol=AAPL" / "b.parquet", 1, SYMBOL=["IBM"])
    assert convert(["file", str(twice), *options]) == 2
    assert "both the file and its path have a column 'symbol'" in " ".join(capsys.readouterr().err.split())


def test_a_partition_without_a_value_is_a_missing_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trades(tmp_path / f"symbol={NULL}" / "a.parquet", 1)
    assert ingest(tmp_path, path)[0] == 2
    assert "symbol is None" in capsys.readouterr().err


def test_a_folder_without_files_that_can_be_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.md").write_text("nothing")
    assert ingest(tmp_path, tmp_path / "empty")[0] == 2
    assert "empty: the folder has no file of a known type" in capsys.readouterr().err
