"""Processes report what they compile. A library only logs it, and reports nothing if nothing is compiled."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import njit

from tandemfeed.journal import Journal
from tandemfeed.journal.compiled import compile_report
from tandemfeed.journal.compiled.compile_report import compilation_reported
from tandemfeed.journal.compiled.places import FOLDER_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
READ = "import sys; from tandemfeed.journal import Tailer; Tailer(sys.argv[1]).close()"


def run(cache: Path, *command: str) -> str:
    environment = {**os.environ, FOLDER_VARIABLE: str(cache), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=True)
    return done.stderr


@pytest.fixture
def at_every_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_report, "INTERVAL_S", 0.0)


@pytest.mark.usefixtures("at_every_function")
def test_a_report_has_a_beginning_progress_and_an_end(tmp_path: Path) -> None:
    lines: list[str] = []
    with compilation_reported("two functions", tmp_path, total=2, report=lines.append):
        njit(lambda value: value + 1)(1)
        njit(lambda value: value + 2)(1)
    assert lines[0] == f"compiling two functions; later starts load them from {tmp_path}"
    assert [line.partition(" in ")[0] for line in lines[1:]] == [
        "compiling two functions: 1 of 2",
        "compiling two functions: 2 of 2",
        "compiled two functions: 2 of 2",
    ]


def test_without_a_cache_folder_the_report_names_the_setting(tmp_path: Path) -> None:
    lines: list[str] = []
    with compilation_reported("a function", None, report=lines.append):
        njit(lambda value: value + 3)(1)
    assert FOLDER_VARIABLE in lines[0]


def test_only_the_outer_of_two_reports_reports(tmp_path: Path) -> None:
    outer: list[str] = []
    inner: list[str] = []
    with (
        compilation_reported("all", tmp_path, report=outer.append),
        compilation_reported("a part", tmp_path, report=inner.append),
    ):
        njit(lambda value: value + 4)(1)
    assert outer[0].startswith("compiling all; ")
    assert inner == []


def test_nothing_is_reported_if_nothing_is_compiled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), compilation_reported("nothing", tmp_path):
        pass
    assert caplog.records == []


def test_a_journal_command_reports_and_a_library_is_silent(tmp_path: Path) -> None:
    assert run(tmp_path / "library", "-c", READ, str(tmp_path)) == ""
    Journal.open(tmp_path / "journal").close()
    verify = ("-m", "tandemfeed.journal.commands.cli", "verify", str(tmp_path / "journal"))
    assert "compiling the journal's functions; later starts load them from " in run(tmp_path / "command", *verify)
    assert "compil" not in run(tmp_path / "command", *verify)
