"""To which process a client object belongs, and that one which a process has forked cannot use it.

A forked process has the parent's objects without its threads, and shares its sockets: reading there would take
datagrams away from the parent. gRPC does not survive a fork with calls under way: a client that is made there hangs, or
ends the process. So every use raises immediately; only closing does nothing, because nothing belongs to the child.

Invariant: nothing here waits or takes a lock, as a fork leaves locks behind that no thread releases.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from tandemfeed.client_lib.errors import ForkedProcess

REMEDY = (
    'start processes with the method "spawn" or "forkserver" (multiprocessing.set_start_method), and connect in each, '
    "or fork before a client is opened"
)
_open: set[int] = set()  # ids of what uses gRPC or sockets now
_parent = 0  # the process from which this one was forked while something was open; 0: none


class Endable(Protocol):
    """What gives nothing more once it is ended. A flag, because it is looked at for every message."""

    is_ended: bool


_endables: weakref.WeakSet[Endable] = weakref.WeakSet()


def end_when_forked(endable: Endable) -> None:
    """Set `is_ended` in every process that is forked from now on."""
    _endables.add(endable)


class OwnProcess:
    """What belongs to the process that made it.

    Attributes:
        is_inherited: this is a process that was forked since.
    """

    __slots__ = ("_name", "_pid")

    def __init__(self, name: str) -> None:
        """Args: name: of the object, in errors."""
        self._name, self._pid = name, os.getpid()

    @property
    def is_inherited(self) -> bool:
        """True in a process that was forked since."""
        return self._pid != os.getpid()

    def check(self) -> None:
        """Raises: ForkedProcess: another process made it."""
        if self._pid != os.getpid():
            raise ForkedProcess(
                f"the {self._name} belongs to process {self._pid}, from which this process ({os.getpid()}) was forked; "
                f"{REMEDY}"
            )


def check_may_connect() -> None:
    """Raises: ForkedProcess: the process was forked while its parent used a client, so it cannot have any."""
    if _parent:
        raise ForkedProcess(
            f"process {_parent}, from which this process ({os.getpid()}) was forked, had an open client, and gRPC does "
            f"not work after that; {REMEDY}"
        )


def note_open(opened: object) -> None:
    """A client object is open: it uses gRPC, and perhaps sockets."""
    _open.add(id(opened))


def note_closed(opened: object) -> None:
    """It is closed."""
    _open.discard(id(opened))


def _after_fork() -> None:
    global _parent
    for each in list(_endables):
        each.is_ended = True
    if _open:
        _parent = os.getppid()
        _open.clear()


os.register_at_fork(after_in_child=_after_fork)
