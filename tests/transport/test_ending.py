"""Commands that signals end: always, at any time, and without leaving what they had begun."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tandemfeed.transport.ending import run_until_signal
from tests.runtime.test_signals import ROOT, statuses_of_signalled

# What a command may be doing when the signal comes; an exception there would keep a lock taken, or be lost.
BUSY = {
    "within locks": "import queue\nwaiting = queue.Queue()\ndef step(): waiting.put(1), waiting.get()",
    "in finalisers": "class Done:\n    def __del__(self): [None for _ in range(20)]\ndef step(): Done()",
    "waiting for threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = []\n"
        "def step():\n"
        "    if not pool: pool.append(ThreadPoolExecutor(1))\n"
        "    pool[0].submit(int).result()"
    ),
    "in a system call that does not end": "silent = os.pipe()\ndef step(): os.read(silent[0], 1)",
}
WORKING = """
from tandemfeed.transport.ending import run_until_signal
{busy}
def work(ready):
    def run():
        ready()
        while True:
            step()
    run_until_signal(run, lambda number: None)
"""


@pytest.mark.parametrize("busy", BUSY)
def test_a_signal_ends_a_command_whatever_it_is_doing(busy: str) -> None:
    assert statuses_of_signalled(WORKING.format(busy=BUSY[busy])) == [128 + signal.SIGTERM] * 40


def command(text: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs `work`, which prints a line when it can be signalled."""
    head = "import os, sys, time, pathlib\nfrom functools import partial\nfrom tandemfeed.transport.ending import *\n"
    tail = "\nsys.exit(run_until_signal(work, lambda number: print('ended by', number.name)))"
    script = head + text + tail
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def output_after(process: subprocess.Popen[str], *numbers: signal.Signals) -> str:
    """What the process prints after its first line, and after these signals."""
    assert process.stdout is not None
    assert process.stdout.readline()
    for number in numbers:
        process.send_signal(number)
    text, _ = process.communicate(timeout=60)
    return text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_a_command_has_begun_is_undone_although_it_continues_to_write(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "begun"
    process = command(
        """
def work():
    folder = pathlib.Path(sys.argv[1])
    with undone_by_signal(partial(remove_folder, folder)):
        count = 0
        while True:
            folder.mkdir(exist_ok=True)
            (folder / str(count)).write_text("part")
            count += 1
            if count == 100: print("writing", flush=True)
            time.sleep(0)
            if not folder.exists(): time.sleep(60)
""",
        str(folder),
    )
    assert output_after(process, number, number, number) == f"ended by {number.name}\n"
    assert process.returncode == 128 + number
    assert not folder.exists()


def test_the_content_of_a_folder_that_was_there_is_removed_and_the_folder_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    folder.mkdir(mode=0o750)
    process = command(
        """
def work():
    folder = pathlib.Path(sys.argv[1])
    with undone_by_signal(partial(remove_folder, folder, is_kept=True)):
        (folder / "part").write_text("part")
        (folder / "parts").mkdir()
        (folder / "parts" / "1").write_text("part")
        print("written", flush=True)
        time.sleep(60)
""",
        str(folder),
    )
    assert output_after(process, signal.SIGTERM) == "ended by SIGTERM\n"
    assert not list(folder.iterdir())
    assert folder.stat().st_mode & 0o777 == 0o750


def test_a_signal_during_the_publication_waits_for_it_and_the_result_counts(tmp_path: Path) -> None:
    target = tmp_path / "published"
    process = command(
        """
def work():
    target = pathlib.Path(sys.argv[1])
    with undone_by_signal(target.unlink):
        with completed_despite_signal():
            print("publishing", flush=True)
            sys.stdin.readline()
            target.write_text("all")
    print("published")
    return 0
""",
        str(target),
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "publishing\n"
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate("\n", timeout=60)
    assert (text, process.returncode) == ("published\n", 0)
    assert target.read_text() == "all"


def test_a_signal_after_the_publication_ends_a_command_that_does_not_end_and_undoes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "published"
    process = command(
        """
def work():
    target = pathlib.Path(sys.argv[1])
    with undone_by_signal(target.unlink):
        with completed_despite_signal():
            target.write_text("all")
        print("published", flush=True)
        time.sleep(60)
""",
        str(target),
    )
    assert output_after(process, signal.SIGTERM) == ""
    assert process.returncode == 128 + signal.SIGTERM
    assert target.read_text() == "all"


def test_an_action_that_cannot_be_undone_does_not_keep_the_command_from_ending() -> None:
    process = command(
        """
def work():
    with undone_by_signal(lambda: 1 / 0):
        print("begun", flush=True)
        time.sleep(60)
"""
    )
    output_after(process, signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM


def test_the_result_and_the_error_of_the_work_are_passed_on() -> None:
    assert run_until_signal(lambda: threading.current_thread().name, print) == "command"
    with pytest.raises(ZeroDivisionError):
        run_until_signal(lambda: 1 / 0, print)


def test_in_another_thread_the_work_is_done_there() -> None:
    names: list[str] = []
    calling = threading.Thread(
        target=lambda: names.append(run_until_signal(lambda: threading.current_thread().name, print)), name="caller"
    )
    calling.start()
    calling.join(30)
    assert names == ["caller"]
