"""The threads of leader and follower: how they end, what callers then learn, and that nothing stays open."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tandemfeed.journal import Journal, JournalError
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.replication import (
    FollowerState,
    LeaderStatus,
    Mode,
    ReplicatedAppender,
    ReplicationFollower,
    ReplicationLeader,
)
from tandemfeed.journal.replication.follower.follower_journal import FollowerJournal
from tandemfeed.journal.replication.segments import SegmentReader
from tests.journal.replication.replication_process import LIMITS, records_of

ANY_PORT = "tcp://127.0.0.1:*"
WAIT_S = 60.0


def broken(*_: object) -> NoReturn:
    raise RuntimeError("a bug")


def ends(call: Callable[[], object]) -> None:
    """Check that a call returns."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), f"{call} does not return"


@pytest.mark.parametrize("where", ["open", "append", "sync", "look_up"])
def test_a_follower_whose_thread_fails_says_so_and_can_be_stopped_and_promoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with (
        Journal.open(tmp_path / "leader", block_size=BLOCK_SIZE_MIN) as journal,
        ReplicationLeader(tmp_path / "leader", ANY_PORT, limits=LIMITS) as leader,
    ):
        index = journal.append(b"held by both")
        with ReplicationFollower(tmp_path / "follower", leader.endpoint, durable=True, limits=LIMITS) as follower:
            assert leader.wait_for_replicated(index, WAIT_S)
        if where == "look_up":  # only a follower that differs is asked
            with Journal.open(tmp_path / "follower", block_size=BLOCK_SIZE_MIN) as stray:
                stray.append(b"appended while the follower was away")
            journal.append(b"at the leader")
        follower = ReplicationFollower(tmp_path / "follower", leader.endpoint, durable=True, limits=LIMITS)
        with monkeypatch.context() as patched:
            patched.setattr(FollowerJournal, where, broken)
            follower.start()
            journal.append(b"more")
            with pytest.raises(JournalError, match="the follower failed: RuntimeError: a bug"):
                follower.wait_for(lambda _: False, WAIT_S)
            assert follower.status.state is FollowerState.FAILED
            assert follower.status.reason == "RuntimeError: a bug"
            assert isinstance(follower.failure, RuntimeError)
            ends(follower.stop)
        with pytest.raises(JournalError, match="the follower failed"):
            follower.check()
        with follower.promote() as promoted:
            assert promoted.read(index) == b"held by both"


def test_a_follower_whose_journal_cannot_be_closed_has_failed_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Journal.open(tmp_path / "leader", block_size=BLOCK_SIZE_MIN) as journal,
        ReplicationLeader(tmp_path / "leader", ANY_PORT, limits=LIMITS) as leader,
    ):
        follower = ReplicationFollower(tmp_path / "follower", leader.endpoint, limits=LIMITS).start()
        index = journal.append(b"one")
        assert follower.wait_for(lambda status: status.next_index > index, WAIT_S)
        monkeypatch.setattr(FollowerJournal, "close", broken)
        ends(follower.stop)
        assert follower.status.state is FollowerState.STOPPED
        with pytest.raises(JournalError, match="a bug"):
            follower.check()


def test_an_endpoint_that_is_not_one_ends_the_follower_with_a_reason(tmp_path: Path) -> None:
    with (
        ReplicationFollower(tmp_path / "follower", "tcp://127.0.0.1:no-port", limits=LIMITS) as follower,
        pytest.raises(JournalError, match="Invalid argument"),
    ):
        follower.wait_for(lambda _: False, WAIT_S)
    assert follower.status.state is FollowerState.FAILED


@pytest.mark.parametrize("where", ["the journal is read", "the status is reported"])
def test_a_leader_whose_thread_fails_says_so_and_no_caller_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    reported: list[LeaderStatus] = []

    def on_status(status: LeaderStatus) -> None:
        reported.append(status)
        if where == "the status is reported" and status.followers:
            broken()

    with Journal.open(tmp_path / "leader", block_size=BLOCK_SIZE_MIN) as journal:
        leader = ReplicationLeader(
            tmp_path / "leader", ANY_PORT, mode=Mode.SHOW_REPLICATED, limits=LIMITS, on_status=on_status
        ).start()
        if where == "the journal is read":
            monkeypatch.setattr(SegmentReader, "read", broken)
        with ReplicationFollower(tmp_path / "follower", leader.endpoint, limits=LIMITS):
            if where == "the status is reported":  # else the acknowledgement may come in the very status that fails
                with pytest.raises(JournalError, match="a bug"):
                    leader.wait_for_followers(1 << 62, WAIT_S)
            appender = ReplicatedAppender(journal, leader)
            with pytest.raises(JournalError, match=r"not running \(RuntimeError: a bug\)"):
                appender.append(b"one", timeout_s=WAIT_S)
            for wait in (leader.wait_for_replicated, leader.wait_for_followers):
                with pytest.raises(JournalError, match="a bug"):
                    wait(1 << 62, WAIT_S)
        assert leader.status.failure == "RuntimeError: a bug"
        assert leader.status.followers == {}
        assert reported[-1] == leader.status
        assert isinstance(leader.failure, RuntimeError)
        ends(leader.stop)


def test_a_caller_that_waits_for_a_leader_learns_that_it_is_stopped(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK_SIZE_MIN):
        leader = ReplicationLeader(tmp_path / "leader", ANY_PORT, limits=LIMITS)
        with pytest.raises(JournalError, match="not started"):
            leader.wait_for_followers(1, WAIT_S)
        leader.start()
        found: list[str] = []

        def wait() -> None:
            try:
                leader.wait_for_followers(1, WAIT_S)
            except JournalError as ended:
                found.append(str(ended))

        thread = threading.Thread(target=wait)
        thread.start()
        leader.stop()
        thread.join(WAIT_S)
        assert found
        assert "it was stopped" in found[0]


def test_a_leader_and_a_follower_leave_no_descriptor_open(tmp_path: Path) -> None:
    def once(number: int) -> None:
        with (
            Journal.open(tmp_path / "leader", block_size=BLOCK_SIZE_MIN) as journal,
            ReplicationLeader(tmp_path / "leader", ANY_PORT, limits=LIMITS) as leader,
            ReplicationFollower(tmp_path / f"follower-{number}", leader.endpoint, limits=LIMITS),
        ):
            assert leader.wait_for_replicated(journal.append(b"one"), WAIT_S)

    once(0)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 4):
        once(number)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_leader_that_cannot_bind_leaves_no_descriptor_open(tmp_path: Path) -> None:
    Journal.open(tmp_path / "leader", block_size=BLOCK_SIZE_MIN).close()
    with ReplicationLeader(tmp_path / "leader", ANY_PORT, limits=LIMITS) as leader:
        counts = []
        for _ in range(3):
            with (
                pytest.raises(OSError, match="cannot be bound"),
                ReplicationLeader(tmp_path / "leader", leader.endpoint),
            ):
                pass
            counts.append(len(os.listdir("/proc/self/fd")))
        assert len(set(counts)) == 1, counts


SHORT_OF_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from tandemfeed.journal.replication import FollowerState, ReplicationFollower
from tests.journal.replication.replication_process import LIMITS

follower = ReplicationFollower(Path(sys.argv[1]), sys.argv[2], durable=True, limits=LIMITS).start()
assert follower.wait_for(lambda status: status.state is FollowerState.FOLLOWING, 60)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
print("short", flush=True)
sys.stdin.readline()
assert follower.wait_for(lambda status: "Too many open files" in status.reason, 60), follower.status
assert follower.status.state is not FollowerState.FAILED
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert follower.wait_for(lambda status: status.state is FollowerState.FOLLOWING and not status.reason, 60)
follower.stop()
print("followed again", flush=True)
"""


def test_a_follower_without_a_free_descriptor_tries_again_until_it_has_one(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK_SIZE_MIN) as journal:
        leader = ReplicationLeader(tmp_path / "leader", ANY_PORT, limits=LIMITS).start()
        index = journal.append(b"one")
        child = subprocess.Popen(
            [sys.executable, "-c", SHORT_OF_DESCRIPTORS, str(tmp_path / "follower"), leader.endpoint],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert child.stdout is not None
            assert child.stdin is not None
            assert child.stdout.readline() == "short\n"
            endpoint = leader.endpoint
            leader.stop()
            with ReplicationLeader(tmp_path / "leader", endpoint, limits=LIMITS) as again:
                child.stdin.write("\n")
                child.stdin.flush()
                assert child.stdout.readline() == "followed again\n"
                assert again.status.replicated_index > index
        finally:
            child.kill()
            child.communicate()
    assert records_of(tmp_path / "follower") == [(index, b"one")]
