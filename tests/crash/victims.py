"""Victims of crash cases: processes that work and report what they do, until they are killed."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

JOURNAL_TESTS = Path(__file__).parents[1] / "journal"
MODULES = {
    "store": JOURNAL_TESTS / "transactional" / "crash_child.py",
    "queue": JOURNAL_TESTS / "persistent_queue" / "queue_crash_child.py",
}
LIFE_LENGTHS = (1, 3, 20, 60)  # reports until the kill
FORK = multiprocessing.get_context("fork")


def module_of(face: str) -> ModuleType:
    """The module of a victim, from the tests of its package; it can import its neighbours."""
    path = MODULES[face]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem)


def live_and_die(
    child: Callable[[Path, Connection, int], None],
    folder: Path,
    seed: int,
    report_count: int,
    interrupt: Callable[[], object] = lambda: None,
) -> list[Any]:
    """The reports of a victim that is killed after some of them, or ends by itself.

    Args:
        interrupt: called before the kill; its effects may end the victim.
    """
    reported: list[Any] = []
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=child, args=(folder, sender, seed))
    process.start()
    sender.close()
    try:
        while len(reported) < report_count:
            reported.append(receiver.recv())
        interrupt()
        os.kill(process.pid or 0, signal.SIGKILL)
        while True:
            reported.append(receiver.recv())
    except (EOFError, OSError):
        pass
    finally:
        process.kill()
        process.join()
        receiver.close()
    return reported
