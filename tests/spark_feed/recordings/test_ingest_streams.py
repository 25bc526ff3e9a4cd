"""CSV and Parquet files are read as streams: in little memory, with a result that does not depend on the batches."""

from __future__ import annotations

import csv
import io
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.spark_feed.recordings.cli import main as ticks
from tandemfeed.spark_feed.recordings.ingest import column_file
from tandemfeed.spark_feed.recordings.ingest.file_columns import IngestOptions
from tandemfeed.spark_feed.recordings.ingest.ingesting import ingest
from tandemfeed.spark_feed.recordings.ingest.progress import IngestProgress
from tandemfeed.spark_feed.recordings.recording import NULL_PRICE, Manifest, RecordingError, part_path
from tests.spark_feed.recordings.test_recordings_of_own_formats import SOURCE_FORMAT

NAMES = ("time", "symbol", "price", "size", "side")
ISO, MILLISECONDS = "2026-11-20T09:30:00.{:09}Z", "17000000{:05}"
HEADER = b"time,symbol,price,size\n"
GROWTH_MAX_KIB = 70_000


@st.composite
def rows_of_ticks(draw: st.DrawFn) -> list[tuple[str, ...]]:
    """Rows of a CSV file; in some, some values are bad."""
    time = draw(st.sampled_from([ISO, MILLISECONDS]))
    symbols = st.sampled_from(["NA", "NULL", "nan", "ACME", "ÄÖ", "X,Y", 'a "quoted" one', "two\nlines"])
    numbers = st.decimals(0, 9_999, places=4).map(str) | st.just("") | st.just("12")
    sides = st.sampled_from(["buy", "S", "", "?"])
    row = st.tuples(st.integers(0, 99_999).map(time.format), symbols, numbers, numbers, sides)
    rows = draw(st.lists(row, min_size=1, max_size=40))
    for place, column, value in draw(
        st.lists(
            st.tuples(
                st.integers(0, 39),
                st.integers(0, 3),
                st.sampled_from(["", "noon", "x" * 65, "1.00000000001", "-1", "12:00", "2026-11-20"]),
            ),
            max_size=2,
        )
    ):
        if place < len(rows):
            rows[place] = (*rows[place][:column], value, *rows[place][column + 1 :])
    return rows


def write_csv(path: Path, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    return path


@contextmanager
def cut(csv_block_size: int, parquet_rows: int) -> Iterator[None]:
    """Have files read in batches of other sizes."""
    sizes = {"CSV_BLOCK_SIZE": csv_block_size, "PARQUET_BATCH_ROWS": parquet_rows}
    with patch.multiple(column_file, **sizes):  # type: ignore[call-overload]  # it has such attributes
        yield


def outcome(out: Path, paths: Sequence[Path], options: IngestOptions, **others: Any) -> dict[str, bytes] | str:
    """The files of the recording, or the error."""
    try:
        ingest(paths, out, options, **others)
    except RecordingError as refused:
        assert not out.exists(), "nothing is left"
        return str(refused)
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


@given(rows_of_ticks(), st.integers(250, 600), st.integers(1, 13), st.none() | st.just("AAA"))
def test_the_cut_into_batches_changes_neither_the_recording_nor_the_error(
    rows: list[tuple[str, ...]], block_size: int, rows_per_file: int, symbol: str | None
) -> None:
    options = IngestOptions(symbol=symbol)
    with TemporaryDirectory() as name:
        file = write_csv(Path(name) / "ticks.csv", NAMES, rows)
        whole = outcome(Path(name) / "whole", [file], options, rows_per_file=rows_per_file)
        with cut(block_size, 1):
            cut_up = outcome(Path(name) / "cut", [file], options, rows_per_file=rows_per_file)
        assert cut_up == whole


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6),
            st.sampled_from(["NA", "ACME", None]),
            st.floats(-100, 100) | st.just(float("nan")) | st.none(),
            st.decimals(0, 100, places=3),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 7),
)
def test_the_cut_of_a_parquet_file_changes_nothing_either(
    rows: list[tuple[Any, ...]], row_group_size: int, batch_rows: int, rows_per_file: int
) -> None:
    columns = dict(zip(("time", "symbol", "price", "size"), zip(*rows, strict=True), strict=True))
    table = pa.table({name: list(values) for name, values in columns.items()})
    with TemporaryDirectory() as name:
        path = Path(name) / "ticks.parquet"
        pq.write_table(table, path)
        whole = outcome(Path(name) / "whole", [path], IngestOptions(), rows_per_file=rows_per_file)
        pq.write_table(table, path, row_group_size=row_group_size)
        with cut(1, batch_rows):
            cut_up = outcome(Path(name) / "cut", [path], IngestOptions(), rows_per_file=rows_per_file)
        assert cut_up == whole


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("deal"), st.sampled_from(["1.5", "-2", "", "2.00001"]), st.sampled_from(["", "7", "x"])),
            st.tuples(st.just("status"), st.just(""), st.just("")),
            st.tuples(st.just("deals"), st.just("1"), st.just("")),
        ),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from(["1700000000000", "2026-11-20", ""]),
    st.integers(300, 500),
)
def test_the_cut_of_a_file_of_ones_own_format_changes_nothing_either(
    rows: list[tuple[str, str, str]], settles: str, block_size: int
) -> None:
    names = ["kind", "at", "isin", "venue", "clean_price", "coupon", "weight", "nominal", "desk", "settles_at_ns"]
    options = IngestOptions(columns={"event_at_ns": "at"})
    filled = [
        (kind, str(1_700_000_000 + at), "DE0001102580", "XEUR", price, "0.1", "1", "", desk, settles if at % 3 else "")
        for at, (kind, price, desk) in enumerate(rows)
    ]
    with TemporaryDirectory() as name:
        (document := Path(name) / "bonds.xml").write_text(SOURCE_FORMAT)
        file = write_csv(Path(name) / "deals.csv", names, filled)
        whole = outcome(Path(name) / "whole", [file], options, source_format=document)
        with cut(block_size, 1):
            assert outcome(Path(name) / "cut", [file], options, source_format=document) == whole


def big_file(path: Path, count: int) -> Path:
    """Trades whose sizes and times must be surveyed; a Parquet file has one row group."""
    at = np.arange(count)
    table = pa.table(
        {
            "time": 1_700_000_000_000 + at,
            "symbol": pa.array(["ACME", "NA", "BRK.B"]).take(pa.array(at % 3)),
            "price": at * 37 % 5_000 / 100,
            "size": (at % 900 + 1) / 4,
        }
    )
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pq.write_table(table, path, row_group_size=count)
    return path


INGEST_AND_REPORT_MEMORY = """
import sys
from tandemfeed.spark_feed.recordings.cli import main as ticks
assert ticks(["ingest", sys.argv[1], "--out", sys.argv[2]]) == 0
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak_memory_kib(file: Path, out: Path) -> int:
    """The most memory that a process had which ingested a file."""
    command = [sys.executable, "-c", INGEST_AND_REPORT_MEMORY, str(file), str(out)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_of_many_times_the_rows_needs_little_more_memory(tmp_path: Path, suffix: str) -> None:
    small, large = big_file(tmp_path / f"a.{suffix}", 50_000), big_file(tmp_path / f"b.{suffix}", 800_000)
    grown = peak_memory_kib(large, tmp_path / "large") - peak_memory_kib(small, tmp_path / "small")
    assert grown < GROWTH_MAX_KIB, "the columns alone have 32 bytes a row, and most steps copy them"
    assert Manifest.read(tmp_path / "large").record_count == 800_000


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (HEADER + b"1,A,2,3\n\n1,A,2\n", "row 2 (line 3): it has 3 columns instead of 4: '1,A,2'"),
        (HEADER + b"1,A,2,3,4\n", "row 1 (line 2): it has 5 columns instead of 4"),
        (HEADER.replace(b",", b";") + b"1;A;2;3\n", "its columns are separated by ';'; they must be separated by"),
        (HEADER.replace(b",", b"\t") + b"1\tA\t2\t3\n", "its columns are separated by '\\t'"),
        (HEADER + "1,A,2,3\n2,É,2,3\n".encode("latin-1"), "row 2 (line 3), column 'symbol': b'\\xc9' is not UTF-8"),
        ("time,price,größe\n1,2,3\n".encode("latin-1"), "the line of column names is not UTF-8 text; convert"),
        (HEADER.decode().encode("utf-16"), "the line of column names is not UTF-8 text"),
        (b"", "it has no line of column names with rows below it"),
        (b"\n", "it has no line of column names with rows below it"),
        (b"x", "it has no line of column names with rows below it"),
        (HEADER.strip(), "it has no line of column names with rows below it"),
        (HEADER, "t.csv contains no records"),
        (HEADER + b'1,"A,2,3\n' + b"1,A,2,3\n" * 40_000, "row 1 (line 2): it has 2 columns instead of 4: '1,\"A,2,3.1"),
        (HEADER + b"1,A,2,3\n1," + b"A" * 600_000 + b",2,3\n", "a row is longer than 262,144 bytes, or a quotation ma"),
        (b"time,symbol,price,price,size\n1,A,2,2,3\n", "there are several columns 'price'; rename or remove all but"),
        (HEADER + b"1,A,1e999999,3\n", "row 1 (line 2), column 'price': '1e999999' is out of range"),
        (HEADER + b"1,A,2,3\n2026-11-20,A,2,3\n", "row 2 (line 3), column 'time': '2026-11-20' and the times above it"),
        (HEADER + b"1,A,2,3\n,A,2,3\n", "row 2 (line 3), column 'time': the time is missing"),
        (HEADER + b"9223372036854775807,A,2,3\n1,A,2,x\n", "row 2 (line 3), column 'size': 'x' is not a number"),
    ],
)  # fmt: skip
def test_a_bad_csv_file_is_refused_with_file_row_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, expected: str
) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with cut(256 << 10, 1):
        assert ticks(["ingest", str(tmp_path / "t.csv"), "--out", str(tmp_path / "r")]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert "t.csv" in error
    assert not (tmp_path / "r").exists()


def test_the_first_bad_row_is_named_whichever_column_is_bad(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(
        HEADER + b"1,A,2,3\n2,A,x,3\n3,A,2,y\n" + b"4," + b"S" * 65 + b",2,3\nnoon,A,2,3\n"
    )
    with pytest.raises(RecordingError, match=r"row 2 \(line 3\), column 'price': 'x' is not a number"):
        ingest([tmp_path / "t.csv"], tmp_path / "r", IngestOptions())


def test_times_that_do_not_fit_in_64_bits_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(HEADER + b"1700000000,A,2,3\n1700000000000,A,2,3\n")
    with pytest.raises(RecordingError, match=r"row 2 .*1700000000000 does not fit .*give another --time-unit"):
        ingest([tmp_path / "t.csv"], tmp_path / "r", IngestOptions(time_unit="s"))


def test_a_damaged_parquet_file_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    file = big_file(tmp_path / "t.parquet", 200_000)
    whole = file.read_bytes()
    for content in (whole[:-100], b"x", b"", whole[:9_000] + bytes(200_000) + whole[209_000:]):
        file.write_bytes(content)
        with pytest.raises(RecordingError, match=r"t\.parquet: cannot be read"):
            ingest([file], tmp_path / "r", IngestOptions())
        assert not (tmp_path / "r").exists()


def test_several_files_continue_one_another(tmp_path: Path) -> None:
    (tmp_path / "ACME-1.csv").write_text("time,price,size\n1700000000,1.5,3\n1700000001,2,0.25\n")
    (tmp_path / "IBM.csv").write_text("ts,bid,ask\n2026-11-20T12:00:00,7,8\n")
    table = pa.table({"time": [1_700_000_000_000], "symbol": ["X"], "price": [Decimal("2.5")], "qty": [0.125]})
    pq.write_table(table, tmp_path / "more.parquet")
    paths = [tmp_path / name for name in ("ACME-1.csv", "IBM.csv", "more.parquet")]
    manifest = ingest(paths, tmp_path / "r", IngestOptions(), rows_per_file=3)
    assert (manifest.record_count, manifest.file_count, manifest.size_exponent) == (4, 2, -3)
    assert manifest.origin == "ACME-1.csv, IBM.csv, more.parquet"
    rows = [row for number in range(2) for row in pq.read_table(part_path(tmp_path / "r", number)).to_pylist()]
    assert [(row["record_index"], row["kind"], row["symbol"], row["price"], row["size"]) for row in rows] == [
        (0, "trade", "ACME", 1_500_000_000, 3_000),
        (1, "trade", "ACME", 2_000_000_000, 250),
        (2, "quote", "IBM", None, None),
        (3, "trade", "X", 2_500_000_000, 125),
    ]
    assert rows[3]["event_at_ns"] == 1_700_000_000 * 10**9, "each file has its own unit of times"


def test_a_bad_row_of_the_last_file_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(HEADER + b"1,A,2,3\n" * 9)
    (tmp_path / "b.csv").write_bytes(HEADER + b"1,A,2,3\n1,A,x,3\n")
    with pytest.raises(RecordingError, match=r"b\.csv: row 2 \(line 3\), column 'price'"):
        ingest([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "r", IngestOptions(), rows_per_file=2)
    assert not (tmp_path / "r").exists()
    (tmp_path / "c.dbn").write_bytes(b"")
    with pytest.raises(RecordingError, match="DBN files cannot be in one recording with"):
        ingest([tmp_path / "a.csv", tmp_path / "c.dbn"], tmp_path / "r", IngestOptions())


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(HEADER + b"1,A,2,3\n")

    class Appending(IngestProgress):
        def on_read(self, size: int) -> None:
            with file.open("ab") as growing:
                growing.write(b"2,A,2,3\n")

    with pytest.raises(RecordingError, match=r"t\.csv changed while it was read"):
        ingest([file], tmp_path / "r", IngestOptions(), progress=Appending())


def test_texts_of_every_arrow_type_are_texts(tmp_path: Path) -> None:
    table = pa.table({"time": ["2026-11-20T12:00:00Z"], "symbol": ["NA"], "price": ["NaN"], "size": ["1"]})
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        shown = pa.table(
            [column.cast(kind) if kind == pa.large_string() else column for column in table.columns], NAMES[:4]
        )
        shown = shown.set_column(1, "symbol", table["symbol"].cast(kind))
        pq.write_table(shown, tmp_path / "t.parquet")
        ingest([tmp_path / "t.parquet"], tmp_path / str(kind), IngestOptions())
        (row,) = pq.read_table(part_path(tmp_path / str(kind), 0)).to_pylist()
        assert (row["symbol"], row["price"], row["size"]) == ("NA", NULL_PRICE, 1)


INGEST_AND_PAUSE = """
import sys
from tandemfeed.spark_feed.recordings import cli

class Pausing(cli.IngestProgress):
    def on_records(self, count):
        super().on_records(count)
        if (cli.Path(sys.argv[-1]) / "part-00000001.parquet").exists():
            print("writing", flush=True)
            sys.stdin.read()

cli.IngestProgress = Pausing
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_ingest_leaves_no_recording(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "t.csv").write_bytes(HEADER + b"1,A,2,3\n" * 200_000)
    arguments = ["ingest", str(tmp_path / "t.csv"), "--rows-per-file", "20000", "--out", str(tmp_path / "r")]
    command = [sys.executable, "-c", INGEST_AND_PAUSE, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        child.send_signal(number)
        _, error = child.communicate()  # ends its pause, if the signal came just before the pause began
    if number == signal.SIGKILL:
        with pytest.raises(RecordingError, match="is not a finished recording"):
            Manifest.read(tmp_path / "r")
        with pytest.raises(RecordingError, match="has an unfinished recording, of a command that was killed"):
            ingest([tmp_path / "t.csv"], tmp_path / "r", IngestOptions())
    else:
        assert child.returncode == 128 + number
        assert f"ended by {number.name}; nothing was written" in error.decode()
        assert not (tmp_path / "r").exists()


def test_the_bar_says_how_much_is_read_and_how_long_the_rest_takes() -> None:
    now_s = 100.0
    terminal = io.StringIO()
    progress = IngestProgress(terminal, lambda: now_s)
    progress.begin(1_000)
    now_s += 2
    progress.on_read(400)
    assert progress.line() == "[############..................]  40 %  looking at times and sizes, 3 s left"
    progress.on_read(600)
    progress.on_records(12_345)
    progress.end()
    assert terminal.getvalue().endswith("[##############################] 100 %  12,345 records\x1b[K\n")
