"""Sides in files: `ticks ingest` and `convert` read the same words alike, and take no other word for either side."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tandemfeed.adapter.convert_command.cli import main as convert
from tandemfeed.feedcore.aggressor import OF_MAKERS, OF_SIDES, Aggressor
from tandemfeed.spark_feed.recordings.cli import main as ticks

AT_NS = 1_735_689_600_000_000_000
INGESTED = {"A": Aggressor.SELLER, "B": Aggressor.BUYER, "N": Aggressor.UNKNOWN}
CONVERTED = {"S": Aggressor.SELLER, "B": Aggressor.BUYER, "N": Aggressor.UNKNOWN}


def trades(column: str, values: list[object]) -> pa.Table:
    times = [AT_NS + row for row in range(len(values))]
    return pa.table({"time": times, "price": [1] * len(values), "size": [1] * len(values), column: values})


def written(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return path


def ingested(path: Path) -> list[Aggressor]:
    out = path.parent / "recording"
    assert ticks(["ingest", str(path), "--symbol", "ACME", "--out", str(out)]) == 0
    (part,) = out.glob("*.parquet")
    return [INGESTED[side] for side in pq.read_table(part).column("side").to_pylist()]


def converted(path: Path) -> list[Aggressor]:
    out = path.parent / "out"
    assert convert(["file", str(path), "--shipped", "tick-table", "--every-field", "--to", str(out)]) == 0
    return [CONVERTED[side or "N"] for side in pq.read_table(out / "trade.parquet").column("side").to_pylist()]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(("column", "words"), [("side", OF_SIDES), ("is_buyer_maker", OF_MAKERS)])
def test_both_readers_know_the_same_words_in_any_case(
    tmp_path: Path, column: str, words: dict[str, Aggressor], suffix: str
) -> None:
    spelled = [form for word in words for form in (word, word.upper(), f" {word}")]
    expected = [words[each.strip().lower()] for each in spelled]
    path = written(tmp_path / f"trades.{suffix}", trades(column, spelled))
    assert ingested(path) == converted(path) == expected


@pytest.mark.parametrize(
    "values", [[True, False, None], [1, 0, None], [1.0, 0.0, float("nan")]], ids=["truth values", "integers", "floats"]
)
def test_both_readers_know_the_types_that_truth_values_have(tmp_path: Path, values: list[object]) -> None:
    path = written(tmp_path / "trades.parquet", trades("is_buyer_maker", values))
    assert ingested(path) == converted(path) == [Aggressor.SELLER, Aggressor.BUYER, Aggressor.UNKNOWN]


@pytest.mark.parametrize(
    ("column", "word"), [("side", "long"), ("side", "3"), ("is_buyer_maker", "2"), ("is_buyer_maker", "buy")]
)
def test_both_readers_refuse_every_other_word_and_name_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, word: str
) -> None:
    known = "buy" if column == "side" else "true"
    path = written(tmp_path / "trades.csv", trades(column, [known, word]))
    assert ticks(["ingest", str(path), "--symbol", "ACME", "--out", str(tmp_path / "recording")]) == 2
    assert f"{word!r} is not one of" in capsys.readouterr().err
    assert convert(["file", str(path), "--shipped", "tick-table", "--every-field", "--to", str(tmp_path / "out")]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"column '{column}', row 2: {word!r} is not one of" in said
