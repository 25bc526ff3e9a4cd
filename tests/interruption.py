"""A pytest plugin: SIGTERM ends a test run as Ctrl-C does, and either ends every process that the run has started."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType

import psutil
import pytest

started: list[psutil.Process] = []  # at the interruption


def pytest_configure(config: pytest.Config) -> None:
    """Interrupt the run at SIGTERM and SIGINT."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Now, because the processes of an ended test process could no longer be found.
    started.extend(psutil.Process().children(recursive=True))
    raise KeyboardInterrupt


def pytest_keyboard_interrupt() -> None:
    """Kill the processes of the interrupted tests, and the test processes that run side by side."""
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()  # refuses if the number now belongs to another process
