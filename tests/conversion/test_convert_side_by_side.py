"""`convert file --jobs`: recordings are converted side by side, and their number at a time changes nothing."""

from __future__ import annotations

import csv
import errno
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input, StreamReport
from tandemfeed.adapter.convert_command.recordings.independence import (
    InputsContinueEachOther,
    Recording,
    groups_of,
    recordings_in,
    require_own_streams,
    with_sessions,
)
from tandemfeed.adapter.convert_command.recordings.staging import PREFIX
from tandemfeed.benchmarks.captures.material import write_pcap
from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.conversion.test_convert_captures import ITCH, add_order, delete_order, itch_file, mold, shown
from tests.real_data import shared_file
from tests.small_disk import SmallDisk

LINES = [(bytes([233, 54, 12, number]), 26_400) for number in (111, 112)]
START_S = 120.0  # within which the command starts on a busy machine


def convert(folder: Path, paths: Sequence[Path], *options: str) -> int:
    return main(["file", *map(str, paths), *ITCH, "--to", str(folder), *options])


def three_days(folder: Path) -> list[Path]:
    """Files of orders with the same numbers, some of which are deleted on the next day only."""
    paths = []
    for day, count in enumerate((300, 20, 100)):
        bodies = [add_order(number, 100 * day + number) for number in range(1, count)]
        bodies += [delete_order(number) for number in range(1, count, day + 2)]
        path = folder / f"day{day}.itch"
        path.write_bytes(b"".join(struct.pack(">H", len(body)) + body for body in bodies))
        paths.append(path)
    return paths


def table(path: Path) -> Any:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    return pyarrow.csv.read_csv(path) if path.suffix == ".csv" else pa.ipc.open_file(path).read_all()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv"])
def test_tables_have_the_rows_of_each_recording_in_order(tmp_path: Path, kind: str) -> None:
    paths, name = three_days(tmp_path), f"OrderEvent.{kind}"
    assert convert(tmp_path / "out", paths, "--jobs", "2", "--as", kind) == 0
    for number, path in enumerate(paths):
        assert convert(tmp_path / str(number), [path], "--as", kind) == 0
    alone = pa.concat_tables(table(tmp_path / str(number) / name) for number in range(len(paths)))
    assert table(tmp_path / "out" / name).to_pylist() == alone.to_pylist()
    assert not list((tmp_path / "out").glob(f"{PREFIX}*"))


def test_the_messages_of_each_recording_follow_one_another_in_sbe(tmp_path: Path) -> None:
    paths = three_days(tmp_path)
    assert convert(tmp_path / "out", paths, "--jobs", "3", "--as", "sbe") == 0
    for number, path in enumerate(paths):
        assert convert(tmp_path / str(number), [path], "--as", "sbe") == 0
    alone = b"".join((tmp_path / str(number) / "messages.sbe").read_bytes() for number in range(len(paths)))
    assert (tmp_path / "out" / "messages.sbe").read_bytes() == alone


def test_the_number_of_processes_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captures = []
    for day, (session, first) in enumerate([(b"MONDAY", 1), (b"TUESDAY", 1), (b"MONDAY", 4)]):
        payloads = [mold(number, add_order(number)) for number in (first, first + 1, first + 10)] + [b"foreign"]
        payloads = [payload.replace(b"S" + b" " * 9, session.ljust(10)) for payload in payloads]
        path = tmp_path / f"{day}.pcap"
        write_pcap(path, [(payload, LINES[0]) for payload in payloads])
        captures.append(path)
    options = ["--reader", "moldudp64"]
    found, texts = [], []
    for count in ("1", "2"):
        out = tmp_path / f"out{count}"
        assert main(["file", *map(str, captures), *ITCH, *options, "--to", str(out), "--jobs", count]) == 3
        found.append(files(out))
        texts.append(shown(capsys).rpartition("per second")[2])
    assert found[0] == found[1]
    assert texts[0] == texts[1]
    assert "3 datagrams refused: the datagram has 7 bytes" in texts[0]
    assert sorted(name for name in found[0] if name.startswith("OrderEvent")) == [
        "OrderEvent.parquet/part-00000.parquet", "OrderEvent.parquet/part-00001.parquet",
    ]  # fmt: skip
    missing = list(csv.reader(found[0]["missing.csv"].decode().splitlines()))[1:]
    assert sorted(missing) == [
        ["MONDAY", "12", "13", "2"], ["MONDAY", "3", "3", "1"], ["MONDAY", "6", "10", "5"], ["TUESDAY", "3", "10", "8"],
    ]  # fmt: skip


def test_each_input_may_have_a_trading_day_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths, days = [itch_file(tmp_path / f"{number}.itch", 1) for number in range(2)], ["20191230", "20200102"]
    options = ["--shipped", "itch50", "--to", str(tmp_path / "out")]
    options += [each for day in days for each in ("--session", day)]
    assert main(["file", *map(str, paths), *options, "--jobs", "1"]) == 0
    times = table(tmp_path / "out" / "OrderEvent.parquet")["eventAt"].to_pylist()
    assert [f"{at:%Y%m%d}" for at in times] == ["20191230", "20191230", "20200102", "20200102"]
    for inputs, jobs in ((paths, []), ([*paths, paths[0]], ["--jobs", "2"])):
        assert main(["file", *map(str, inputs), *options, *jobs]) == 2
        assert "give it once, or with --jobs once for each input" in shown(capsys)
    one, other = (Recording((Path(name), Path(f"{name}2"))) for name in ("a", "b"))
    with pytest.raises(InputsContinueEachOther, match="b, b2 belong together, but --session gives them different days"):
        with_sessions([one, other], [*one.paths, *other.paths], [1, 1, 2, 3])


def test_partitions_of_several_recordings_are_added_to_those_that_exist(tmp_path: Path) -> None:
    paths = three_days(tmp_path)
    for _ in range(2):
        assert convert(tmp_path / "lake", paths, "--jobs", "2", "--partition", "2") == 0
    names = sorted(path.name for path in (tmp_path / "lake").rglob("*") if path.is_file())
    assert names == [f"part-{number:05}.parquet" for number in range(6)]
    assert pyarrow.dataset.dataset(tmp_path / "lake", partitioning="hive").count_rows() == 2 * (
        299 + 150 + 19 + 7 + 99 + 25
    )


def test_a_later_conversion_replaces_the_output_whichever_form_it_has(tmp_path: Path) -> None:
    paths, out = three_days(tmp_path), tmp_path / "out"
    for options in (["--jobs", "2"], [], ["--jobs", "2"], ["--jobs", "1"]):
        assert convert(out, paths[:2], *options) == 0
        assert pyarrow.parquet.read_table(out / "OrderEvent.parquet").num_rows == 299 + 150 + 19 + 7


def test_captures_of_one_stream_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("a.pcap", "b.pcap")]
    for number, path in enumerate(paths):
        write_pcap(path, [(mold(3 * number + each, add_order(each)), LINES[number]) for each in range(1, 4)])
    assert convert(tmp_path / "out", paths, "--reader", "moldudp64", "--jobs", "2") == 2
    text = shown(capsys)
    assert "the 2 captures have streams in common, so the inputs continue each other; leave out --jobs" in text
    assert not files(tmp_path / "out")


def test_a_stream_that_shows_late_in_two_recordings_is_refused() -> None:
    found = [
        Findings(streams=[StreamReport(name, 1, 2, 2, 0, 0, 0, 0, 0) for name in names]) for names in ("AB", "C", "B")
    ]
    recordings = [Recording((Path(name),)) for name in ("one.pcap", "two.pcap", "three.pcap")]
    require_own_streams(recordings[:2], found[:2])
    with pytest.raises(InputsContinueEachOther, match=r"one\.pcap and three\.pcap both have the stream B"):
        require_own_streams(recordings, found)


@given(st.lists(st.sets(st.integers(0, 8), max_size=3), min_size=1, max_size=8))
def test_files_are_together_exactly_if_streams_lead_from_one_to_the_other(numbers: list[set[int]]) -> None:
    streams = [{(0, bytes([each])) for each in found} for found in numbers]
    groups = groups_of(streams)
    assert sorted(number for group in groups for number in group) == list(range(len(streams)))
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)
    for group in groups:
        reached, found = {group[0]}, set(streams[group[0]])
        for _ in group:  # each round reaches what the streams found so far lead to
            reached |= {number for number, each in enumerate(streams) if each & found}
            found = set().union(*(streams[number] for number in reached))
        assert reached == set(group)


def opened(pipe: Path, process: subprocess.Popen[str]) -> int:
    """A descriptor that writes to the pipe, as soon as the command has opened it."""
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as reason:
            if reason.errno != errno.ENXIO:  # nothing reads it yet
                raise
        with pytest.raises(subprocess.TimeoutExpired):  # the command has not ended
            process.wait(0.05)


@contextmanager
def waiting_command(folder: Path, count: int, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The command, which has opened inputs that have not ended; and the descriptors by which these are written."""
    pipes = [folder / f"{number}.itch" for number in range(count)]
    for pipe in pipes:
        os.mkfifo(pipe)
    command = [sys.executable, "-m", "tandemfeed.deploy.command", "convert", "file", *map(str, pipes), *ITCH]
    command += ["--to", str(folder / "out"), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    descriptors = []
    try:
        for pipe in pipes:
            descriptors.append(opened(pipe, process))
        yield process, descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and standard error."""
    _, text = process.communicate(timeout=START_S)
    return process.returncode, " ".join(text.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", [(), ("--jobs", "2")])
def test_a_signal_ends_the_command_and_leaves_what_was_there(
    tmp_path: Path, number: signal.Signals, options: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "OrderEvent.parquet").write_bytes(b"of yesterday")
    with waiting_command(tmp_path, 2 if options else 1, *options) as (process, _):
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        status, text = end_of(process)
        assert status == 128 + number
        assert text.endswith(f"convert: ended by {number.name}; nothing was written")
        psutil.wait_procs(children, timeout=START_S)
        assert not any(child.is_running() for child in children)
    assert files(out) == {"OrderEvent.parquet": b"of yesterday"}


def test_a_process_that_is_killed_is_reported(tmp_path: Path) -> None:
    with waiting_command(tmp_path, 2, "--jobs", "2") as (process, _):
        workers = [
            child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]
        assert len(workers) == 2
        workers[1].kill()
        status, text = end_of(process)
    assert status == 2
    assert "a process of the conversion was ended by SIGKILL; fewer --jobs need less memory" in text
    assert not files(tmp_path / "out")


@pytest.mark.parametrize("kind", ["parquet", "sbe", "csv", "arrow"])
def test_a_full_disk_is_reported_in_one_sentence(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = itch_file(tmp_path / "day.itch", 20_000)
    with SmallDisk(tmp_path / "disk", "200k"):
        assert convert(tmp_path / "disk" / "out", [path], "--as", kind) == 2
        assert "No space left on device" in shown(capsys)
        assert not files(tmp_path / "disk")


@pytest.mark.parametrize("options", [(), ("--jobs", "2")])
def test_a_file_that_grows_too_large_is_reported_and_leaves_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    paths = [itch_file(tmp_path / f"{number}.itch", 4_000) for number in range(2)]
    command = [sys.executable, "-m", "tandemfeed.deploy.command", "convert", "file", *map(str, paths), *ITCH]
    command += ["--to", str(tmp_path / "out"), "--as", "sbe", *options]
    limited = ["prlimit", "--fsize=500000", *command]  # of any file, in bytes
    done = subprocess.run(limited, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "convert: [Errno 27] File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not files(tmp_path / "out")


def test_a_dbn_fragment_belongs_to_the_file_before_it() -> None:
    dbn = load_source_format(document("dbn.xml"))
    whole, fragment = (shared_file(f"dbn/test_data.definition.v3.dbn.{kind}") for kind in ("zst", "frag"))
    found = recordings_in(Input((whole, fragment, whole), dbn), "dbn")
    assert [each.paths for each in found] == [(whole, fragment), (whole,)]
    with pytest.raises(InputsContinueEachOther, match="frag has no metadata, so the inputs continue each other"):
        recordings_in(Input((whole, fragment), dbn), "dbn")
