"""Crash cases of the journal with power failures: all that `sync` or `close` acknowledged must be there.

Several victims in turn, or two beside each other, append to one journal, roll, compress and sync, and are killed. Their
disk loses what was not flushed, names as well as pages, and refuses operations for a while. Then the power fails, and
the victims that follow may go on with what is left.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tandemfeed.journal import JournalError, Upkeep
from tandemfeed.journal.format.layout import CONTROL_NAME
from tandemfeed.runtime import durable
from tests.crash.journal_cases import KEY, append_some, judge, open_journal
from tests.crash.power_cases import left_out
from tests.failing_device import MB, FailingDevice
from tests.losing_disk import FailsAt, Fault, LosingDisk, losing_disk

Acknowledged = dict[int, tuple[int, int]]  # by index: writer and number
REPORTS_MAX = 60
OPERATIONS = ("flush", "flush_folder", "rewrite", "rename", "remove", "write")
FORK = multiprocessing.get_context("fork")


def drawn_fault(source: random.Random) -> Fault:
    """None, or some operations fail once, a few times, or from some call on."""
    if source.random() < 0.4:
        return lambda operation, path: None
    operations = ("flush",) if source.random() < 0.5 else tuple(source.sample(OPERATIONS, source.choice((1, 2, 6))))
    return FailsAt(
        source.choice((1, 2, 3, 5, 8, 13)),
        source.choice((1, 1, 2, 5, None)),
        operations,
        source.choice(("", ".tfj", ".tfj", ".tfc", "journal")),
        source.choice((errno.EIO, errno.ENOSPC)),
    )


def victim(folder: Path, pipe: Connection, seed: int, life: int, fault: Fault | None) -> None:
    """Append, sync and close by chance; report each append, and each acknowledgement after it was given."""
    source = random.Random(seed * 1_000 + life)
    if fault is not None:
        assert isinstance(durable.DISK, LosingDisk)
        durable.DISK.fault = fault
        if source.random() < 0.5:
            _die_of_refusals(durable.DISK)
    number = 0
    for _ in range(source.choice((1, 2, 3))):
        try:
            number = _append_until_closed(folder, pipe, seed, life, number, source)
        except (JournalError, OSError) as refused:
            pipe.send(("refused", str(refused)))
            number += 10_000  # the records of the refused append may be there


def _die_of_refusals(disk: LosingDisk) -> None:
    """The process dies in a flush that is refused, so that no one learns of the refusal."""
    flush = disk.flush

    def flush_or_die(descriptor: int, path: Path) -> None:
        try:
            flush(descriptor, path)
        except OSError:
            os._exit(1)

    disk.flush = flush_or_die  # type: ignore[method-assign]


def _append_until_closed(
    folder: Path, pipe: Connection, seed: int, life: int, number: int, source: random.Random
) -> int:
    upkeep = Upkeep(compress=source.random() < 0.3)
    journal = open_journal(folder, source, key=KEY if seed % 5 == 0 else None, begin_s=life, upkeep=upkeep)
    try:
        for _ in range(source.choice((3, 20, 100))):
            indices = append_some(journal, seed, life, number, source)
            pipe.send(("appended", [(index, number + place) for place, index in enumerate(indices)]))
            number += len(indices)
            if source.random() < 0.2:
                journal.sync()
                pipe.send(("acknowledged", None))
        journal.close()
        pipe.send(("acknowledged", None))
    except JournalError:
        with suppress(JournalError):
            journal.close()
        raise
    return number


class Victims:
    """The victims of one life of the journal, and what they reported."""

    def __init__(self, seed: int, acknowledged: Acknowledged) -> None:
        self._seed, self._acknowledged = seed, acknowledged
        self._alive: dict[Connection, tuple[int, Any]] = {}
        self._appended: dict[Connection, Acknowledged] = {}
        self._left: Acknowledged = {}  # by former victims: an acknowledgement includes what they left

    def start(self, folder: Path, life: int, fault: Fault | None) -> None:
        """Start a victim."""
        receiver, sender = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_run, args=(folder, sender, self._seed, life, fault))
        process.start()
        sender.close()
        self._alive[receiver], self._appended[receiver] = (life, process), {}

    def kill_after(self, report_count: int) -> None:
        """Kill each after a number of reports of all, unless it ended by itself."""
        for _ in range(report_count):
            ready = wait(list(self._alive), timeout=30)
            if not ready or not self._receive(ready[0]):  # type: ignore[arg-type]
                break
        for _, process in self._alive.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        for pipe, (_, process) in self._alive.items():
            process.join()
            while self._receive(pipe):
                pass
            pipe.close()
        for pipe in self._alive:
            self._left |= self._appended.pop(pipe)
        self._alive.clear()

    def _receive(self, pipe: Connection) -> bool:
        try:
            kind, content = pipe.recv()
        except (EOFError, OSError):
            return False
        appended, life = self._appended[pipe], self._alive[pipe][0]
        if kind == "appended":
            appended |= {index: (life, number) for index, number in content}
        elif kind == "acknowledged":
            there = self._left | appended
            twice = {index: each for index, each in there.items() if self._acknowledged.get(index, each) != each}
            assert not twice, f"indices of acknowledged records were assigned again: {twice}"
            self._acknowledged |= there
        return True


def _run(folder: Path, pipe: Connection, seed: int, life: int, fault: Fault | None) -> None:
    victim(folder, pipe, seed, life, fault)
    os._exit(0)


def losses_case(folder: Path, seed: int) -> str:
    """Lives and power failures on a disk that loses what was not flushed, any page and any name."""
    source, acknowledged = random.Random(seed), Acknowledged()
    root, power_failures, life = folder / "root", 0, 0
    root.mkdir(parents=True)
    for _ in range(source.choice((1, 2, 2, 3))):
        victims = Victims(seed, acknowledged)
        with losing_disk(root, folder / f"kept {power_failures}") as disk:
            disk.stored_to = CONTROL_NAME  # the same values too, which only the kernel sees
            for _ in range(source.choice((1, 1, 2, 3))):
                for _ in range(source.choice((1, 1, 2))):
                    victims.start(root / "journal", life, drawn_fault(source))
                    life += 1
                victims.kill_after(source.randrange(REPORTS_MAX))
        chance = source.choice((None, random.Random(source.random())))
        root = disk.image(folder / f"image {power_failures}", chance)
        power_failures += 1
        _judge_copy(root / "journal", folder / f"judged {power_failures}", seed, acknowledged)
    return f"{power_failures} power failures, {len(acknowledged)} acknowledged"


def _judge_copy(journal: Path, copy: Path, seed: int, acknowledged: Acknowledged) -> None:
    if journal.exists():
        shutil.copytree(journal, copy)
    judge(copy, seed, acknowledged, lambda index: index not in acknowledged)


def device_case(folder: Path, seed: int) -> str:
    """The same on a real file system, whose disk refuses writes for a while, and loses its power."""
    source, acknowledged = random.Random(seed), Acknowledged()
    folder.mkdir()
    with FailingDevice(folder, 24 * MB, is_thin=True) as device:
        life = 0
        for number in range(source.choice((1, 2, 3))):
            victims = Victims(seed, acknowledged)
            for _ in range(source.choice((1, 2, 3))):
                for _ in range(source.choice((1, 1, 2))):
                    victims.start(device.folder / "journal", life, None)
                    life += 1
                if source.random() < 0.5:
                    with device.failing():
                        victims.kill_after(source.randrange(REPORTS_MAX))
                else:
                    victims.kill_after(source.randrange(REPORTS_MAX))
            device.lose_power()
            _judge_copy(device.folder / "journal", folder / f"judged {number}", seed, acknowledged)
    return f"power lost, {len(acknowledged)} acknowledged"


def cases() -> dict[str, Callable[[Path, int], str]]:
    """The cases by name, without those that this system does not allow."""
    return {"losses": losses_case} if left_out() else {"losses": losses_case, "device": device_case}
