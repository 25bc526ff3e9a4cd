"""A task that waits for its twin, which still appends to the stream's journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandemfeed.journal import Journal
from tandemfeed.spark_feed.journaling import stream_appender
from tandemfeed.spark_feed.journaling.records import BLOCK_SIZE, SourceJournalError
from tandemfeed.spark_feed.journaling.stream_appender import PAUSE_NS, TWIN_PATIENCE_NS


class Clock:
    """Moves with each look. Args: steps_ns: by how much, one after another; then by the last one."""

    def __init__(self, *steps_ns: int, then: Callable[[], None] = lambda: None) -> None:
        self.now_ns, self.looks, self._steps_ns, self._then = 0, 0, list(steps_ns), then

    def __call__(self) -> int:
        self.looks += 1
        self.now_ns += self._steps_ns.pop(0) if len(self._steps_ns) > 1 else self._steps_ns[0]
        if len(self._steps_ns) == 1:
            self._then()
        return self.now_ns


@pytest.fixture(autouse=True)
def _no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_appender, "TWIN_POLL_S", 0)


def test_a_task_gives_up_a_twin_that_appends_for_too_long(tmp_path: Path) -> None:
    clock = Clock(PAUSE_NS)
    twin = Journal.open(tmp_path, block_size=BLOCK_SIZE, exclusive=True)
    with twin, pytest.raises(SourceJournalError, match="appends to it"):
        stream_appender._open(tmp_path, clock)
    assert clock.looks == TWIN_PATIENCE_NS // PAUSE_NS + 1


def test_a_task_that_was_paused_does_not_give_its_twin_up_for_that(tmp_path: Path) -> None:
    twin = Journal.open(tmp_path, block_size=BLOCK_SIZE, exclusive=True)
    clock = Clock(0, 90 * TWIN_PATIENCE_NS, PAUSE_NS, then=twin.close)
    stream_appender._open(tmp_path, clock).close()
    assert clock.now_ns >= 90 * TWIN_PATIENCE_NS
