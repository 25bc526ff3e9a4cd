"""Makes durable what the last process left, before SQLite reads it.

SQLite takes for committed what it can read. But what it can read may be only in the page cache: the last commits of a
killed process, or pages whose flush failed, which the kernel has marked clean and no later flush writes. A store that
was closed has no log, and its database is on the disk. Otherwise the log is written again, and so are the pages of the
database that a checkpoint may have copied from the log. Invariant: when `make_durable` returns, what SQLite reads next
is on the disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from tandemfeed.runtime import durable

LOG_SUFFIX = "-wal"
LOG_HEADER_SIZE, FRAME_HEADER_SIZE = 32, 24  # SQLite, "WAL-mode File Format"


def make_durable(path: Path, page_size: int) -> None:
    """Make a store's files and their names durable.

    Args:
        path: of the database file, which need not exist.
        page_size: of the database, in bytes.

    Raises:
        FlushFailed: the disk refuses; nothing was lost, and the next call tries again.
    """
    log = path.with_name(path.name + LOG_SUFFIX)
    if path.exists() and log.exists():
        size = log.stat().st_size
        os.truncate(log, -(-size // durable.PAGE) * durable.PAGE)  # whole pages; SQLite ignores zeros after its frames
        durable.rewrite(log)
        (start, end), *more = places_of(pages_in(log, page_size), page_size) or [(0, 0)]
        durable.rewrite(path, start, *more, end=end)
    durable.flush_file(path)
    durable.sync_folder(path.parent)


def pages_in(log: Path, page_size: int) -> list[int]:
    """The numbers of the pages in a log's frames, whole or not, current or old; ascending, from 1 on."""
    found = set()
    with log.open("rb", buffering=0) as file:
        for offset in range(LOG_HEADER_SIZE, os.fstat(file.fileno()).st_size, FRAME_HEADER_SIZE + page_size):
            found.add(int.from_bytes(os.pread(file.fileno(), 4, offset), "big"))
    return sorted(found - {0})


def places_of(pages: list[int], page_size: int) -> list[tuple[int, int]]:
    """Where pages are in the database, neighbours together: (start, end) in bytes."""
    found: list[tuple[int, int]] = []
    for page in pages:
        start, end = (page - 1) * page_size, page * page_size
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, end))
    return found
