"""What tests of the admin server's threads need."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from tandemfeed.runtime import threads


class EndedProcess:
    """Whether this process was asked to end, which it does not do."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """SIGTERM has arrived."""
        self._asked.set()

    def reasons(self) -> list[str]:
        """Wait until the process is asked to end; return the threads that have failed by then, each with its error."""
        assert self._asked.wait(30), "nothing ends the process"
        return [f"{name}: {failure}" for name, failure in threads.failed_threads().items()]


@pytest.fixture
def ended_process() -> Iterator[EndedProcess]:
    """Takes the place of the end of this process, which a failed thread causes."""
    ended = EndedProcess()
    former = signal.signal(signal.SIGTERM, ended.on_signal)
    threads._failed.clear()
    yield ended
    signal.signal(signal.SIGTERM, former)
    threads._failed.clear()
