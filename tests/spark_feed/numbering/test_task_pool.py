"""Tasks that stay do the driver's work, each piece of it once more when a task dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tandemfeed.spark_feed.numbering.tasks.pool import SOCKET_NAME, TASK_TRIES, Stay, TaskPool, TasksFailed

PATIENCE_S = 60.0
BARRIER = threading.Barrier(2, timeout=PATIENCE_S)  # for tasks in threads


def _prepare() -> None:
    pass


def _threads(count: int, stay: Stay) -> list[str]:
    """Run tasks as threads of this process; returns what they returned."""
    why: list[str] = []
    threads = [threading.Thread(target=lambda: why.extend(stay(iter([0])))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return why


def _task(stay: Stay) -> None:
    assert list(stay(iter([0]))) == []


def _processes(count: int, stay: Stay) -> list[str]:
    """Run tasks as processes; like Spark, start one again that dies, but not for ever."""
    starting = multiprocessing.get_context("spawn")
    running = [starting.Process(target=_task, args=[stay]) for _ in range(count)]
    for process in running:
        process.start()
    died_count = 0
    while running:
        multiprocessing.connection.wait([process.sentinel for process in running])
        for process in [each for each in running if each.exitcode is not None]:
            running.remove(process)
            if process.exitcode:
                died_count += 1
                if died_count == TASK_TRIES:
                    for other in running:
                        other.kill()
                    raise RuntimeError("a task died too often")
                running.append(starting.Process(target=_task, args=[stay]))
                running[-1].start()
    return []


@contextlib.contextmanager
def _pool(folder: Path, start: Callable[[Stay], list[str]]) -> Iterator[TaskPool]:
    pool = TaskPool(folder, _prepare, start)
    try:
        yield pool
    finally:
        pool.close()


def _double(number: int) -> int:
    return 2 * number


def _meet() -> int:
    return BARRIER.wait()


def _die_unless(marker: Path) -> str:
    """End the task, the first time."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise LookupError("no such record")


def test_results_are_in_the_order_of_the_work(tmp_path: Path) -> None:
    with _pool(tmp_path, partial(_threads, 2)) as pool:
        for count in (1, 7, 0, 30):
            assert pool.run([partial(_double, number) for number in range(count)]) == [2 * n for n in range(count)]


def test_pieces_of_work_are_done_side_by_side(tmp_path: Path) -> None:
    with _pool(tmp_path, partial(_threads, 2)) as pool:
        assert sorted(pool.run([_meet, _meet])) == [0, 1]  # neither ends before the other has begun


def test_the_work_of_a_task_that_dies_is_done_again(tmp_path: Path) -> None:
    with _pool(tmp_path, partial(_processes, 1)) as pool:
        work = [partial(_double, 1), partial(_die_unless, tmp_path / "marker"), partial(_double, 3)]
        assert pool.run(work) == [2, "done", 6]


def test_work_that_ends_each_task_is_given_up(tmp_path: Path) -> None:
    with _pool(tmp_path, partial(_processes, 1)) as pool:
        assert pool.run([partial(_double, 1)]) == [2]
        with pytest.raises(TasksFailed, match=r"4 tasks ended with their death"):
            pool.run([_die])


def test_an_error_that_work_raises_is_reported_with_its_traceback(tmp_path: Path) -> None:
    with _pool(tmp_path, partial(_threads, 1)) as pool, pytest.raises(TasksFailed, match="LookupError: no such record"):
        pool.run([_raise])


def test_tasks_that_spark_ended_are_started_again_if_they_had_worked(tmp_path: Path) -> None:
    starts: list[int] = []

    def start_for_one_piece(stay: Stay) -> list[str]:
        starts.append(1)
        connection = stay.connect()
        with connection:
            connection.send(connection.recv()())
        return []

    with _pool(tmp_path, start_for_one_piece) as pool:
        assert [pool.run([partial(_double, number)]) for number in range(3)] == [[0], [2], [4]]
        assert len(starts) >= 3


def test_tasks_that_cannot_reach_the_driver_say_why(tmp_path: Path) -> None:
    def start_elsewhere(stay: Stay) -> list[str]:
        return list(Stay(tmp_path / "another host", stay.prepare)(iter([0]))) * 2

    with _pool(tmp_path, start_elsewhere) as pool, pytest.raises(TasksFailed) as failed:
        pool.run([partial(_double, 1)])
    assert str(failed.value).count("does not have the driver's socket") == 1


def test_a_start_that_fails_is_reported(tmp_path: Path) -> None:
    def start(_: Stay) -> list[str]:
        raise RuntimeError("the JVM is gone")

    with _pool(tmp_path, start) as pool, pytest.raises(TasksFailed, match="the JVM is gone"):
        pool.run([partial(_double, 1)])


def test_a_thread_that_ends_in_any_way_is_reported_instead_of_letting_the_job_wait(tmp_path: Path) -> None:
    def start(_: Stay) -> list[str]:
        raise SystemExit

    with _pool(tmp_path, start) as pool, pytest.raises(TasksFailed, match="SystemExit"):
        pool.run([partial(_double, 1)])


def test_closing_ends_the_tasks_and_a_run_that_waits_for_them(tmp_path: Path) -> None:
    ended, waits = threading.Event(), threading.Event()

    def start_nothing(_: Stay) -> list[str]:
        waits.set()
        ended.wait(PATIENCE_S)
        return []

    with _pool(tmp_path, start_nothing) as pool:
        closing = threading.Thread(target=lambda: (waits.wait(PATIENCE_S), pool.close()))
        closing.start()
        with pytest.raises(TasksFailed, match="the job is ending"):
            pool.run([partial(_double, 1)])
        closing.join()
        with pytest.raises(TasksFailed, match="the job is ending"):
            pool.run([partial(_double, 1)])
        ended.set()
    assert not list(tmp_path.iterdir())


def test_the_socket_is_private_has_a_path_of_any_length_and_replaces_that_of_a_killed_driver(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 50)
    folder.mkdir()
    (folder / SOCKET_NAME).touch()
    with _pool(folder, partial(_threads, 1)) as pool:
        assert stat.S_IMODE((folder / SOCKET_NAME).stat().st_mode) == 0o600
        assert pool.run([partial(_double, 4)]) == [8]
