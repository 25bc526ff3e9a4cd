"""Threads that fail, and what follows."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from tandemfeed.runtime import threads
from tandemfeed.runtime.threads import (
    EXIT_THREAD_FAILED,
    end_process,
    exit_status,
    failed_threads,
    mark_unhealthy,
    start_thread,
)


@pytest.fixture(autouse=True)
def _no_failed_threads() -> Iterator[None]:
    threads._failed.clear()
    yield
    threads._failed.clear()


def fail() -> None:
    raise ValueError("broken")


def test_a_thread_that_returns_is_not_a_failure() -> None:
    start_thread(lambda: None, "short", mark_unhealthy).join(30)
    assert failed_threads() == {}


def test_a_thread_that_fails_is_passed_on_with_its_name_and_its_exception() -> None:
    seen: list[tuple[str, str]] = []
    start_thread(fail, "worker", lambda name, failure: seen.append((name, str(failure)))).join(30)
    assert seen == [("worker", "broken")]


def test_a_failed_thread_makes_the_process_unhealthy() -> None:
    start_thread(fail, "worker", mark_unhealthy).join(30)
    assert [(name, str(failure)) for name, failure in failed_threads().items()] == [("worker", "broken")]


def test_a_failed_thread_that_a_process_cannot_do_without_ends_it_by_sigterm() -> None:
    reached = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        reached.set()

    former = signal.signal(signal.SIGTERM, on_signal)
    try:
        start_thread(fail, "worker", end_process).join(30)
        assert reached.wait(30)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert list(failed_threads()) == ["worker"]


def test_a_process_of_which_a_thread_failed_does_not_end_with_status_0() -> None:
    assert [exit_status(), exit_status(2)] == [0, 2]
    start_thread(fail, "worker", mark_unhealthy).join(30)
    assert [exit_status(), exit_status(2)] == [EXIT_THREAD_FAILED, 2]


def test_the_log_says_which_thread_failed_when_it_fails_and_when_the_process_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start_thread(fail, "worker", mark_unhealthy).join(30)
    assert threads.exit_status() == threads.EXIT_THREAD_FAILED
    assert "ended because thread worker failed: broken" in caplog.text
