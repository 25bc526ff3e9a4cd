"""An interrupted test run ends immediately and leaves no process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
TEST = """
import subprocess, sys

def test_that_waits_for_a_process():
    waiting = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(waiting.pid, file=open(sys.argv[-1] + ".pid", "w"), flush=True)
    open(sys.argv[-1] + ".ready", "w").close()
    waiting.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", [[], ["--numprocesses=1"]], ids=["alone", "with workers"])
def test_an_interrupted_run_ends_every_process_that_it_started(
    tmp_path: Path, number: signal.Signals, workers: list[str]
) -> None:
    test = tmp_path / "test_waiting.py"
    test.write_text(TEST.replace("sys.argv[-1]", repr(str(test))))
    options = ["-q", "-p", "tests.interruption", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", *workers]
    run = subprocess.Popen([sys.executable, "-m", "pytest", *options, str(test)], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        while not Path(f"{test}.ready").exists():
            assert run.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                run.wait(0.05)
        waiting = psutil.Process(int(Path(f"{test}.pid").read_text()))
        run.send_signal(number)
        assert run.wait(60) == pytest.ExitCode.INTERRUPTED
        waiting.wait(60)
    finally:
        run.kill()
