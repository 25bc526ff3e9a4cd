"""The file that the audit log is written to: a group of entries is written and flushed as a whole, or not at all.

Not safe for several threads at once: `log.AuditLog` uses it from one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from tandemfeed.admin_server.audit.chain import (
    BadEntry,
    Entry,
    Head,
    check_continues,
    decode_entry,
    encode_entry,
)
from tandemfeed.admin_server.audit.files import CURRENT, archived_name, audit_files

FILE_SIZE_MAX = 16 << 20  # the last file is read when a server starts, in less than a second
DAY_NS = 86_400_000_000_000


class LogFile:
    """The current file of a log, from the last intact entry on.

    Args:
        folder: where the log's files are.
        file_size_max: from this size on, the file is replaced by the next.

    Attributes:
        head: the last entry that is on the disk.
        records: the highest generation of the records that an entry of the last file states.
        damaged: what followed the last intact entry and was set aside: the file's name, and why; None usually.
    """

    def __init__(self, folder: Path, file_size_max: int = FILE_SIZE_MAX) -> None:
        self._folder, self._path, self._size_max = folder, folder / CURRENT, file_size_max
        self.head, self.records = Head(), 0
        self.damaged: tuple[str, str] | None = None
        self._first: Entry | None = None  # of the current file
        self._size = 0
        self._recover()
        self._fd = self._open()

    def append(self, records: int, encoded: Sequence[str]) -> None:
        """Append entries, and wait until they are on the disk.

        Args:
            records: the generation of the records.
            encoded: the entries, by `chain.encode_fields`.

        Raises:
            OSError: none of them was appended.
        """
        if self._is_full():
            self._replace()
        lines, head = [], self.head
        for each in encoded:
            line, head = encode_entry(head, records, each)
            lines.append(line)
        data = b"".join(lines)
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                raise OSError(f"{self._path}: the disk is full; {written} of {len(data)} bytes fitted")
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._size)  # else a part of a group would precede its repetition
            raise
        if self._first is None:
            self._first = decode_entry(lines[0][:-1])
        self.head, self.records = head, max(records, self.records)
        self._size += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    # ---- inside ----

    def _open(self) -> int:
        opened = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _sync_folder(self._folder)
        return opened

    def _is_full(self) -> bool:
        if self._first is None:
            return False
        return self._size >= self._size_max or self._first.unix_ns // DAY_NS != time.time_ns() // DAY_NS

    def _replace(self) -> None:
        assert self._first is not None
        self._path.rename(self._folder / archived_name(self._first.number))
        former, self._fd = self._fd, self._open()  # after a failure between the two, `_recover` continues the chain
        os.close(former)
        self._first, self._size = None, 0

    def _recover(self) -> None:
        """Read the newest file that has an entry, and set aside what is not intact at the end of the current one."""
        for path in reversed(audit_files(self._folder)):
            self._read(path, is_current=path == self._path)
            if self.head.number:
                return

    def _read(self, path: Path, *, is_current: bool) -> None:
        data = path.read_bytes()
        place, head, why = 0, None, ""
        while place < len(data) and not why:
            end = data.find(b"\n", place)
            try:
                if end < 0:
                    raise BadEntry("it has no end")
                entry = decode_entry(data[place:end])
                if head is not None:
                    check_continues(entry, head)
            except BadEntry as bad:
                why = f"entry {head.number + 1 if head else 'at the beginning'}: {bad}"
                break
            if is_current and self._first is None:
                self._first = entry
            head, self.records = entry.head, max(self.records, entry.records)
            place = end + 1
        self.head = head or Head()
        if is_current:
            self._size = place
            if why:
                self._set_aside(data[place:], why)

    def _set_aside(self, remainder: bytes, why: str) -> None:
        """Keep what a crash or somebody has damaged in a file of its own; the chain continues before it."""
        kept = self._folder / f"audit-damaged-{time.time_ns()}.bytes"
        kept.touch(mode=0o600)
        kept.write_bytes(remainder)
        with self._path.open("r+b") as opened:
            opened.truncate(self._size)
            os.fsync(opened.fileno())
        self.damaged = kept.name, why


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
