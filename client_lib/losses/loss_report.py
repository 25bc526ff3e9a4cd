"""The loss report's files: a ring of lines of JSON, each of LINE_SIZE bytes, in a file of a fixed size.

A file belongs to one subscription at a time, and later ones of the same feed continue it; there are as many as
subscriptions run at once. Its lock ends with its process. Entries survive the process, because they are written
immediately, and they can be read meanwhile: a line that is half written has a wrong checksum, and is left out. They are
flushed when the file is opened and closed, and not in between, because that would delay messages.

A full disk or an unwritable folder raises nothing here: `write` returns what is wrong, once, and tries again later.
Meanwhile entries wait in memory, as many as the file has lines, so none is lost that the file would have kept.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tandemfeed.client_lib.losses.loss import Loss
from tandemfeed.client_lib.reading.storage import NotStored, StorageEvent, StoredAgain
from tandemfeed.runtime.durable import PRIVATE_FILE, FlushFailed, flush, make_folder, rewrite, sync_folder

log = logging.getLogger(__name__)

LINE_SIZE = 768  # longer than the longest names make an entry
LINE_COUNT = 4_096  # 3 MiB
FILES_MAX = 256  # subscriptions to one feed by one user of a host
RETRY_NS = 10_000_000_000
SUFFIX = ".losses"


class LossReport:
    """The report of one subscription; opened at the first loss. Any thread may write.

    Args:
        folder: of the reports; created.
        feed: the feed's name, and so the beginning of the file's.
        now_ns: the monotonic clock.
    """

    def __init__(self, folder: Path, feed: str, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._folder, self._feed, self._now_ns = folder, feed, now_ns
        self._fd: int | None = None
        self._path = folder
        self._next = 0
        self._last: Loss | None = None
        self._waiting: deque[Loss] = deque(maxlen=LINE_COUNT)  # not written yet
        self._is_failing, self._retry_at_ns = False, 0
        self._lock = threading.Lock()

    def write(self, losses: Iterable[Loss]) -> StorageEvent | None:
        """Add losses.

        Returns:
            NotStored if they are the first that cannot be written, StoredAgain if they are the first that can be again.
        """
        with self._lock:
            self._waiting.extend(losses)
            if self._is_failing and self._now_ns() < self._retry_at_ns:
                return None
            was_failing = self._is_failing
            try:
                self._write_waiting()
            except OSError as failed:
                self._is_failing, self._retry_at_ns = True, self._now_ns() + RETRY_NS
                return None if was_failing else NotStored.because(self._path, failed, "losses are kept in memory")
            self._is_failing = False
            return StoredAgain(str(self._path)) if was_failing else None

    def close(self) -> None:
        """Flush and close the file; its lock ends. What cannot be stored is logged."""
        with self._lock:
            try:
                if self._waiting:
                    self._write_waiting()
                if self._fd is not None:
                    self._make_durable(self._fd)
            except OSError as failed:
                details = {"why": str(failed), "unwritten": len(self._waiting)}
                log.warning("the loss report may lack entries", extra=details)
            finally:
                if self._fd is not None:
                    os.close(self._fd)
                    self._fd = None

    def _write_waiting(self) -> None:
        if self._fd is None:
            self._open()
        while self._waiting:
            self._add(self._waiting[0])
            self._waiting.popleft()

    def _open(self) -> None:
        self._path = self._folder
        make_folder(self._folder)
        for number in range(FILES_MAX):
            self._path = self._folder / f"{self._feed}-{number}{SUFFIX}"
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.posix_fallocate(fd, 0, LINE_SIZE * LINE_COUNT)
                self._make_durable(fd)
                sync_folder(self._folder)
            except BlockingIOError:
                os.close(fd)
                continue
            except OSError:
                os.close(fd)
                raise
            self._fd, self._last = fd, None
            self._next = max((number for number, _ in _entries(self._path)), default=-1) + 1
            return
        raise OSError(f"{FILES_MAX} subscriptions of this feed write one already")

    def _make_durable(self, fd: int) -> None:
        """Flush what is in the file, whichever process wrote it; after a failure, write all of it again."""
        try:
            flush(fd, self._path)
        except FlushFailed:
            rewrite(self._path)

    def _add(self, loss: Loss) -> None:
        joined = None if self._last is None else self._last.joined(loss)
        number = self._next - (joined is not None)
        line = _line(number, joined or loss)
        assert self._fd is not None
        if os.pwrite(self._fd, line, number % LINE_COUNT * LINE_SIZE) != LINE_SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._last, self._next = joined or loss, number + 1


def _line(number: int, loss: Loss) -> bytes:
    document = {"number": number, **loss.to_json()}
    text = _text({**document, "crc": zlib.crc32(_text(document))})
    return text[: LINE_SIZE - 1].ljust(LINE_SIZE - 1) + b"\n"


def _text(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def read_losses(folder: Path, feed: str = "") -> list[Loss]:
    """All entries of a folder's reports, the oldest first. Args: feed: only those of this feed; empty: all."""
    found = [loss for path in folder.glob(f"*{SUFFIX}") for _, loss in _entries(path) if feed in ("", loss.feed)]
    return sorted(found, key=lambda loss: (loss.first_at_ns, loss.last_at_ns))


def _entries(path: Path) -> Iterator[tuple[int, Loss]]:
    data = path.read_bytes()
    for start in range(0, len(data), LINE_SIZE):
        line = data[start : start + LINE_SIZE]
        if line[:1] != b"{":
            continue  # never written
        try:
            document = json.loads(line)
            crc = document.pop("crc", None)  # earlier versions wrote none
            if crc in (None, zlib.crc32(_text(document))):
                yield document.pop("number"), Loss.from_json(document)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # being written, or torn by the end of its process or machine
