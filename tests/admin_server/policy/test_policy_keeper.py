"""Every end of a right is enforced: within a reload, after an error, and after a step of the wall clock."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.policy import policy_keeper
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.admin_server.policy.rules import Action
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.settings import load_cluster
from tests.admin_server.cluster_files import POLICY, write_settings
from tests.admin_server.conftest import EndedProcess
from tests.failing_calls_here import failing_calls

SECOND, HOUR = 1_000_000_000, 3_600_000_000_000
NOON = int(datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp()) * SECOND


def rule(until_unix_ns: int, from_unix_ns: int = NOON - 5 * HOUR) -> str:
    """A rule by which the stranger may observe the feed for a time."""
    times = [datetime.fromtimestamp(each / SECOND, UTC).isoformat() for each in (from_unix_ns, until_unix_ns)]
    text = '[[rule]]\nto = ["stranger"]\nactions = ["observe"]\nfeeds = ["equities"]\n'
    return f"{POLICY}{text}from = {times[0]}\nuntil = {times[1]}\n"


class Watched:
    """A policy whose clock the test sets, without its thread.

    Attributes:
        enforced: for each announcement, whether the stranger may observe at that time.
        before, after: called when rights are being enforced, before and after they are looked up.
    """

    def __init__(self, folder: Path, text: str) -> None:
        cluster, self.path = write_settings(folder, policy=text)
        self.now, self.enforced = NOON, list[bool]()
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.keeper = PolicyKeeper(self.path, cluster, load_cluster(cluster), lambda: self.now)
        self.audit = AuditLog(folder)
        self.keeper._audit, self.keeper._on_change = self.audit, self._enforce

    def _enforce(self) -> None:
        self.before()
        self.enforced.append(self.keeper.allows("stranger", "observe", ["equities"]))  # type: ignore[arg-type]
        self.after()

    def write(self, text: str) -> None:
        draft = self.path.with_suffix(".new")
        draft.write_text(text)
        draft.rename(self.path)

    def look(self) -> list[bool]:
        """What was enforced by a look."""
        self.enforced = []
        self.keeper.look()
        return self.enforced


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path, rule(NOON + 10 * SECOND))
    yield made
    made.audit.close()


def test_each_begin_and_end_of_a_right_is_enforced_once(watched: Watched) -> None:
    assert watched.look() == [True], "what may have ended between the start and the first look"
    assert watched.look() == []
    watched.now += 10 * SECOND
    assert watched.look() == [False]
    assert watched.look() == []


def test_the_end_of_a_right_of_the_new_policy_right_after_a_reload_is_enforced(watched: Watched) -> None:
    watched.look()
    watched.write(rule(NOON + 5 * SECOND))
    watched.now += 4 * SECOND
    assert watched.keeper.reload("operator")
    watched.now += 2 * SECOND  # the right has ended before the watch has ever looked at this policy
    assert watched.look() == [False]


def test_the_end_of_a_right_while_rights_are_being_enforced_is_enforced_next(watched: Watched) -> None:
    watched.look()
    watched.write(rule(NOON + 5 * SECOND) + "# changed\n")

    def let_time_pass() -> None:
        watched.after = lambda: None
        watched.now = NOON + 6 * SECOND

    watched.after = let_time_pass
    assert watched.look() == [True, False]


@pytest.mark.parametrize("error", [RecordsUnavailable("locked"), OSError(errno.ENOSPC, "no space")])
def test_what_could_not_be_enforced_is_enforced_again_until_it_is(watched: Watched, error: Exception) -> None:
    watched.look()
    watched.now += 10 * SECOND

    def fail() -> None:
        raise error

    watched.before = fail
    assert watched.look() == []
    assert watched.look() == []
    watched.before = lambda: None
    assert watched.look() == [False]
    assert watched.look() == []


def test_after_a_step_of_the_clock_rights_are_enforced_as_of_the_new_time_and_end_again(watched: Watched) -> None:
    watched.now = NOON + 10 * SECOND
    assert watched.look() == [False]
    watched.now -= HOUR
    assert watched.look() == [True], "by the clock, the right has not ended"
    watched.now += HOUR - 1
    assert watched.look() == []
    watched.now += 1
    assert watched.look() == [False]
    watched.now += HOUR
    assert watched.look() == []
    watched.write(rule(NOON + 3 * HOUR))
    assert watched.look() == [True]
    watched.now += 3 * HOUR
    assert watched.look() == [False], "a step over the end of a right"


def test_a_changed_policy_that_could_not_be_recorded_is_loaded_when_it_can_be(watched: Watched, tmp_path: Path) -> None:
    watched.look()
    watched.write(POLICY)
    with failing_calls("write", errno.ENOSPC, 1, tmp_path, None):
        for _ in range(2):
            assert watched.look() == []
        assert "the change could not be recorded" in watched.keeper.refusal
        assert watched.keeper.allows("stranger", "observe", ["equities"])  # type: ignore[arg-type]
    assert watched.look() == [False]
    assert watched.keeper.refusal == ""


def test_a_change_that_cannot_be_recorded_is_logged_once_for_each_time_that_the_disk_refuses(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = "could not record the change of the policy, so the former one stays in force; retrying"
    write, failing = watched.audit.write, True

    def record(event: str, **fields: object) -> None:
        if failing:
            raise OSError(errno.ENOSPC, "no space")
        write(event, **fields)

    monkeypatch.setattr(watched.audit, "write", record)
    for changed in ("# changed\n", "# again\n"):
        caplog.clear()
        failing = True
        watched.write(rule(NOON + 10 * SECOND) + changed)
        for _ in range(3):
            watched.look()
        assert [each.message for each in caplog.records].count(text) == 1
        assert watched.keeper.refusal == "the change could not be recorded: [Errno 28] no space"
        failing = False
        watched.look()
        assert watched.keeper.refusal == ""


def test_a_disabled_identity_has_no_right_of_any_kind_until_it_is_enabled(watched: Watched) -> None:
    keeper, enforced = watched.keeper, watched.enforced
    watched.look()
    for disabled in (True, False):
        watched.enforced = enforced = []
        keeper.disable(frozenset({"stranger"} if disabled else ()))
        assert enforced == [not disabled], "lost rights have ended when it returns"
        assert ("stranger" in keeper, "stranger" in list(keeper)) == (not disabled, not disabled)
        assert keeper.policy_has("stranger")
        assert keeper.allows("stranger", Action.OBSERVE, ["equities"]) is not disabled
        assert keeper.decide("stranger", Action.OBSERVE, "equities").is_allowed is not disabled
        assert len(keeper) == len(keeper.policy.identities) - disabled
    keeper.disable(frozenset({"stranger"}))
    with pytest.raises(KeyError, match="stranger"):
        keeper["stranger"]


def test_a_watch_that_fails_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended_process: EndedProcess
) -> None:
    monkeypatch.setattr(policy_keeper, "LOOK_INTERVAL_S", 0.001)
    watched = Watched(tmp_path, POLICY)

    def fail() -> None:
        raise ValueError("broken")

    watched.keeper.watch(watched.audit, fail)
    assert ended_process.reasons() == ["policy: broken"]
    watched.keeper.stop()
    watched.audit.close()


def test_a_watch_enforces_what_has_ended_before_it_began(tmp_path: Path) -> None:
    watched = Watched(tmp_path, rule(NOON - SECOND))
    watched.keeper.watch(watched.audit, watched._enforce)
    deadline = time.monotonic() + 30
    while not watched.enforced:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    watched.keeper.stop()
    watched.audit.close()
    assert watched.enforced == [False]
