"""Keeps the files of a conversion out of sight until all of them are complete.

They are written in a folder whose name begins with a dot, which readers of tables pass over, and moved when the
conversion has ended. So an interrupted conversion leaves nothing that looks whole, and what was there before stays.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import pyarrow as pa

from tandemfeed.transport.ending import completed_despite_signal, remove_folder, undone_by_signal

PREFIX = ".converting-"
PART, PARTS = "part-{:05}.parquet", "part-*.parquet"
COPY_SIZE = 4 << 20

Parts: TypeAlias = list[tuple[int, Path]]  # the number of a recording, and its file


class Staging:
    """The folder of a conversion that has not ended, in its output folder."""

    def __init__(self, folder: Path) -> None:
        self._target = folder
        self.folder = folder
        self._undone = ExitStack()

    def __enter__(self) -> Self:
        self._target.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._target))
        self._undone.enter_context(undone_by_signal(partial(remove_folder, self.folder)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, reason: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._undone.close()

    def recording(self, number: int) -> Path:
        """The folder of one of several recordings."""
        return self.folder / f"{number:05}"

    def join(self, count: int) -> None:
        """Make one output of those of several recordings, in their order."""
        parts: dict[str, list[tuple[int, Path]]] = {}
        for number in range(count):
            folder = self.recording(number)
            for path in sorted(folder.iterdir()):
                if path.is_dir():
                    _move_parts(path, self.folder / path.name)
                else:
                    parts.setdefault(path.name, []).append((number, path))
        for name, found in parts.items():
            JOINED[Path(name).suffix](found, self.folder / name)
        for number in range(count):
            shutil.rmtree(self.recording(number))

    def publish(self) -> None:
        """Move all files to the output folder."""
        with completed_despite_signal():
            self._publish()

    def _publish(self) -> None:
        for path in sorted(self.folder.iterdir()):
            target = self._target / path.name
            if path.is_dir() and path.suffix != ".parquet":  # partitions, to which conversions add
                _move_parts(path, target)
                continue
            if target.is_dir():  # of an earlier conversion with several recordings
                for part in target.glob(PARTS):
                    part.unlink()
                target.rmdir()
            elif path.is_dir():
                target.unlink(missing_ok=True)
            path.replace(target)


def _move_parts(source: Path, target: Path) -> None:
    """Move the files of partitions, each to a number that no other process writes."""
    for part in sorted(source.rglob(PARTS)):
        folder = target / part.parent.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob(PARTS)))
        while not _move_part(part, folder / PART.format(number)):
            number += 1


def _move_part(part: Path, target: Path) -> bool:
    """Move a file, unless there is one, or another process is about to move one there."""
    claim = target.with_name(f".{target.name}")
    try:
        claim.open("xb").close()
    except FileExistsError:
        return False
    try:
        is_free = not target.exists()
        if is_free:
            part.replace(target)
        return is_free
    finally:
        claim.unlink()


def _join_parquet(parts: Parts, target: Path) -> None:
    """A folder of files, which Arrow and Spark read as one table: row groups cannot be moved between files."""
    target.mkdir()
    for number, path in parts:
        path.replace(target / PART.format(number))


def _append(parts: Parts, target: Path) -> None:
    (_, first), *others = parts
    first.replace(target)
    with target.open("ab") as out:
        for _, path in others:
            with path.open("rb") as source:
                if path.suffix == ".csv":
                    source.readline()  # the names of the columns
                shutil.copyfileobj(source, out, COPY_SIZE)
            path.unlink()


def _join_arrow(parts: Parts, target: Path) -> None:
    out = None
    try:
        for _, path in parts:
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as batches:
                out = out or pa.ipc.new_file(target, batches.schema)
                for number in range(batches.num_record_batches):
                    out.write_batch(batches.get_batch(number))
            path.unlink()
    finally:
        if out is not None:
            out.close()


JOINED: dict[str, Callable[[Parts, Path], None]] = {
    ".parquet": _join_parquet,
    ".sbe": _append,
    ".csv": _append,
    ".arrow": _join_arrow,
}
