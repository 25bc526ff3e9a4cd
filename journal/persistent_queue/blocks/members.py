"""The folders of a queue: the first has the control file, the others identify their owner. None may be missing.

Every further folder has a marker with the queue's id and the folder's number; the first folder has the list of all. The
marker is written before the list, so after a crash between the two the next opening adds the folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from tandemfeed.journal.errors import BlockCorrupt, ForeignFile, ReadOnly
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.format.block import blocks_in
from tandemfeed.journal.format.filesystem import make_folder
from tandemfeed.journal.format.layout import CONTROL_NAME
from tandemfeed.journal.persistent_queue.errors import PathMissing
from tandemfeed.runtime.durable import FlushFailed, replace_file, sync_folder

LIST_NAME = "paths.json"
MARKER_NAME = "queue-path.json"


def join(main: Path, more_paths: Sequence[Path], queue_id: UUID) -> list[Path]:
    """Check every folder, add new ones, and return all in the order in which they get new blocks.

    Raises:
        PathMissing: a folder of this queue was not given; the text names it.
        ForeignFile: a folder belongs to another journal.
        FlushFailed: the disk refuses; the next opening tries again.
        ReadOnly, NetworkFileSystem, BlockCorrupt.
    """
    known, access = _read_list(main), Access.of_journal(main)
    numbered: dict[int, Path] = {}
    strangers = []
    for folder in more_paths:
        if folder.resolve() == main.resolve() or folder in strangers:
            raise ValueError(f"{folder} is given twice")
        number = _number_of(folder, queue_id)
        if number is None:
            strangers.append(folder)
        elif numbered.setdefault(number, folder) != folder:
            raise ValueError(f"{folder} and {numbered[number]} are the same folder, or copies of it")
    if missing := [path for number, path in sorted(known.items()) if number not in numbered]:
        raise PathMissing(
            f"{', '.join(missing)}: has blocks of {main}, but is not in more_paths, or is now empty: add it to "
            "more_paths, under its present name, with its disk mounted"
        )
    for folder in strangers:
        number = max([0, *known, *numbered]) + 1
        _take_in(folder, queue_id, number, access)
        numbered[number] = folder
    listed = {number: str(folder.resolve()) for number, folder in numbered.items()}
    if listed != known:
        for folder in numbered.values():  # a process that wrote its marker may have died before it flushed the name
            sync_folder(folder)
        _write(main / LIST_NAME, {str(number): path for number, path in sorted(listed.items())}, access)
    return [main, *(numbered[number] for number in sorted(numbered))]


def _read_list(main: Path) -> dict[int, str]:
    path = main / LIST_NAME
    if not path.exists():
        return {}
    try:
        return {int(number): str(each) for number, each in json.loads(path.read_text()).items()}
    except (ValueError, AttributeError):
        raise BlockCorrupt(f"{path}: the list of folders is damaged; restore the file from a copy") from None


def _number_of(folder: Path, queue_id: UUID) -> int | None:
    """The number in a folder's marker; None if it has none."""
    path = folder / MARKER_NAME
    if not path.exists():
        return None
    try:
        fields = json.loads(path.read_text())
        owner, number = UUID(fields["queue"]), int(fields["number"])
    except (ValueError, KeyError, TypeError):
        raise ForeignFile(f"{path}: does not identify the queue that owns the folder; move it away") from None
    if owner != queue_id:
        raise ForeignFile(f"{folder}: belongs to another queue ({owner}); give another folder")
    return number


def _take_in(folder: Path, queue_id: UUID, number: int, access: Access) -> None:
    make_folder(folder, access)
    if (folder / CONTROL_NAME).exists() or blocks_in(folder):
        raise ForeignFile(f"{folder}: contains a journal; give another folder")
    _write(folder / MARKER_NAME, {"queue": str(queue_id), "number": number}, access)


def _write(path: Path, fields: object, access: Access) -> None:
    """Write a file atomically and durably."""

    def write(file: BinaryIO) -> None:
        access.give(file.fileno())
        file.write(json.dumps(fields).encode())

    try:
        replace_file(path, write)
    except FlushFailed:
        raise
    except OSError as refused:
        raise ReadOnly(f"{path}: {refused.strerror}; give a writable folder with free space") from None
