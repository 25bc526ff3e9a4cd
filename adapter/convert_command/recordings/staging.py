"""Keeps the files of a conversion out of sight until all of them are complete.

They are written in a folder whose name begins with a dot, which readers of tables pass over, and moved when the
conversion has ended. So an interrupted conversion leaves nothing that looks whole, and what was there before stays.

Invariant: no file is moved before its content is on the disk, and what it replaces is there until then. So a power
failure leaves each file as the former conversion wrote it, or as this one did.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import pyarrow as pa

from tandemfeed.runtime import durable
from tandemfeed.transport.ending import completed_despite_signal, remove_folder, undone_by_signal

PREFIX = ".converting-"
PART, PARTS = "part-{:05}.parquet", "part-*.parquet"
COPY_SIZE = 4 << 20
FOLDER_MODE = 0o777  # less what the umask takes away: what is converted is the user's to share

Parts: TypeAlias = list[tuple[int, Path]]  # the number of a recording, and its file


class Staging:
    """The folder of a conversion that has not ended, in its output folder."""

    def __init__(self, folder: Path) -> None:
        self._target = folder
        self.folder = folder
        self._undone = ExitStack()

    def __enter__(self) -> Self:
        durable.make_folder(self._target, FOLDER_MODE)
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
                    _move_parts(path, self.folder / path.name, self.folder)
                else:
                    parts.setdefault(path.name, []).append((number, path))
        for name, found in parts.items():
            JOINED[Path(name).suffix](found, self.folder / name)
        for number in range(count):
            shutil.rmtree(self.recording(number))

    def publish(self) -> None:
        """Move all files to the output folder. They are on the disk on return, under their names.

        Raises:
            OSError: a folder that would be replaced has files of others, or the disk refused; nothing was moved.
            FlushFailed: of the names: all files were moved, but after a power failure some may not be.
        """
        for path in self.folder.iterdir():
            self._require_replaceable(self._target / path.name, path)
        durable.flush_tree(self.folder)  # may take long, so a signal still ends the command
        with completed_despite_signal():
            changed = self._publish()
        for folder in sorted(changed):
            durable.sync_folder(folder)

    def _require_replaceable(self, target: Path, path: Path) -> None:
        if not _is_partitions(path) and target.is_dir():
            others = sorted(each.name for each in target.iterdir() if not each.match(PARTS))
            if others:
                what = f"has {others[0]}, which no conversion has written; move it away"
                raise OSError(errno.ENOTEMPTY, what, str(target))

    def _publish(self) -> set[Path]:
        """Move all files; returns the folders in which names have changed."""
        changed = {self._target}
        for path in sorted(self.folder.iterdir()):
            target = self._target / path.name
            if _is_partitions(path):
                changed |= _move_parts(path, target, self._target)
                continue
            if target.is_dir() or (path.is_dir() and target.exists()):
                # Not removed: after a power failure this may be there although the next name is not.
                durable.rename_unsynced(target, self.folder / f".{path.name}.replaced")
            durable.rename_unsynced(path, target)
        return changed


def _is_partitions(path: Path) -> bool:
    """Whether it is a folder of partitions, to which conversions add, and not one file in the form of a folder."""
    return path.is_dir() and path.suffix != ".parquet"


def _move_parts(source: Path, target: Path, root: Path) -> set[Path]:
    """Move the files of partitions, each to a number that no other process writes.

    Returns:
        the folders in which names have changed, up to `root`.
    """
    changed = set()
    for part in sorted(source.rglob(PARTS)):
        folder = target / part.parent.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        changed |= {each for each in (folder, *folder.parents) if root in (each, *each.parents)}
        number = len(list(folder.glob(PARTS)))
        while not _move_part(part, folder / PART.format(number)):
            number += 1
    return changed


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
            durable.rename_unsynced(part, target)
        return is_free
    finally:
        claim.unlink()


def _join_parquet(parts: Parts, target: Path) -> None:
    """A folder of files, which Arrow and Spark read as one table: row groups cannot be moved between files."""
    target.mkdir()
    for number, path in parts:
        durable.rename_unsynced(path, target / PART.format(number))


def _append(parts: Parts, target: Path) -> None:
    (_, first), *others = parts
    durable.rename_unsynced(first, target)
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
