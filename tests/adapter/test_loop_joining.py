"""A loop that joins: until when it yields, and what is left to the thread that goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.adapter.mailbox import Event
from tandemfeed.feedcore.replica.effects import AdapterEffect, StateMoved
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.adapter.test_loop_output import Adapter
from tests.feedcore.replica.engines import Adapter as ToyAdapter
from tests.feedcore.replica.engines import of

WAIT_S = 60.0


class Joining:
    """A loop with a channel that has not caught up."""

    def __init__(self, folder: Path) -> None:
        self.shell, self.active, self.joiner = Adapter(folder), ToyAdapter(1), ToyAdapter(2)
        self.active.activate()
        self.loop = self.shell.loop
        self.loop._engine = self.joiner.engine
        self.reported: list[ReplicaState] = []
        self.loop._on_report_due = lambda: self.reported.append(self.joiner.state)

    def post(self, event: Event) -> None:
        self.loop._mailbox.post(event)

    def catch_up(self, now_ns: int) -> list[AdapterEffect]:
        """What an event does: the snapshot arrives. Only its moves are performed."""
        engine = self.joiner.engine
        effects = engine.on_cluster_changed(1, 1, now_ns, [1])
        effects += engine.on_answer(1, self.active.engine.snapshot(1), now_ns)
        return [*of(effects, StateMoved)]

    def stop(self, _now_ns: int) -> list[AdapterEffect]:
        self.shell.stop.set()
        return []


@pytest.fixture
def joining(tmp_path: Path) -> Iterator[Joining]:
    made = Joining(tmp_path / "journal")
    yield made
    made.shell.close()


def test_an_adapter_that_is_needed_stops_yielding_and_leaves_the_order_to_the_next_thread(joining: Joining) -> None:
    took: list[str] = []
    first = threading.Event()

    def event(_now_ns: int) -> list[AdapterEffect]:
        took.append(threading.current_thread().name)
        first.set()
        return []

    yielding = threading.Thread(target=joining.loop.join, name="yielding")
    yielding.start()
    joining.post(event)
    assert first.wait(WAIT_S)
    joining.loop.hurry()
    joining.post(event)
    yielding.join(WAIT_S)
    assert not yielding.is_alive()
    joining.post(joining.stop)
    joining.loop.run()
    assert took == ["yielding", threading.current_thread().name]


def test_an_adapter_that_has_caught_up_reports_it_when_it_yields_no_longer(joining: Joining) -> None:
    joining.post(joining.catch_up)
    joining.loop.join()
    assert joining.joiner.state is ReplicaState.SYNCHRONIZED
    assert ReplicaState.SYNCHRONIZED not in joining.reported
    joining.post(joining.stop)
    joining.loop.run()
    assert joining.reported[-1] is ReplicaState.SYNCHRONIZED


def test_an_adapter_yields_for_a_limited_time(
    joining: Joining, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tandemfeed.adapter.loop.JOIN_NS_MAX", 150_000_000)
    with caplog.at_level(logging.INFO):
        joining.loop.join()  # nothing happens that would end it
    assert joining.joiner.engine.is_catching_up
    assert [record.__dict__["why"] for record in caplog.records if record.message == "joined"] == [
        "this machine is too busy"
    ]
