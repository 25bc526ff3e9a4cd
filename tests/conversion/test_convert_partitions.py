"""`convert file --partition`: files in folders by day, type and bucket, to which each conversion adds."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow.dataset
import pyarrow.parquet
import pytest

from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.adapter.convert_command.output import partitions, row_groups

ITCH = ["--shipped", "itch50", "--session", "20191230"]


def add_order(number: int) -> bytes:
    """ITCH message A of one of five stocks."""
    at, stock = number.to_bytes(6, "big"), number % 5
    return struct.pack(">cHH6sQcI8sI", b"A", stock, 0, at, number, b"B", 100, b"STOCK%-3d" % stock, 10_000)


def delete_order(number: int) -> bytes:
    """ITCH message D, which has no symbol."""
    return struct.pack(">cHH6sQ", b"D", number % 5, 0, number.to_bytes(6, "big"), number)


def convert(folder: Path, first: int, *options: str) -> int:
    bodies = [make(number) for number in range(first, first + 20) for make in (add_order, delete_order)]
    path = folder / f"{first}.itch"
    path.write_bytes(b"".join(len(body).to_bytes(2, "big") + body for body in bodies))
    return main(["file", str(path), *ITCH, "--to", str(folder / "lake"), *options])


@pytest.mark.parametrize("open_max", [1, partitions.OPEN_MAX])
def test_rows_are_in_the_folders_of_their_day_type_and_bucket(
    tmp_path: Path, open_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "OPEN_MAX", open_max)
    assert convert(tmp_path, 1, "--partition", "3") == 0
    assert convert(tmp_path, 100, "--partition", "3") == 0
    assert not list(tmp_path.rglob(".part-*"))
    dataset = pyarrow.dataset.dataset(tmp_path / "lake", partitioning="hive")
    rows = dataset.to_table().to_pylist()
    assert {row["day"] for row in rows} == {"2019-12-30"}
    assert {row["type"] for row in rows} == {"OrderEvent"}
    assert sorted(row["orderId"] for row in rows) == sorted(2 * [*range(1, 21), *range(100, 120)])
    bucket_of = {row["instrumentId"]: row["bucket"] for row in rows}
    assert len(bucket_of) == 5
    assert {row["bucket"] for row in rows} == {0, 1, 2}
    assert all(row["bucket"] == bucket_of[row["instrumentId"]] for row in rows)  # with a symbol and without one


def test_row_groups_of_a_partition_are_as_large_as_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "ROWS_MAX", 10)  # two of these four groups have two rows of each partition
    monkeypatch.setattr(partitions, "ROWS_MAX", 8)
    assert convert(tmp_path, 1, "--partition", "5") == 0
    files = [pyarrow.parquet.ParquetFile(path) for path in sorted((tmp_path / "lake").rglob("*.parquet"))]
    assert [[each.metadata.row_group(n).num_rows for n in range(each.num_row_groups)] for each in files] == [[8]] * 5
    rows = files[0].read().to_pylist()
    assert [row["orderId"] for row in rows] == [5, 5, 10, 10, 15, 15, 20, 20]
    assert [row["symbol"] for row in rows] == ["STOCK0", None] * 4


def test_only_parquet_is_partitioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(tmp_path, 1, "--partition", "3", "--as", "csv") == 2
    assert "--partition writes Parquet" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        convert(tmp_path, 1, "--partition", "0")
    assert "'0' is not a number of buckets from 1 to 256" in capsys.readouterr().err
