"""A leader and a follower in two processes, killed under load at any moment; their journals are equal in the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.replication.replication_process import records_of, segments_of

ROOT = Path(__file__).resolve().parents[3]
ANY_PORT = "tcp://127.0.0.1:*"


class Process:
    """A leader or follower process."""

    def __init__(self, role: str, folder: Path, endpoint: str, number: int) -> None:
        module = "tests.journal.replication.replication_process"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, role, str(folder), endpoint, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def wait_for(self, word: str) -> str:
        """Wait for a line that begins with this word; return the rest of the line."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            first, _, rest = line.strip().partition(" ")
            if first == word:
                return rest
        raise AssertionError(f"ended with {self._process.wait()} before it printed {word!r}")

    def wait_until_at(self, index: int) -> None:
        """Wait until a follower's journal ends at an index or after it."""
        while int(self.wait_for("at")) < index:
            pass

    def finish(self) -> int:
        """Make a leader stop appending; return its journal's end."""
        assert self._process.stdin is not None
        self._process.stdin.write("finish\n")
        self._process.stdin.flush()
        return int(self.wait_for("ends")) + 1

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.communicate()


def _check_equal(folder: Path, end: int) -> None:
    assert segments_of(folder / "leader") == segments_of(folder / "follower")
    ours, theirs = records_of(folder / "leader"), records_of(folder / "follower")
    assert ours == theirs[: len(ours)]  # the leader's tailers may not see the last acknowledged records yet
    assert theirs[-1] == (end - 1, b"the last one")


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """Processes that are killed at the end of the test."""
    started: list[Process] = []
    yield started
    for each in started:
        each.kill()


@pytest.mark.parametrize("durable", [False, True])
def test_a_follower_that_is_killed_under_load_catches_up(
    tmp_path: Path, processes: list[Process], durable: bool
) -> None:
    leader = Process("lead", tmp_path / "leader", ANY_PORT, 1)
    processes.append(leader)
    endpoint = leader.wait_for("serves")
    for _ in range(3):
        follower = Process("follow", tmp_path / "follower", endpoint, int(durable))
        processes.append(follower)
        for _ in range(20):
            follower.wait_for("at")
        follower.kill()
    end = leader.finish()
    follower = Process("follow", tmp_path / "follower", endpoint, int(durable))
    processes.append(follower)
    follower.wait_until_at(end)
    _check_equal(tmp_path, end)


def test_a_restarted_leader_continues_with_its_follower_after_a_kill_under_load(
    tmp_path: Path, processes: list[Process]
) -> None:
    endpoint = ANY_PORT
    follower: Process | None = None
    for seed in range(3):
        leader = Process("lead", tmp_path / "leader", endpoint, seed)
        processes.append(leader)
        endpoint = leader.wait_for("serves")
        if follower is None:
            follower = Process("follow", tmp_path / "follower", endpoint, 0)
            processes.append(follower)
        for _ in range(20):
            follower.wait_for("at")
        if seed < 2:
            leader.kill()
    assert follower is not None
    end = leader.finish()
    follower.wait_until_at(end)
    _check_equal(tmp_path, end)
