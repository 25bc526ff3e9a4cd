"""The file that the audit log is written to: a group of entries is written and flushed as a whole, or not at all.

Invariant: an entry that `append` has returned for is in the log after any crash and any error of the disk, and no error
stops the log for longer than its cause: the file that is due to be replaced takes the next entries until it can be.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
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
from tandemfeed.runtime.durable import AppendedFile, create_file

LOG = logging.getLogger("tandemfeed.admin_server.audit")
FILE_SIZE_MAX = 16 << 20  # the last file is read when a server starts, in less than a second
DAY_NS = 86_400_000_000_000


class LogFile:
    """The current file of a log, from the last intact entry on.

    Owner: one thread at a time, that of `log.AuditLog`. Other threads may read `head` and `records`.

    Args:
        folder: where the log's files are.
        file_size_max: from this size on, the file is replaced by the next.
        now_unix_ns: the wall clock; a file has the entries of one day.

    Attributes:
        head: the last entry that is on the disk.
        records: the highest generation of the records that an entry of the last file states.
        damaged: what followed the last intact entry and was set aside: the file's name, and why; None usually.
    """

    def __init__(
        self, folder: Path, file_size_max: int = FILE_SIZE_MAX, now_unix_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._folder, self._size_max, self._now_unix_ns = folder, file_size_max, now_unix_ns
        self.head, self.records = Head(), 0
        self.damaged: tuple[str, str] | None = None
        self._first: Entry | None = None  # of the current file
        self._cannot_rotate = False  # and that was logged
        self._recover()
        self._file = AppendedFile.open(folder / CURRENT)

    @property
    def size(self) -> int:
        """The size of the current file, in bytes."""
        return self._file.size

    def append(self, records: int, encoded: Sequence[str]) -> None:
        """Append entries, and wait until they are on the disk.

        Args:
            records: the generation of the records.
            encoded: the entries, by `chain.encode_fields`.

        Raises:
            OSError: none of them was appended.
        """
        if self._file.has_failed:
            self._file.restore()
        if self._is_full():
            self._begin_next()
        lines, head = [], self.head
        for each in encoded:
            line, head = encode_entry(head, records, each)
            lines.append(line)
        self._file.append(b"".join(lines))
        if self._first is None:
            self._first = decode_entry(lines[0][:-1])
        self.head, self.records = head, max(records, self.records)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    # ---- inside ----

    def _is_full(self) -> bool:
        if self._first is None:
            return False
        return self._file.size >= self._size_max or self._first.unix_ns // DAY_NS != self._now_unix_ns() // DAY_NS

    def _begin_next(self) -> None:
        """Begin the next file. If that is impossible now, the present one takes the next entries."""
        assert self._first is not None
        try:
            self._file.rotate(self._folder / archived_name(self._first.number))
        except OSError as failed:
            if not self._cannot_rotate:
                LOG.error("cannot begin the next file of the audit log; retrying", extra={"why": str(failed)})
            self._cannot_rotate = True
            return
        self._first, self._cannot_rotate = None, False

    def _recover(self) -> None:
        """Find the last intact entry, and set aside what follows it, in the files from the newest one with entries on.

        What these files have is on the disk afterwards, because entries of a killed server count from now on, even if
        they were not acknowledged. A file other than the current one can be torn if it was moved and could not be
        replaced.
        """
        for path in reversed(audit_files(self._folder)):
            self._read(path, is_current=path.name == CURRENT)
            if self.head.number:
                return

    def _read(self, path: Path, *, is_current: bool) -> None:
        file = AppendedFile.open(path)
        try:
            data = path.read_bytes()
            intact, why = self._read_entries(data, is_current=is_current)
            if why:
                self._set_aside(data[intact:], why)
                file.truncate(intact)
        finally:
            file.close()

    def _read_entries(self, data: bytes, *, is_current: bool) -> tuple[int, str]:
        """Read the intact entries of a file; return where they end, and why, if that is not its end."""
        place, head = 0, None
        while place < len(data):
            end = data.find(b"\n", place)
            try:
                if end < 0:
                    raise BadEntry("it has no end")
                entry = decode_entry(data[place:end])
                if head is not None:
                    check_continues(entry, head)
            except BadEntry as bad:
                return place, f"entry {head.number + 1 if head else 'at the beginning'}: {bad}"
            if is_current and self._first is None:
                self._first = entry
            head, self.records = entry.head, max(self.records, entry.records)
            self.head = head
            place = end + 1
        return place, ""

    def _set_aside(self, remainder: bytes, why: str) -> None:
        """Keep what a crash or somebody has damaged in a file of its own, before it is removed from the log."""
        kept = self._folder / f"audit-damaged-{time.time_ns()}.bytes"
        create_file(kept, remainder)
        self.damaged = kept.name, why
