"""Crash cases of the journal: a victim appends records drawn from a seed; a crash must lose no acknowledged one.

The content of record `number` of a writer is a function of (seed, writer, number). So the check needs no copy of the
records: each record identifies itself, and must have the matching content.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from tandemfeed.journal import Journal, Tailer, Upkeep
from tandemfeed.journal.format.block import blocks_in
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN, CONTROL_NAME, PIDS

HEAD = struct.Struct("<QII")  # seed, writer, number
SECOND = 1_000_000_000
PAGE = 4_096
KEY = bytes(range(32))


def record_of(seed: int, writer: int, number: int) -> bytes:
    """The content of a record."""
    source = random.Random(seed << 40 ^ writer << 32 ^ number)
    size = source.choice((0, 7, 96, 96, 96, 700, 5_000))
    return HEAD.pack(seed, writer, number) + source.randbytes(size)


class Clock:
    """A wall clock that runs fast enough to roll cycles."""

    def __init__(self, source: random.Random, begin_s: int = 0) -> None:
        self._now_ns = (1_800_000_000 + begin_s) * SECOND
        self._step_ns = source.choice((1_000, SECOND // 300))

    def __call__(self) -> int:
        self._now_ns += self._step_ns
        return self._now_ns


def open_journal(
    folder: Path, source: random.Random, *, key: bytes | None, begin_s: int = 0, upkeep: Upkeep | None = None
) -> Journal:
    """Open the journal with the options of all cases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Journal.open(
            folder,
            block_size=BLOCK_SIZE_MIN,
            roll_cycle="SECONDLY",
            key=key,
            upkeep=upkeep,
            clock_ns=Clock(source, begin_s),
        )


def append_some(journal: Journal, seed: int, writer: int, number: int, source: random.Random) -> list[int]:
    """Append one record, or several as a batch; returns their indices."""
    count = source.choice((1, 1, 1, 1, 2, 30))
    records = [record_of(seed, writer, number + place) for place in range(count)]
    if count == 1:
        return [journal.append(records[0])]
    first = journal.append_batch(records)
    return list(range(first, first + count))


def victim(folder: Path, pipe: Connection, seed: int, writer: int) -> None:
    """Append forever, and report the indices after each append."""
    source = random.Random(seed * 31 + writer)
    journal = open_journal(folder, source, key=KEY if seed % 5 == 0 else None)
    number = 0
    while True:
        indices = append_some(journal, seed, writer, number, source)
        pipe.send_bytes(struct.pack(f"<I{len(indices)}Q", number, *indices))
        number += len(indices)
        if source.random() < 0.02:
            journal.sync()


def kill_case(folder: Path, seed: int) -> str:
    """Kill one victim, or two in turn, while they append."""
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    source = random.Random(seed)
    victims = []
    for writer in range(source.choice((1, 1, 2))):
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=victim, args=(folder, sender, seed, writer))
        process.start()
        sender.close()
        victims.append((process, receiver))
    acknowledged: dict[int, tuple[int, int]] = {}
    for writer, (process, receiver) in enumerate(victims):
        for _ in range(source.choice((1, 5, 50, 200, 400))):
            _note(acknowledged, writer, receiver.recv_bytes())
        _spin(source.randrange(2_000))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while True:
            try:
                _note(acknowledged, writer, receiver.recv_bytes())
            except (EOFError, OSError):
                break
        receiver.close()
    judge(folder, seed, acknowledged, lambda index: False)
    return f"killed {len(victims)}"


def _spin(rounds: int) -> None:
    """Wait for a time that is shorter than the resolution of timers."""
    for _ in range(rounds):
        pass


def _note(acknowledged: dict[int, tuple[int, int]], writer: int, message: bytes) -> None:
    number, *indices = struct.unpack(f"<I{(len(message) - 4) // 8}Q", message)
    for place, index in enumerate(indices):
        assert index not in acknowledged, f"index {index:#x} was assigned twice"
        acknowledged[index] = writer, number + place


def judge(
    folder: Path, seed: int, acknowledged: dict[int, tuple[int, int]], may_be_lost: Callable[[int], bool]
) -> None:
    """Open the journal and compare its records with what was acknowledged."""
    key = KEY if seed % 5 == 0 else None
    with open_journal(folder, random.Random(seed + 1), key=key) as journal:
        served = list(journal.records())
        check_served(seed, served)
        found = {index for index, _ in served}
        for index, (writer, number) in acknowledged.items():
            if index in found:
                assert HEAD.unpack_from(journal.read(index)) == (seed, writer, number), f"{index:#x}: wrong record"
            else:
                assert may_be_lost(index), f"index {index:#x}: acknowledged but lost (writer {writer}, {number})"
        after = journal.append(record_of(seed, 99, 0))
        with Tailer(folder, key=key) as tailer:
            assert list(tailer) == [*served, (after, record_of(seed, 99, 0))]
            assert list(iter(tailer.read_back, None))[1:] == served[::-1]


def check_served(seed: int, served: list[tuple[int, bytes]]) -> None:
    """Check that only appended records are served, in each writer's order and with growing indices."""
    last: dict[int, int] = {}
    previous = -1
    for index, record in served:
        assert index > previous, f"index {index:#x} after {previous:#x}"
        previous = index
        was_seed, writer, number = HEAD.unpack_from(record)
        assert was_seed == seed
        assert record == record_of(seed, writer, number), f"index {index:#x}: this record was not appended"
        assert number > last.get(writer, -1), f"index {index:#x}: record {number} of {writer} out of order"
        last[writer] = number


def _written(
    folder: Path, seed: int, source: random.Random
) -> tuple[dict[int, tuple[int, int]], set[int], dict[str, bytes]]:
    """Write a journal and leave it open; returns the acknowledged records, the synced indices, and the synced files."""
    journal = open_journal(folder, source, key=KEY if seed % 5 == 0 else None)
    acknowledged: dict[int, tuple[int, int]] = {}
    number = 0
    for _ in range(source.choice((1, 10, 80, 150))):
        for index in append_some(journal, seed, 0, number, source):
            acknowledged[index] = 0, number
            number += 1
    journal.sync()
    synced, files = set(acknowledged), _files(folder)
    for _ in range(source.choice((0, 1, 20, 100))):
        for index in append_some(journal, seed, 0, number, source):
            acknowledged[index] = 0, number
            number += 1
    journal._control.unlock()
    journal._control.close()  # as the kernel does for a dead process
    journal._keeper.close()
    return acknowledged, synced, files


def _files(folder: Path) -> dict[str, bytes]:
    names = [name.path for name in blocks_in(folder)] + [folder / CONTROL_NAME]
    return {path.name: path.read_bytes() for path in names}


def power_case(folder: Path, seed: int) -> str:
    """A power failure: any of the pages written since the last sync may be missing on the disk."""
    source = random.Random(seed)
    acknowledged, synced, before = _written(folder, seed, source)
    share = source.choice((0.0, 0.1, 0.5, 0.9))
    lost = 0
    for path in [name.path for name in blocks_in(folder)] + [folder / CONTROL_NAME]:
        now = bytearray(path.read_bytes())
        was = before.get(path.name)
        if was is None and source.random() < share / 2:
            path.unlink()  # its directory entry did not reach the disk
            continue
        for start in range(0, len(now), PAGE):
            old = was[start : start + PAGE] if was is not None else bytes(PAGE)
            if old != now[start : start + PAGE] and source.random() < share:
                now[start : start + PAGE] = old
                lost += 1
        path.write_bytes(now)
    judge(folder, seed, acknowledged, lambda index: index not in synced)
    return f"power lost, {lost} pages"


def damage_case(folder: Path, seed: int) -> str:
    """One bit is flipped, or the file is truncated, within the last segments: only damaged records may be missing."""
    source = random.Random(seed)
    acknowledged, _, _ = _written(folder, seed, source)
    name = blocks_in(folder)[-1]
    spans = _spans(folder, name.path, KEY if seed % 5 == 0 else None)
    if not spans:
        return "no segments to damage"
    first = spans[max(len(spans) - 12, 0)][0]
    end = spans[-1][1]
    offset = source.randrange(first, end)
    data = bytearray(name.path.read_bytes())
    if source.random() < 0.5:
        data[offset] ^= 1 << source.randrange(8)
        hit = {index for start, stop, indices in spans if start <= offset < stop for index in indices}
        kind = "flipped"
    else:
        del data[offset:]
        hit = {index for _, stop, indices in spans if stop > offset for index in indices}
        kind = "cut"
    name.path.write_bytes(data)
    if source.random() < 0.5:  # the control words are lost as well
        control = folder / CONTROL_NAME
        control.write_bytes(control.read_bytes()[:4_096].ljust(PIDS * 2, b"\0"))
    judge(folder, seed, acknowledged, lambda index: index in hit)
    return kind


def _spans(folder: Path, path: Path, key: bytes | None) -> list[tuple[int, int, list[int]]]:
    """(start, end, indices) of each segment in a block, found by following their lengths."""
    data, spans, offset = path.read_bytes(), [], 4_096
    cycle = int.from_bytes(data[64:72], "little")
    while 0 < (length := int.from_bytes(data[offset : offset + 4], "little")) < 0xFFFF_FFFF:
        first = int.from_bytes(data[offset + 8 : offset + 16], "little")
        count = int.from_bytes(data[offset + 24 : offset + 28], "little") & ((1 << 28) - 1)
        indices = [cycle << 30 | sequence for sequence in range(first, first + count)]
        spans.append((offset, offset + length, indices))
        offset = (offset + length + 7) & ~7
    return spans


CASES: dict[str, Callable[[Path, int], str]] = {"kill": kill_case, "power": power_case, "damage": damage_case}
