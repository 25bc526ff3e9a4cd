"""The loss report's files: a ring of lines of JSON, each of LINE_SIZE bytes, in a file of a fixed size.

A file belongs to one subscription at a time, and later ones of the same feed continue it; there are as many as
subscriptions run at once. Its lock ends with its process. Entries survive the process, because they are written and not
kept in memory, and they can be read meanwhile: a line that is half written is not JSON, and is left out.

A full disk or an unwritable folder raises nothing here: `write` returns what is wrong, once, and tries again later.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tandemfeed.client_lib.losses.loss import Loss
from tandemfeed.client_lib.reading.storage import NotStored

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
    """

    def __init__(self, folder: Path, feed: str) -> None:
        self._folder, self._feed = folder, feed
        self._fd: int | None = None
        self._path = folder
        self._next = 0
        self._last: Loss | None = None
        self._is_failing, self._retry_at_ns = False, 0
        self._lock = threading.Lock()

    def write(self, losses: Iterable[Loss]) -> NotStored | None:
        """Add losses. Returns what is wrong, if they are the first that cannot be written."""
        with self._lock:
            if self._is_failing and time.monotonic_ns() < self._retry_at_ns:
                return None
            try:
                if self._fd is None:
                    self._open()
                for loss in losses:
                    self._add(loss)
            except OSError as failed:
                was_failing, self._is_failing = self._is_failing, True
                self._retry_at_ns = time.monotonic_ns() + RETRY_NS
                return None if was_failing else NotStored.because(self._path, failed, "losses are not recorded")
            self._is_failing = False
            return None

    def close(self) -> None:
        """Close the file; its lock ends."""
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _open(self) -> None:
        self._path = self._folder
        self._folder.mkdir(parents=True, exist_ok=True)
        for number in range(FILES_MAX):
            self._path = self._folder / f"{self._feed}-{number}{SUFFIX}"
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.posix_fallocate(fd, 0, LINE_SIZE * LINE_COUNT)
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

    def _add(self, loss: Loss) -> None:
        joined = None if self._last is None else self._last.joined(loss)
        if joined is None:
            self._next += 1
        self._last = joined or loss
        number = self._next - 1
        text = json.dumps({"number": number, **self._last.to_json()}, separators=(",", ":")).encode()
        line = text[: LINE_SIZE - 1].ljust(LINE_SIZE - 1) + b"\n"
        assert self._fd is not None
        os.pwrite(self._fd, line, number % LINE_COUNT * LINE_SIZE)


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
            yield document.pop("number"), Loss.from_json(document)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # being written, or torn by the end of its process
