"""`tandemfeed convert compile`: after it, a start compiles nothing."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.event import install_listener

from tandemfeed.adapter import kernel_cache
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.adapter.convert_command.compiling import COMPILE_EVENT, Progress
from tandemfeed.adapter.kernel_cache import load_generated
from tandemfeed.journal.compiled.places import FOLDER_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "deploy" / "examples" / "ticks"
NAMES = [EXAMPLES / "source-format.xml", EXAMPLES / "converter-table.xml", EXAMPLES / "message-model.xml"]
DOCUMENTS = [
    text
    for option, path in zip(("--source-format", "--table", "--message-model"), NAMES, strict=True)
    for text in (option, str(path))
]
# Starts an adapter's conversion, with its first packet, digest and snapshot; prints what numba compiled for it.
START = """
import sys
from pathlib import Path
import numpy as np
from numba.core.event import install_recorder
with install_recorder("numba:compile") as recorder:
    from tandemfeed.adapter.conversion import load_converter
    converter = load_converter(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]).read_bytes(), int(sys.argv[4]))
    header = bytes.fromhex("54465331 01000100 01000100 01293501 0100000000000000 0100000000000000")
    packet = header + bytes.fromhex("24000100") + bytes(32)
    assert converter.check(packet)
    assert converter.convert(packet, 0, 1, np.zeros(2_000, np.uint8), 0, 2_000).message_count == 1
    converter.digests()
    converter.restore(converter.snapshot())
    converter.restore_buckets(converter.snapshot_buckets([1, 2]))
print([event.data["dispatcher"].py_func.__name__ for _, event in recorder.buffer if event.is_start])
"""

# Opens, fills and reads a journal; standard error shows what is compiled for it.
OPEN_JOURNAL = """
import logging, sys
from tandemfeed.journal import Journal
logging.basicConfig(level=logging.INFO)
with Journal.open(sys.argv[1]) as journal, journal.tailer() as tailer:
    journal.append(b"one")
    assert tailer.read()[1] == b"one"
"""


def run(cache: Path, *command: str, status: int = 0) -> tuple[str, str]:
    environment = {**os.environ, FOLDER_VARIABLE: str(cache), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.mark.timeout(600)
def test_after_compile_a_start_with_the_same_documents_compiles_nothing(tmp_path: Path) -> None:
    cache, command = tmp_path / "cache", ("-m", "tandemfeed.deploy.command", "convert", "compile", *DOCUMENTS)
    output, _ = run(cache, *command)
    assert "journal: compiled " in output
    assert "ticks: compiled " in output
    assert f"stored in {cache}" in output
    start = ("-c", START, *map(str, NAMES))
    assert run(cache, "-c", OPEN_JOURNAL, str(tmp_path / "journal")) == ("", "")
    assert run(cache, *start, "1472")[0] == "[]\n"
    assert "ticks: already compiled" in run(cache, *command)[0]
    assert run(cache, *start, "1400")[0] == "[]\n"  # this table's output fits into datagrams of either size
    (other := tmp_path / "other.xml").write_text(NAMES[1].read_text().replace('name="ticks"', 'name="other"', 1))
    logging = "import logging; logging.basicConfig(level=logging.INFO)\n"
    _, log = run(cache, "-c", logging + START, str(NAMES[0]), str(other), str(NAMES[2]), "1472")
    lines = [line.partition("compile_report:")[2] for line in log.splitlines()]
    assert lines[0].startswith("compiling the functions of the converter table 'other'; later starts load them from ")
    assert re.fullmatch(r"compiled the functions of the converter table 'other': (\d+) of \1 in [0-9.]+ s", lines[-1])


def test_compile_reports_that_kernels_cannot_be_stored_and_compiles_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    output, error = run(
        tmp_path / "file" / "cache", "-m", "tandemfeed.deploy.command", "convert", "compile", *DOCUMENTS, status=1
    )
    assert output == ""
    assert FOLDER_VARIABLE in error


def test_several_shipped_tables_are_compiled_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--shipped", "tick-table", "tick-table"]) == 0
    journal, captures, first, second, where = capsys.readouterr().out.splitlines()
    assert journal.startswith("journal: ")
    assert captures.startswith("captures: ")
    assert first.startswith("tick-table: ")
    assert second.startswith("tick-table: already compiled")
    assert where.startswith("stored in ")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "give --shipped NAME, or --source-format"),
        (["--shipped", "itch50", "iex", "--table", "own.xml"], "cannot be combined with several --shipped formats"),
        (["--shipped", "tick-table", "nosuch"], "no shipped document 'nosuch.xml'"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_compiled(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["compile", *options])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.out == ""


class RecordingMeter:
    """A meter that records its calls."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, str]] = []

    def advance(self, count: int, what: str) -> None:
        self.steps.append((count, what))

    def hide(self) -> None:
        pass

    def finish(self) -> None:
        pass


TWO = """
from numba import types
from tandemfeed.adapter.kernel_cache import compiled

@compiled()
def inner(value):
    return value + 1

@compiled(types.int64(types.int64))
def outer(value):
    return inner(value)
"""

CONSTANTS = """
from numba import types
from tandemfeed.adapter.kernel_cache import compiled, compiled_once

@compiled_once
def inner(value, other):
    return value + other

@compiled(types.int64(types.int64))
def outer(value):
    return inner(value, 1) + inner(value, 2) + inner(3, value)
"""


def test_generated_source_is_never_read_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "CACHE_FOLDER", tmp_path)
    source = "ANSWER = 42\n"
    name = f"{kernel_cache.MODULE_PREFIX}{hashlib.sha256(source.encode()).hexdigest()[:24]}"
    (tmp_path / f"{name}.py").write_text("ANSWER = 'planted'\n")
    assert load_generated(source).ANSWER == 42


def test_progress_names_each_function_and_counts_those_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache, "CACHE_FOLDER", tmp_path)
    meter = RecordingMeter()
    progress = Progress(meter, kernel_cache.MODULE_PREFIX)
    with install_listener(COMPILE_EVENT, progress):
        assert load_generated(TWO).outer(1) == 2
    assert meter.steps == [(0, "outer"), (0, "inner"), (1, "inner"), (1, "outer")]
    assert progress.count == 2


def test_a_part_is_compiled_once_for_all_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "CACHE_FOLDER", tmp_path)
    meter = RecordingMeter()
    with install_listener(COMPILE_EVENT, Progress(meter, kernel_cache.MODULE_PREFIX)):
        assert load_generated(CONSTANTS).outer(1) == 9
    assert meter.steps == [(0, "outer"), (0, "inner"), (1, "inner"), (1, "outer")]
