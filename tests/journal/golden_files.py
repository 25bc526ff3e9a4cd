"""Golden files of a journal: written from fixed input, stored as the non-zero parts of the files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import numpy as np

from tandemfeed.journal import Journal
from tandemfeed.journal.layout import BLOCK_SIZE_MIN, CONTROL_NAME, PIDS

GOLDEN = Path(__file__).parent / "golden"
SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND
KEY = bytes(range(32))
ROWS = np.arange(12, dtype="<u4").reshape(3, 4)
NAMES = {"plain": None, "sealed": KEY}
Content = dict[str, list[tuple[int, str]]]


class Clock:
    """A clock that advances a millisecond per call."""

    def __init__(self) -> None:
        self.now_ns = START

    def __call__(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns


@contextmanager
def _no_chance() -> Iterator[None]:
    with (
        patch("tandemfeed.journal.control.uuid4", lambda: UUID(int=0x1234_5678_9ABC_DEF0)),
        patch("tandemfeed.journal.block.secrets.randbits", lambda bits: 0x5A17_5A17),
        patch("tandemfeed.journal.block.time.time_ns", lambda: START),
        patch("tandemfeed.journal.sealing.os.urandom", lambda size: bytes(range(100, 100 + size))),
    ):
        yield


def write(folder: Path, key: bytes | None) -> list[tuple[int, bytes]]:
    """Write the journal of the golden files."""
    clock = Clock()
    with (
        _no_chance(),
        Journal.open(
            folder, block_size=BLOCK_SIZE_MIN, roll_cycle="SECONDLY", time_zone="Europe/London", key=key, clock_ns=clock
        ) as journal,
    ):
        records = [b"first", b"", b"a batch", b"of", b"three"]
        journal.append(records[0])
        journal.append(records[1])
        journal.append_batch(records[2:])
        journal.append_rows(ROWS)
        clock.now_ns += 3 * SECOND
        journal.append(b"in another cycle")
        return list(journal.records())


def pieces(folder: Path) -> Content:
    """The non-zero parts of a journal's files, without process ids of appenders."""
    found: Content = {}
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        if path.name == CONTROL_NAME:
            data = data[:PIDS]
        lines = range(0, len(data), 32)
        found[path.name] = [
            (start, data[start : start + 32].hex()) for start in lines if data[start : start + 32].strip(b"\0")
        ]
        found[path.name].append((path.stat().st_size, ""))
    return found


def restore(name: str, folder: Path) -> None:
    """Restore the files."""
    folder.mkdir()
    for file, content in json.loads((GOLDEN / f"{name}.json").read_text()).items():
        data = bytearray(content[-1][0])
        for start, text in content:
            data[start : start + len(text) // 2] = bytes.fromhex(text)
        (folder / file).write_bytes(data)


def make(folder: Path) -> None:
    """Write golden files for a new version of the format; existing ones are not changed."""
    for name, key in NAMES.items():
        target = GOLDEN / f"{name}.json"
        if not target.exists():
            write(folder / name, key)
            target.parent.mkdir(exist_ok=True)
            target.write_text(json.dumps(pieces(folder / name), indent=0) + "\n")
