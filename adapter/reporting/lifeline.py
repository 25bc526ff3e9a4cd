"""A small process next to the adapter's that reports the adapter's death to the admin server immediately.

When a process is killed, the kernel frees its memory before it closes its sockets. For the hundreds of megabytes of an
adapter this takes tens of milliseconds, in which the admin server notices nothing. But first of all, the kernel marks
the robust mutexes that the dead thread held (set_robust_list(2)) and wakes the threads that wait for one. So the
adapter's main thread holds such a mutex in shared memory, and this process waits for it. An adapter that ends in order
unlocks the mutex, and this process reports nothing: the end of the adapter's stream suffices.

Without this process (`guard_process`; another C library, or too little memory) only those milliseconds are lost.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import mmap
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tandemfeed.transport.calls.credentials import to_words
from tandemfeed.transport.calls.notices.layout import KEY_SIZE

if TYPE_CHECKING:
    from tandemfeed.transport.process_shell import Connection

LOG = logging.getLogger("tandemfeed.adapter.reporting.lifeline")
PAGE_SIZE = 4096
INCARNATION_OFFSET = 1024  # after the mutex, which has 40 bytes on x86-64 and 48 on AArch64
KEY_OFFSET = INCARNATION_OFFSET + 64
MUTEX_SIZE_MAX = 128
PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST = 1, 1  # pthread.h of the GNU C library
REPORT_TIMEOUT_S = 2.0


class LifelineUnavailable(Exception):
    """This system has no robust mutexes, or too little memory for the process."""


class SharedPage:
    """A mutex, the adapter's incarnation and its death-notice key, in memory that both processes map."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, PAGE_SIZE)
        self._mutex = ctypes.c_char.from_buffer(self._map)
        self._incarnation = ctypes.c_uint32.from_buffer(self._map, INCARNATION_OFFSET)
        self._libc = ctypes.CDLL(None, use_errno=True)

    @property
    def incarnation(self) -> int:
        """The adapter start that the admin server knows."""
        return int(self._incarnation.value)

    @incarnation.setter
    def incarnation(self, value: int) -> None:
        self._incarnation.value = value

    @property
    def key(self) -> bytes:
        """The key that authenticates this start's death notice."""
        return self._map[KEY_OFFSET : KEY_OFFSET + KEY_SIZE]

    @key.setter
    def key(self, value: bytes) -> None:
        self._map[KEY_OFFSET : KEY_OFFSET + KEY_SIZE] = value.ljust(KEY_SIZE, b"\0")  # a server may send no key

    def initialise(self) -> None:
        """Create the mutex, before another process maps the page."""
        attributes = ctypes.create_string_buffer(MUTEX_SIZE_MAX)
        self._call("pthread_mutexattr_init", attributes)
        self._call("pthread_mutexattr_setpshared", attributes, PTHREAD_PROCESS_SHARED)
        self._call("pthread_mutexattr_setrobust", attributes, PTHREAD_MUTEX_ROBUST)
        self._call("pthread_mutex_init", ctypes.byref(self._mutex), attributes)

    def lock(self) -> bool:
        """Wait for the mutex; True if its holder died."""
        return self._call("pthread_mutex_lock", ctypes.byref(self._mutex)) == errno.EOWNERDEAD

    def unlock(self) -> None:
        """From the thread that locked it."""
        self._call("pthread_mutex_unlock", ctypes.byref(self._mutex))

    def _call(self, name: str, *arguments: object) -> int:
        try:
            result = int(getattr(self._libc, name)(*arguments))
        except AttributeError as missing:
            raise LifelineUnavailable(f"the C library has no {name}") from missing
        if result not in (0, errno.EOWNERDEAD):
            raise LifelineUnavailable(f"{name}: {os.strerror(result)}")
        return result


class Lifeline:
    """The adapter's side. Create and close it in the main thread, which lives as long as the process.

    Raises:
        LifelineUnavailable: the text says why; the adapter can run without a lifeline.
    """

    def __init__(self, connection: Connection) -> None:
        self._has_noted_end = False
        try:
            descriptor = os.memfd_create("tandemfeed-lifeline")
        except OSError as refused:
            raise LifelineUnavailable(f"memfd_create: {refused.strerror}") from refused
        with os.fdopen(descriptor, "r+b") as file:
            os.ftruncate(descriptor, PAGE_SIZE)
            self._page = SharedPage(descriptor)
            self._page.initialise()
            self._page.lock()
            try:
                self._process = _begin(file.fileno(), connection)
            except LifelineUnavailable:
                self._page.unlock()
                raise

    def check(self) -> bool:
        """Whether the process runs. If not, a kill of the adapter will be noticed later; the log says so once."""
        status = self._process.poll()
        if status is not None and not self._has_noted_end:
            self._has_noted_end = True
            LOG.warning(
                "the lifeline has ended; a kill of this process will be noticed later", extra={"status": status}
            )
        return status is None

    def use_incarnation(self, incarnation: int, notice_key: bytes) -> None:
        """Set the adapter start to report, and the key that the admin server gave to this start."""
        self._page.key = notice_key
        self._page.incarnation = incarnation

    def close(self) -> None:
        """The adapter ends in order: end the process without a report."""
        self._page.incarnation = 0
        self._page.unlock()
        _await_end(self._process)


def _begin(descriptor: int, connection: Connection) -> subprocess.Popen[bytes]:
    """Start the process, and give it what it needs to reach the admin server."""
    command = [sys.executable, "-m", "tandemfeed.adapter.reporting.guard_process", str(descriptor)]
    words = {
        "admin": connection.admin,
        "ca": connection.ca_pem.decode(),
        "identity": connection.identity,
        "credential": to_words(connection.credential),
    }
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[descriptor])
    except OSError as refused:
        raise LifelineUnavailable(f"{command[0]}: {refused.strerror}") from refused
    assert process.stdin is not None
    try:
        with process.stdin as pipe:
            pipe.write(json.dumps(words).encode())
    except BrokenPipeError:
        raise LifelineUnavailable(f"its process ended as it started, with status {_await_end(process)}") from None
    return process


def _await_end(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process to end, or kill it; returns its exit status."""
    try:
        return process.wait(REPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
