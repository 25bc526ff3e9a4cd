"""Crash cases of the queue and of the transactional store: kill a process at a random time, then check its files.

The store's power failures happen on a real file system, because SQLite flushes its files itself: the device loses
everything that was not written when the power fails, and may refuse writes for a while before that.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from tandemfeed.journal.transactional import TransactionalStoreError
from tests.failing_device import MB, FailingDevice

JOURNAL_TESTS = Path(__file__).parents[1] / "journal"
MODULES = {
    "store": JOURNAL_TESTS / "transactional" / "crash_child.py",
    "queue": JOURNAL_TESTS / "persistent_queue" / "queue_crash_child.py",
}
LIFE_LENGTHS = (1, 3, 20, 60)  # reports until the kill


def _load(face: str) -> ModuleType:
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
    fork = multiprocessing.get_context("fork")
    reported: list[Any] = []
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=child, args=(folder, sender, seed))
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


def kill_case(face: str, folder: Path, seed: int) -> str:
    """Kill a victim after a random number of acknowledgements, once or twice in the same folder, and check its
    files against its reports."""
    module = _load(face)
    source = random.Random(seed)
    reported: list[Any] = []
    for life in range(source.choice((1, 2))):
        reported += live_and_die(module.child, folder, seed * 2 + life, source.choice(LIFE_LENGTHS))
        module.verify(folder, reported)
    return "killed"


def store_power_case(folder: Path, seed: int) -> str:
    """Kill a victim once or more while the disk works, or refuses writes; then the power fails."""
    module, source = _load("store"), random.Random(seed)
    reported: list[Any] = []
    folder.mkdir()
    with FailingDevice(folder, 24 * MB, is_thin=True) as device:
        store = device.folder / "store"
        for life in range(source.choice((1, 2, 3))):
            refuses = source.random() < 0.5
            interrupt = partial(_refuse_for_a_while, device, source) if refuses else lambda: None
            reported += _without_refusals(
                live_and_die(_store_victim, store, seed * 3 + life, source.choice(LIFE_LENGTHS), interrupt)
            )
            if source.random() < 0.3:
                device.lose_power()
        device.lose_power()
        module.verify(store, reported)
    return "power lost"


def _store_victim(folder: Path, pipe: Connection, seed: int) -> None:
    """Ends if the disk refuses what the last victim left."""
    with suppress(TransactionalStoreError):
        _load("store").child(folder, pipe, seed)


def _refuse_for_a_while(device: FailingDevice, source: random.Random) -> None:
    with device.failing():
        for _ in range(source.choice((1, 100, 10_000))):
            os.stat(device.folder)  # shorter than a timer's resolution, longer than a flush


def _without_refusals(reported: Sequence[Any]) -> list[Any]:
    """Without the reports of operations that the store refused because of the disk, which are neither done nor not."""
    return [
        each for each in reported if each[0] != "broken" or not str(each[2]).startswith(("StoreFailed", "StoreFull"))
    ]


def left_out() -> dict[str, str]:
    """The kinds of case that this system does not allow, and why."""
    missing = [tool for tool in ("mkfs.ext4", "dumpe2fs", "mount") if shutil.which(tool) is None]
    if os.geteuid() == 0 and not missing:
        return {}
    why = f"{', '.join(missing)} is not installed" if missing else "a loop device needs root"
    return {"journal-device": why, "store-power": why}


def cases() -> dict[str, Callable[[Path, int], str]]:
    """The cases by name."""
    found: dict[str, Callable[[Path, int], str]] = {f"{face}-kill": partial(kill_case, face) for face in MODULES}
    found["store-power"] = store_power_case
    return {name: case for name, case in found.items() if name not in left_out()}
