"""A queue whose process is killed repeatedly at any moment loses and repeats nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from tests.journal.persistent_queue.queue_crash_child import Report, child, verify

LIVES = 4
REPORTS = 1_500


def work_until_killed(folder: Path, seed: int, count: int) -> list[Report]:
    """The reports of a child that is killed after a number of reports."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(folder, sender, seed))
    process.start()
    sender.close()
    reported = [receiver.recv() for _ in range(count)]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    reported += remaining_reports(receiver)
    process.join()
    return reported


def remaining_reports(receiver: Connection) -> list[Report]:
    found = []
    try:
        while True:
            found.append(receiver.recv())
    except (EOFError, OSError):
        return found


def test_no_acknowledged_item_is_lost_or_repeated_when_the_process_is_killed_under_load(tmp_path: Path) -> None:
    reported: list[Report] = []
    for life in range(LIVES):
        reported += work_until_killed(tmp_path, life, REPORTS + 97 * life)
        verify(tmp_path, reported)
