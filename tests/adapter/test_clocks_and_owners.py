"""Where an adapter's shells read clocks, and who owns what threads share.

A deadline by the wall clock is missed, or comes an hour early, when an operator or a daemon sets that clock. So shells
take the monotonic clock as an argument, and read the wall clock only for what people or other hosts read. A state that
two threads change is lost sooner or later; so each class that knows of threads says who owns what.
"""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.adapter.conversion.dead_letters import DeadLetter, RefusedPacket
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.peers.peer_input import LOG_INTERVAL_NS, PeerInput
from tandemfeed.adapter.records.dead_letter_journal import COLLECT_INTERVAL_NS, RETRY_INTERVAL_NS, DeadLetterJournal
from tandemfeed.adapter.records.output_journal import RETRY_WHEN_FULL_NS, OutputJournal
from tandemfeed.adapter.reporting.report_sender import ReportSender, ReportStream
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.v1 import admin_pb2
from tests.adapter.records.test_output_journal import BLOCK, packet
from tests.test_house import dotted
from tests.test_import_directions import ROOT

ADAPTER = ROOT / "adapter"
NOT_SHELLS = ("conversion", "convert_command")  # what runs in the loop without a clock, and a command
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow"}
MONOTONIC_CLOCK = {"time.monotonic", "time.monotonic_ns"}

# Modules that read the wall clock, and what for.
READ_BY_OTHERS = {
    "adapter/loop.py": "when a datagram was sent and a forged one came, for clients and operators",
    "adapter/records/dead_letter_journal.py": "when a message was refused, for operators",
    "adapter/records/output_journal.py": "when a packet was last dropped, for operators",
}
# Modules that read the monotonic clock themselves, and why that is no deadline of theirs.
NO_DEADLINE = {"adapter/process.py": "the time at which the engine begins"}
KNOW_OF_THREADS = {
    *(f"threading.{name}" for name in ("Lock", "Condition", "Event", "Semaphore", "local")),
    *("start_thread", "started_pool", "deque", "SimpleQueue", "queue.SimpleQueue", "os.eventfd", "Turns", "FairTurns"),
}
SINGLE_THREADED = {
    "adapter/reporting/health.py: HealthSampler",
    "adapter/records/provisional_index.py: ProvisionalIndex",
}


def shells() -> Iterator[tuple[str, ast.Module]]:
    """The modules of the adapter that are shells."""
    for path in sorted(ADAPTER.rglob("*.py")):
        if path.relative_to(ADAPTER).parts[0] not in NOT_SHELLS:
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def calls_of(tree: ast.AST, names: set[str]) -> list[str]:
    """The calls of these functions, in the order of the source."""
    return [dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and dotted(node.func) in names]


def test_only_what_others_read_has_the_wall_clocks_time() -> None:
    found = {name for name, tree in shells() if calls_of(tree, WALL_CLOCK)}
    assert found == READ_BY_OTHERS.keys()


def test_every_shell_with_a_deadline_takes_its_clock_as_an_argument() -> None:
    found = {name for name, tree in shells() if calls_of(tree, MONOTONIC_CLOCK)}
    assert found == NO_DEADLINE.keys()


def test_every_class_that_knows_of_threads_says_who_owns_what() -> None:
    silent = [
        f"{name}: {node.name}"
        for name, tree in shells()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and calls_of(node, KNOW_OF_THREADS)
        and "Owner" not in (ast.get_docstring(node) or "")
    ]
    assert set(silent) == SINGLE_THREADED


# ---- the wall clock is set, an hour either way ----


@pytest.fixture(params=[-1, 1], ids=["an hour back", "an hour ahead"])
def set_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock is set by an hour after its first reading."""
    readings = [0]

    def time_ns() -> int:
        readings[0] += 1
        return 1_800_000_000_000_000_000 + request.param * 3_600_000_000_000 * min(readings[0] - 1, 1)

    monkeypatch.setattr(time, "time_ns", time_ns)
    monkeypatch.setattr(time, "time", lambda: time_ns() / 1e9)


class Clock:
    """A monotonic clock."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Refusing:
    """A converter with a refused message for each collection."""

    def __init__(self) -> None:
        self.refused = [RefusedPacket(b"", 0, np.zeros(4, np.int64))]

    def take_refused(self) -> list[RefusedPacket]:
        return list(self.refused)

    @staticmethod
    def dead_letters_in(packets: Sequence[RefusedPacket]) -> list[DeadLetter]:
        return [DeadLetter(Reason.UNMAPPED, 1, 1, 1, 1, 1, "", b"") for _ in packets]


@pytest.mark.usefixtures("set_clock")
def test_an_output_journal_tries_a_full_disk_again_when_its_pause_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    journal = OutputJournal(tmp_path / "journal", block_size=BLOCK, clock_ns=clock)
    append, refused = journal._journal.append, [OSError(28, "No space left on device")]

    def failing(record: bytes) -> int:
        if refused:
            raise refused.pop()
        return append(record)

    monkeypatch.setattr(journal._journal, "append", failing)
    for clock.now_ns, is_failing in ((1, True), (RETRY_WHEN_FULL_NS, True), (RETRY_WHEN_FULL_NS + 1, False)):
        journal.append(packet(1, 1, 3))
        assert journal.is_failing is is_failing
    journal.close()


@pytest.mark.usefixtures("set_clock")
def test_dead_letters_are_collected_and_tried_again_by_the_monotonic_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, tried, append = Clock(), threading.Semaphore(0), DeadLetterJournal._append

    def noted(letters: DeadLetterJournal, records: list[bytes]) -> None:
        append(letters, records)
        tried.release()

    monkeypatch.setattr(DeadLetterJournal, "_append", noted)
    (tmp_path / "dead").write_text("a file in place of the folder")
    letters = DeadLetterJournal(tmp_path / "dead", 1, {1: Refusing()}, clock_ns=clock)
    for clock.now_ns in (0, COLLECT_INTERVAL_NS - 1, COLLECT_INTERVAL_NS):
        letters.collect(clock.now_ns)
    for _ in range(3):  # when it opened, and for two collections
        assert tried.acquire(timeout=60)
    (tmp_path / "dead").unlink()
    clock.now_ns = COLLECT_INTERVAL_NS + RETRY_INTERVAL_NS
    letters.close()  # collects
    assert (letters.appended_count, letters.dropped_count) == (1, 2)


@pytest.mark.usefixtures("set_clock")
def test_refused_answers_of_peers_are_logged_at_intervals_of_the_monotonic_clock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, posted = Clock(), list[object]()
    checked = PeerInput({1: frozenset({1})}, CounterSet(), posted.append, clock)
    for clock.now_ns in (0, 1, LOG_INTERVAL_NS - 1, LOG_INTERVAL_NS):
        checked.refuse(2, "state", PacketRefused(Refusal.MALFORMED, "impossible"))
    assert [vars(record)["count"] for record in caplog.records] == [1, 3]
    assert len(posted) == 4


@pytest.mark.usefixtures("set_clock")
def test_a_lease_counts_by_the_monotonic_clock() -> None:
    clock = Clock()
    sender = ReportSender(dict, clock_ns=clock)
    sender.begin(ReportStream(7), 5)
    clock.now_ns += 500
    sender.send(admin_pb2.AdapterReport())
    assert [sender.until_ns(report_id, 300) for report_id in (1, 2)] == [270, 770]
