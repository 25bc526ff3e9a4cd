"""How a sub-command runs: with which priority, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandemfeed.deploy.command import main

# Prints by how much the nice value is higher while a sub-command is imported, and afterwards.
LOADING = """
import os, sys, threading
from tandemfeed.deploy import command
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # this process may have inherited another policy
def nice(): return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
class Entry:
    name = sys.argv[1]
    load = staticmethod(nice)
before = nice()
print(command._load(Entry) - before, nice() - before)
"""


def test_a_program_that_runs_a_sub_command_in_its_own_process_keeps_its_priority(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with pytest.raises(SystemExit, match="0"):
        main(["ticks", "--help"])
    assert "tandemfeed ticks" in capsys.readouterr().out
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has nice values of threads")
@pytest.mark.parametrize(
    ("name", "higher"),
    [("source-job", "10 10"), ("ticks", "10 10"), ("adapter", "5 0"), ("source-gateway", "0 0"), ("witness", "0 0")],
)
def test_what_is_not_in_the_path_of_a_message_yields_to_what_is(name: str, higher: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOADING, name], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == higher


def test_a_command_ends_without_a_search_for_cycles() -> None:
    code = (
        "import atexit, gc, sys; from tandemfeed.deploy.command import main;"
        "atexit.register(lambda: print(gc.get_count()[0], gc.get_freeze_count(), file=sys.stderr)); sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "completion", "bash"], capture_output=True, text=True, check=True
    )
    left, kept = map(int, done.stderr.split())
    assert left < 1_000 < kept


def test_a_reader_that_stops_reading_ends_a_command_silently(tmp_path: Path) -> None:
    """In every command alike, and also while it prints its help."""
    for arguments in (["convert", "explain", "--shipped", "itch50"], ["completion", "bash"], ["adapter", "--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as closed:
            done = subprocess.run(
                [sys.executable, "-m", "tandemfeed.deploy.command", *arguments],
                stdout=closed,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=120,
            )
        assert (done.returncode, done.stderr) == (0, ""), arguments


def test_a_character_that_the_console_does_not_have_is_printed_as_its_code(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom tandemfeed.deploy.command import _run\n"
        "_run(lambda _: print(chr(0x20AC)) or print(chr(0x20AC), file=sys.stderr) or 0, [])"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("\\u20ac\n", "\\u20ac\n")


def test_a_pipe_that_breaks_elsewhere_is_not_taken_for_the_output() -> None:
    program = (
        "from tandemfeed.deploy.command import _run\n"
        "def fail(_):\n    raise BrokenPipeError('of a socket')\n"
        "_run(fail, [])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "BrokenPipeError: of a socket" in done.stderr
