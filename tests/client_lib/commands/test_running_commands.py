"""How the client's commands end: by a signal, or because a thread failed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tandemfeed.client_lib.commands.running import run_command
from tandemfeed.runtime import threads

ENDS_WITHIN_S = 30
INTERRUPTED = """
import os, signal, sys, time
from tandemfeed.client_lib.commands.running import Interruption
class Target:
    is_stopped = False
    def stop(self):
        self.is_stopped = True
        if "fails" in sys.argv:
            raise ValueError("planted")
target = Target()
with Interruption() as interruption:
    if "connects" not in sys.argv:
        interruption.set_target(target)
    os.kill(os.getpid(), signal.SIGINT)
    while not target.is_stopped or "fails" in sys.argv:
        time.sleep(0.01)
print("stopped")
with Interruption():
    pass
os.kill(os.getpid(), signal.SIGTERM)
"""


def interrupted(how: str) -> tuple[int, str]:
    command = [sys.executable, "-c", INTERRUPTED, how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_WITHIN_S, check=False)
    return ended.returncode, ended.stdout


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("connects", (0, "")),  # nothing has to be finished
        ("reads", (-15, "stopped\n")),  # and afterwards, signals have their usual effect
        ("fails", (threads.EXIT_THREAD_FAILED, "")),
    ],
)
def test_a_signal_ends_a_command_that_connects_and_stops_the_subscription_of_one_that_reads(
    how: str, expected: tuple[int, str]
) -> None:
    assert interrupted(how) == expected


def test_a_command_of_which_a_thread_failed_does_not_end_with_status_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_failed", {})
    assert run_command("subscribe", lambda: 0) == 0
    threads._failed["tandemfeed-pauses"] = ValueError("planted")
    assert run_command("subscribe", lambda: 0) == threads.EXIT_THREAD_FAILED
    assert run_command("subscribe", lambda: 3) == 3
