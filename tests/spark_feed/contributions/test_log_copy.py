"""A standby's copy of the log, with followers that a test scripts: however one ends, the next one starts."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tandemfeed.journal import Journal, JournalError
from tandemfeed.journal.replication import FollowerState, FollowerStatus
from tandemfeed.journal.replication.follower.follower_journal import LEADER_NAME
from tandemfeed.spark_feed.contributions.contribution_log import copy_id, log_folder
from tandemfeed.spark_feed.contributions.pair.log_copy import (
    RETRY_NS_MAX,
    RETRY_NS_MIN,
    KeyPair,
    Leader,
    LogCopy,
)

ONE, TWO = Leader("tcp://one:1", "k1"), Leader("tcp://two:2", "k2")
KEYS = KeyPair(b"public", b"secret")
FOLLOWING, FAILED = FollowerState.FOLLOWING, FollowerState.FAILED


class ScriptedFollower:
    """A follower whose state the test sets."""

    def __init__(self, leader: Leader, state: FollowerState) -> None:
        self.leader, self.state, self.is_stopped = leader, state, False

    @property
    def status(self) -> FollowerStatus:
        return FollowerStatus(self.state, f"it is {self.state.value}", 0, 0, -1, 0)

    def stop(self) -> None:
        self.is_stopped = True


class Standby:
    """A copy whose followers are scripted. Attributes: script: the state of each follower, or what its start raises."""

    def __init__(self, folder: Path, *script: FollowerState | Exception) -> None:
        self.folder, self.script, self.now_ns = folder, list(script), 0
        self.started: list[ScriptedFollower] = []
        self.set_aside_count = 0
        self.copy = LogCopy(folder, KEYS, self._on_set_aside, self._start, lambda: self.now_ns)

    def look(self, times: int = 1, leader: Leader = ONE) -> None:
        """Look as often as the gateway does."""
        for _ in range(times):
            self.copy.follow(leader)
            self.now_ns += RETRY_NS_MIN

    def _on_set_aside(self) -> None:
        self.set_aside_count += 1

    def _start(self, folder: Path, keys: KeyPair, leader: Leader) -> ScriptedFollower:
        assert (folder, keys) == (self.folder, KEYS)
        assert all(each.is_stopped for each in self.started), "two followers of one log"
        state = self.script.pop(0) if self.script else FOLLOWING
        if isinstance(state, Exception):
            raise state
        self.started.append(ScriptedFollower(leader, state))
        return self.started[-1]


def write_log(folder: Path) -> None:
    Journal.open(log_folder(folder)).close()


@pytest.mark.parametrize(
    "script",
    [
        [FAILED], [FAILED, FAILED], [OSError(24, "too many open files")], [JournalError("locked"), FAILED],
        [FAILED, OSError(28, "no space"), FAILED],
    ],
)  # fmt: skip
def test_a_follower_that_fails_once_or_more_is_started_again_until_it_follows(
    tmp_path: Path, script: list[FollowerState | Exception]
) -> None:
    standby = Standby(tmp_path, *script)
    standby.look()
    standby.look()
    assert standby.copy.failure
    standby.look(60)
    assert [each.state for each in standby.started if not each.is_stopped] == [FOLLOWING]
    assert (standby.copy.failure, standby.copy.is_following, standby.set_aside_count) == ("", True, 0)


def test_the_pauses_between_followers_that_fail_grow_and_begin_anew_after_one_that_followed(tmp_path: Path) -> None:
    standby = Standby(tmp_path, *[FAILED] * 7)
    started_at_ns, seen = list[int](), 0
    for _ in range(200):
        standby.look()
        if len(standby.started) > seen:
            seen = len(standby.started)
            started_at_ns.append(standby.now_ns)
    pauses = [later - earlier for earlier, later in pairwise(started_at_ns)]
    assert pauses == sorted(pauses)
    assert (pauses[0] <= 3 * RETRY_NS_MIN, pauses[-1] <= RETRY_NS_MAX + RETRY_NS_MIN) == (True, True)
    standby.started[-1].state = FAILED
    standby.look(3)
    assert [each.is_stopped for each in standby.started[-2:]] == [True, False]


def test_a_follower_whose_copy_was_removed_acknowledges_nothing_more_and_makes_another_copy(tmp_path: Path) -> None:
    write_log(tmp_path)
    standby = Standby(tmp_path)
    standby.look(3)
    assert len(standby.started) == 1
    shutil.rmtree(log_folder(tmp_path))
    standby.look()
    assert standby.started[0].is_stopped
    assert "was removed or replaced" in standby.copy.failure
    standby.look(3)
    assert [each.is_stopped for each in standby.started] == [True, False]
    assert standby.set_aside_count == 0


@pytest.mark.parametrize("state", [FollowerState.DIVERGED, FollowerState.REFUSED])
def test_a_copy_that_differs_is_set_aside_and_made_again(tmp_path: Path, state: FollowerState) -> None:
    write_log(tmp_path)
    former = copy_id(tmp_path)
    standby = Standby(tmp_path, state)
    standby.look(2)
    assert (standby.set_aside_count, copy_id(tmp_path)) == (1, b"")
    assert former
    assert [(each.leader, each.is_stopped) for each in standby.started] == [(ONE, True), (ONE, False)]
    assert (tmp_path / "log.set-aside").is_dir()


def test_another_leader_is_followed_at_once_whatever_the_former_follower_did(tmp_path: Path) -> None:
    write_log(tmp_path)
    (log_folder(tmp_path) / LEADER_NAME).write_text("ab\n")
    standby = Standby(tmp_path, FAILED, FAILED, FAILED)
    standby.look(4)
    assert not (log_folder(tmp_path) / LEADER_NAME).exists()
    standby.copy.follow(TWO)
    assert standby.started[-1].leader == TWO
    standby.copy.stop()
    assert standby.started[-1].is_stopped
    assert not standby.copy.is_following
