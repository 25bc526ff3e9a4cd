"""Crash cases of the queue and of the transactional store: kill a process at a random time, then check its files."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

JOURNAL_TESTS = Path(__file__).parents[1] / "journal"
MODULES = {
    "store": JOURNAL_TESTS / "transactional" / "crash_child.py",
    "queue": JOURNAL_TESTS / "persistent_queue" / "queue_crash_child.py",
}


def _load(face: str) -> ModuleType:
    """The module of a victim, from the tests of its package; it can import its neighbours."""
    path = MODULES[face]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem)


def kill_case(face: str, folder: Path, seed: int) -> str:
    """Kill a victim after a random number of acknowledgements, once or twice in the same folder, and check its
    files against its reports."""
    module = _load(face)
    fork = multiprocessing.get_context("fork")
    source = random.Random(seed)
    reported: list[object] = []
    for life in range(source.choice((1, 2))):
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=module.child, args=(folder, sender, seed * 2 + life))
        process.start()
        sender.close()
        for _ in range(source.choice((1, 3, 20, 60))):
            reported.append(receiver.recv())
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while True:
            try:
                reported.append(receiver.recv())
            except (EOFError, OSError):
                break
        receiver.close()
        module.verify(folder, reported)
    return "killed"


def cases() -> dict[str, Callable[[Path, int], str]]:
    """The cases by name, if the module of their victim exists."""
    return {f"{face}-kill": partial(kill_case, face) for face, path in MODULES.items() if path.exists()}
