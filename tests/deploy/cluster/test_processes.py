"""The lines that are kept from the output and the logs of a cluster's processes."""

from __future__ import annotations

import os
import queue
import sys
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.deploy.cluster.processes import (
    LINES_KEPT_MAX,
    JsonLines,
    ManagedProcess,
    ProcessFailed,
    ProcessPlacement,
)


def test_only_the_newest_lines_are_kept_and_all_are_counted() -> None:
    lines = JsonLines(kept_max=3)
    for number in range(10):
        lines.add({"event": f"event {number}"})
    assert lines.count == 10
    assert [number for number in range(10) if lines.find(f"event {number}")] == [7, 8, 9]


def test_skipped_lines_are_counted_from_the_first_line_even_if_it_is_no_longer_kept() -> None:
    lines = JsonLines(kept_max=4)
    for number in range(10):
        lines.add({"event": "tick", "number": number})
    assert lines.find("tick") == {"event": "tick", "number": 6}
    assert lines.find("tick", since=2) == {"event": "tick", "number": 6}
    assert lines.find("tick", since=8) == {"event": "tick", "number": 8}
    assert lines.find("tick", since=10) is None


@pytest.mark.processes
def test_a_callback_receives_each_line_of_the_log(tmp_path: Path) -> None:
    program = tmp_path / "sitecustomize.py"  # the interpreter runs it first; then the sub-command is not found
    program.write_text("""import sys; print('{"event": "compiling"}', file=sys.stderr, flush=True)""")
    received: queue.Queue[dict[str, Any]] = queue.Queue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
        process = ManagedProcess("talking", ["no-such-command"], tmp_path, on_log=received.put)
    assert received.get(timeout=30.0) == {"event": "compiling"}
    assert process.wait(30.0) != 0


@pytest.mark.processes
def test_a_process_that_logs_without_end_does_not_fill_the_memory_of_its_parent(tmp_path: Path) -> None:
    noise_count = LINES_KEPT_MAX + 100
    program = tmp_path / "sitecustomize.py"  # the interpreter runs it first; then the sub-command is not found
    program.write_text(
        "import sys\n"
        f"for number in range({noise_count}):\n"
        """    print('{"event": "noise"}', file=sys.stderr)\n"""
        """print('{"event": "done"}', file=sys.stderr, flush=True)\n"""
        """print('{"event": "ready"}', flush=True)\n"""
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
        process = ManagedProcess("noisy", ["no-such-command"], tmp_path)
    assert process.await_event("ready", 30.0) == {"event": "ready"}
    assert process.await_log("done", 30.0, since=noise_count) == {"event": "done"}
    assert process.has_reported("ready")
    assert process.logged_count >= noise_count + 1
    assert process.wait(30.0) != 0
    with pytest.raises(ProcessFailed, match="ended before it reported 'other'; the last lines of"):
        process.await_log("other", 1.0)


@pytest.mark.processes
def test_the_time_to_become_ready_counts_from_the_end_of_compilation(tmp_path: Path) -> None:
    program = tmp_path / "sitecustomize.py"  # the interpreter runs it first; then the sub-command is not found
    program.write_text(
        "import sys, time\n"
        "began = time.monotonic()\n"
        "while time.monotonic() < began + 4:\n"
        """    print('{"event": "compiling", "activity": "compilation"}', file=sys.stderr, flush=True)\n"""
        "    time.sleep(0.1)\n"
        """print('{"event": "ready"}', flush=True)\n"""
        "sys.stdin.read()\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
        process = ManagedProcess("compiling", ["no-such-command"], tmp_path)
    process.await_log("compiling", 30.0)
    assert process.await_event("ready", 3.0) == {"event": "ready"}
    with pytest.raises(ProcessFailed, match="did not report 'done' within 0 s"):
        process.await_event("done", 0.2)
    process.kill()


@pytest.mark.processes
def test_a_process_may_be_started_with_a_lower_priority(tmp_path: Path) -> None:
    place = ProcessPlacement(nice=3)
    process = ManagedProcess("meter", ["hiccups", "--record", str(tmp_path / "hiccups")], tmp_path, place=place)
    try:
        process.await_event("ready", 60.0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)
    finally:
        process.kill()
