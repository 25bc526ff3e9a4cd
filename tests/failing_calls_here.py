"""System calls that fail: the n-th call of one kind on files below a folder, once, several times or from then on.

Unlike `losing_disk`, which takes the place of the functions in `runtime.durable`, this fails the calls of the module
`os` themselves, so that it also finds code that does not go through them.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SHORT = 0  # in place of an error's number: the call writes a part
# Which calls can fail, and how each is likely to.
ERRORS = {
    "open": (errno.EMFILE, errno.EACCES),
    "rename": (errno.EIO,),
    "unlink": (errno.EIO,),
    "write": (errno.ENOSPC, errno.EIO, SHORT),
    "pwrite": (errno.EIO,),
    "fsync": (errno.EIO,),
    "fdatasync": (errno.EIO, errno.ENOSPC),
    "ftruncate": (errno.EIO,),
    "close": (errno.EIO,),
}
CASES = [(name, number) for name, numbers in ERRORS.items() for number in numbers]


class FailingCalls:
    """Counts the calls, and fails some.

    Args:
        first: which call is the first that fails, from 1 on.
        count: how many fail; None: all from then on.

    Attributes:
        failed: how many calls have failed.
    """

    def __init__(self, name: str, number: int, first: int, count: int | None, folder: Path) -> None:
        self.name, self._number, self._first, self._count = name, number, first, count
        self._folder = str(folder.resolve())
        self._call: Callable[..., Any] = getattr(os, name)
        self._lock, self._calls, self.failed = threading.Lock(), 0, 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Make the call, or fail it."""
        if not self._is_due(arguments[0]):
            return self._call(*arguments, **named)
        if self._number == SHORT:
            descriptor, data, *rest = arguments
            return self._call(descriptor, data[: max(1, len(data) // 2)], *rest)
        if self.name == "close":  # Linux closes the descriptor all the same
            self._call(*arguments)
        raise OSError(self._number, os.strerror(self._number))

    def _is_due(self, target: object) -> bool:
        if not self._path_of(target).startswith(self._folder):
            return False
        with self._lock:
            self._calls += 1
            if self._calls < self._first or (self._count is not None and self.failed >= self._count):
                return False
            self.failed += 1
            return True

    @staticmethod
    def _path_of(target: object) -> str:
        if isinstance(target, int):
            try:
                return os.readlink(f"/proc/self/fd/{target}")
            except OSError:
                return ""
        return os.path.abspath(os.fspath(target))  # type: ignore[call-overload,no-any-return]


@contextmanager
def failing_calls(name: str, number: int, first: int, folder: Path, count: int | None = 1) -> Iterator[FailingCalls]:
    """Fail the calls of `os.<name>` on files below a folder, from the `first` on.

    Args:
        number: of the error; `SHORT`: the call succeeds with a part of the data.
    """
    calls = FailingCalls(name, number, first, count, folder)
    former = getattr(os, name)
    setattr(os, name, calls)
    try:
        yield calls
    finally:
        setattr(os, name, former)
