"""Waits that a pause of this process does not use up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from tandemfeed.client_lib import patient_wait
from tandemfeed.client_lib.patient_wait import PatientWait, PauseWatch, again_if_paused
from tandemfeed.feedcore.pause_free_clock import LOOK_EVERY_NS, PAUSE_NS
from tandemfeed.runtime import threads
from tests.dying_process import die_after

S = 1_000_000_000
HOUR_S, WAIT_S, THREAD = 3_600, 30.0, "tandemfeed-pauses"


class Clock:
    """A monotonic clock that advances by a step whenever it is read, and as the test says."""

    def __init__(self) -> None:
        self.now_ns, self.step_ns = 5 * S, LOOK_EVERY_NS
        self.reads = threading.Semaphore(0)

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        self.reads.release()
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    monkeypatch.setattr(patient_wait, "IDLE_S", 0.01)
    made = Clock()
    yield made
    await_so(lambda: not [each for each in threading.enumerate() if each.name == THREAD])


def await_so(is_so: Callable[[], object]) -> None:
    give_up_at_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < give_up_at_s
        time.sleep(0.005)


def test_a_wait_ends_when_its_time_has_passed_and_says_so_once(clock: Clock) -> None:
    watch, over = PauseWatch(clock), threading.Semaphore(0)
    clock.step_ns = LOOK_EVERY_NS // 5  # it is read by both threads
    with PatientWait(0.2, over.release, watch) as wait:
        assert wait.left_s <= 0.2
        assert over.acquire(timeout=WAIT_S)
        assert not wait.was_paused
        assert wait.waited_s >= 0.2
        assert wait.left_s > HOUR_S, "it waits for nothing more"
        for _ in range(50):
            assert clock.reads.acquire(timeout=WAIT_S)
        assert not over.acquire(blocking=False)


@pytest.mark.parametrize("times", [1, 2])
def test_pauses_of_this_process_use_up_no_time(clock: Clock, times: int) -> None:
    watch, over = PauseWatch(clock), threading.Event()
    clock.step_ns = 1
    with PatientWait(0.5, over.set, watch) as wait:
        for _ in range(times):
            before = watch.pause_count
            clock.now_ns += HOUR_S * S
            await_so(lambda before=before: watch.pause_count > before)  # type: ignore[misc]
        assert wait.was_paused
        assert not over.is_set()
        assert wait.waited_s <= times * 2 * PAUSE_NS / S
        clock.step_ns = LOOK_EVERY_NS
        assert over.wait(WAIT_S)


def test_time_in_which_nothing_waited_is_no_pause(clock: Clock) -> None:
    watch = PauseWatch(clock)
    for _ in range(2):
        clock.now_ns += HOUR_S * S
        with PatientWait(5, None, watch) as wait:
            assert not wait.was_paused
            assert wait.waited_s < 1
        assert not wait.was_paused


def test_a_suspended_wait_is_not_over_and_gets_the_whole_time_when_it_is_restarted(clock: Clock) -> None:
    watch, over = PauseWatch(clock), threading.Semaphore(0)
    with PatientWait(0.5, over.release, watch) as wait:
        wait.suspend()
        for _ in range(50):
            assert clock.reads.acquire(timeout=WAIT_S)
        assert not over.acquire(blocking=False)
        for _ in range(2):
            wait.restart()
            assert wait.left_s > 0.4
            assert over.acquire(timeout=WAIT_S)


def test_a_limit_shortens_a_wait_and_never_extends_it(clock: Clock) -> None:
    clock.step_ns = 0
    with PatientWait(5, None, PauseWatch(clock)) as wait:
        wait.limit(1)
        assert wait.left_s == 1
        wait.limit(3)
        assert wait.left_s == 1


def test_answers_are_taken_until_the_time_is_over(clock: Clock) -> None:
    answers: queue.SimpleQueue[int] = queue.SimpleQueue()
    with PatientWait(0.5, None, PauseWatch(clock)) as wait:
        threading.Timer(0.05, answers.put, (7,)).start()
        clock.step_ns = 1
        assert wait.take(answers) == 7
        clock.step_ns = LOOK_EVERY_NS
        with pytest.raises(queue.Empty):
            wait.take(answers)
        answers.put(8)
        assert wait.take(answers) == 8, "what is there already is taken"


def test_a_condition_is_awaited_until_the_time_is_over(clock: Clock) -> None:
    waits: list[float] = []
    with PatientWait(0.5, None, PauseWatch(clock)) as wait:
        assert wait.until(lambda: len(waits) == 2, waits.append)
        assert not wait.until(lambda: False, waits.append)
        assert wait.until(lambda: True, waits.append)
    assert all(0 < each <= LOOK_EVERY_NS / S for each in waits)


class Call:
    """A call that is answered at the n-th look."""

    def __init__(self, looks: int, answer: Any = "answer") -> None:
        self._looks, self._answer = looks, answer

    def result(self, timeout: float | None = None) -> Any:
        self._looks -= 1
        if self._looks > 0:
            raise grpc.FutureTimeoutError
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_a_calls_result_or_error_is_awaited_until_the_time_is_over(clock: Clock) -> None:
    with PatientWait(0.5, None, PauseWatch(clock)) as wait:
        assert wait.result(Call(2)) == "answer"
        with pytest.raises(KeyError):
            wait.result(Call(2, KeyError()))
        with pytest.raises(grpc.FutureTimeoutError):
            wait.result(Call(1 << 40))
        assert wait.result(Call(1)) == "answer"


def test_one_thread_serves_all_waits_ends_when_nothing_waits_and_another_one_follows(clock: Clock) -> None:
    watch, over = PauseWatch(clock), threading.Semaphore(0)
    for _ in range(2):
        with PatientWait(0.1, over.release, watch), PatientWait(0.2, over.release, watch):
            assert over.acquire(timeout=WAIT_S)
            assert over.acquire(timeout=WAIT_S)
            assert [each.name for each in threading.enumerate()].count(THREAD) == 1
        await_so(lambda: not watch._is_running)


def test_a_wait_that_begins_while_the_thread_is_idle_is_served(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient_wait, "IDLE_S", WAIT_S)
    watch, over = PauseWatch(clock), threading.Semaphore(0)
    for _ in range(2):
        with PatientWait(0.1, over.release, watch):
            assert over.acquire(timeout=WAIT_S / 2)
        await_so(lambda: watch._is_idle)
    monkeypatch.setattr(patient_wait, "IDLE_S", 0)
    with PatientWait(0.1, over.release, watch):
        assert over.acquire(timeout=WAIT_S / 2)


def test_a_failure_of_the_thread_is_shown_and_the_next_wait_starts_another_one(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_failed", {})
    watch, over = PauseWatch(clock), threading.Event()

    def fail() -> None:
        raise ValueError("planted")

    with PatientWait(0.1, fail, watch):
        await_so(lambda: THREAD in threads.failed_threads())
    with PatientWait(0.1, over.set, watch):
        assert over.wait(WAIT_S)


def test_a_forked_process_has_a_watch_of_its_own() -> None:
    with PatientWait(HOUR_S):

        def wait_in_child() -> str:
            try:
                with PatientWait(0.05) as wait:
                    wait.take(queue.SimpleQueue())
            except queue.Empty:
                return "over"
            return ""

        assert die_after(wait_in_child) == "over"


@pytest.mark.parametrize(("is_paused", "count"), [(True, 2), (False, 1)])
def test_what_fails_is_done_again_only_if_this_process_was_paused_meanwhile(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, is_paused: bool, count: int
) -> None:
    watch, done = PauseWatch(clock), list[int]()
    monkeypatch.setattr(patient_wait, "_watch", watch)

    def work() -> str:
        done.append(1)
        if is_paused and len(done) == 1:
            clock.now_ns += HOUR_S * S
            await_so(lambda: watch.pause_count)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        again_if_paused(work, TimeoutError)
    assert len(done) == count
    with pytest.raises(TimeoutError):
        again_if_paused(work, KeyError)
    assert len(done) == count + 1
    assert again_if_paused(lambda: "done", TimeoutError) == "done"
