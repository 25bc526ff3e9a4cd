"""Which calls fail in a round: drawn by a seed, of the calls and errors that the operating system really gives."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator, Sequence

from tests.failing_calls import SHORT, Fault

# Of files below a folder.
OF_FILES = [
    ("open", (errno.EMFILE, errno.EIO, errno.ENOSPC)),
    ("fsync", (errno.EIO, errno.ENOSPC)),
    ("write", (errno.ENOSPC, errno.EIO, errno.EINTR, SHORT)),
    ("read", (errno.EIO, errno.EINTR)),
    ("ftruncate", (errno.ENOSPC, errno.EIO, errno.EINTR)),
    ("fallocate", (errno.ENOSPC, errno.EINTR)),
    ("rename", (errno.EIO, errno.ENOSPC)),
    ("unlink", (errno.EIO,)),
    ("mmap", (errno.ENOMEM,)),
]
# Of files that are only read.
OF_READ_FILES = [
    ("open", (errno.EMFILE, errno.EIO, errno.EINTR)),
    ("mmap", (errno.ENOMEM,)),
]
# Of connections.
OF_SOCKETS = [
    ("recv", (errno.ECONNRESET, errno.EINTR)),
    ("send", (errno.ECONNRESET, errno.EPIPE, errno.EINTR)),
]
# Of the whole process.
OF_ALL = [
    ("socket", (errno.EMFILE,)),
    ("eventfd", (errno.EMFILE,)),
    ("accept", (errno.EMFILE, errno.ECONNABORTED, errno.EINTR)),
    ("epoll_wait", (errno.EINTR,)),
    ("poll", (errno.EINTR,)),
    ("open", (errno.EMFILE, errno.EINTR)),
]


WHEN_MAX = {"files": 12, "read files": 12, "sockets": 60, "all": 30}  # the last call that may fail; early ones often
OF_PROCESSES = ("files", "files", "sockets", "all")
OF_READERS = ("read files",)
OF_CLIENTS = ("sockets", "all")


def drawn(seed: int, folder: str, *, count: int, kinds: Sequence[str] = OF_PROCESSES) -> Iterator[Fault]:
    """Faults of a process.

    Args:
        folder: part of the paths of its files.
        kinds: of calls.
    """
    chance = random.Random(seed)
    known = {
        "files": (OF_FILES, folder),
        "read files": (OF_READ_FILES, folder),
        "sockets": (OF_SOCKETS, "socket:stream"),
        "all": (OF_ALL, ""),
    }
    for _ in range(count):
        kind = chance.choice(kinds)
        calls, of = known[kind]
        call, errors = chance.choice(calls)
        when = round(WHEN_MAX[kind] ** chance.random())
        yield Fault(call, chance.choice(errors), when, chance.choice((1, 1, 2, 20)), of)
