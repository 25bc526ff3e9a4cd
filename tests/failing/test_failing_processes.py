"""System calls of real processes fail: each continues, or ends with a sentence and a status, and nothing that it has
acknowledged is lost.

Which calls fail is drawn by a seed; TANDEMFEED_KILL_ROUNDS=50 draws more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.failing.drawing import OF_READERS, drawn
from tests.failing.journal_commands import JournalCommands
from tests.failing.sites import (
    AdapterKind,
    AdminServerKind,
    ContributionGatewayKind,
    Kind,
    RunningCluster,
    SourceGatewayKind,
    SubscriberKind,
)
from tests.failing_calls import why_no_failing_calls
from tests.kill_rounds import kill_rounds

SEED = 20261128
EFFECTIVE_MIN = 0.4  # of the rounds: in so many a call must have failed, else the test shows little


@pytest.fixture(scope="module", autouse=True)
def _can_fail() -> None:
    if why := why_no_failing_calls():
        pytest.skip(why)


@pytest.mark.processes
def test_the_admin_server_loses_nothing_when_calls_fail(tmp_path: Path) -> None:
    with closing(AdminServerKind(tmp_path)) as kind:
        check(kind, SEED, 2)


@pytest.mark.processes
def test_the_commands_of_the_journal_say_what_failed_or_all_that_there_is(tmp_path: Path) -> None:
    commands = JournalCommands(tmp_path)
    chance = random.Random(SEED)
    found = [
        problem
        for fault in drawn(SEED, commands.folder, count=kill_rounds(6), kinds=OF_READERS)
        for problem in commands.round(chance.choice(list(commands.commands)), fault)
    ]
    assert not found, "\n".join(found)
    assert effective(commands.failed_counts)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with closing(RunningCluster(Path(tmp_path_factory.mktemp("failing")))) as running:
        yield running


KINDS: list[Callable[[RunningCluster], Kind]] = [
    AdapterKind, SourceGatewayKind, ContributionGatewayKind, SubscriberKind
]  # fmt: skip


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_processes_of_a_cluster_lose_nothing_when_calls_fail(site: RunningCluster) -> None:
    for number, kind in enumerate(KINDS):
        check(kind(site), SEED + 1 + number, 5)
    assert not site.loss_of_client()


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_admin_server_with_many_failures_loses_nothing(tmp_path: Path) -> None:
    with closing(AdminServerKind(tmp_path)) as kind:
        check(kind, SEED + 10, 8)


def check(kind: Kind, seed: int, usual_rounds: int) -> None:
    faults = drawn(seed, kind.folder, count=kill_rounds(usual_rounds), kinds=kind.calls)
    found = [problem for fault in faults for problem in kind.round(fault)]
    assert not found, "\n".join(found)
    assert effective(kind.failed_counts), kind.failed_counts


def effective(failed_counts: list[int]) -> bool:
    return sum(map(bool, failed_counts)) >= EFFECTIVE_MIN * len(failed_counts)
