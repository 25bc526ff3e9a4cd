"""Which grants are on record already: a caller that asks for the same again and again must not flood the audit log.
Pure.

A login has one entry for each topic that it is granted, and another one whenever what it is granted changes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

GRANTS_MAX = 4_096  # of all logins; one that is forgotten is recorded again


class Asked(NamedTuple):
    """Who asked for what.

    Attributes:
        issued_unix_ns: of the token, which names the login.
    """

    identity: str
    issued_unix_ns: int
    topic: str


class RecordedGrants:
    """Args: count_max: how many are remembered; the oldest are forgotten. Thread-safe."""

    def __init__(self, count_max: int = GRANTS_MAX) -> None:
        self._count_max = count_max
        self._lock = threading.Lock()
        self._grants: OrderedDict[Asked, tuple[str, ...]] = OrderedDict()

    def has(self, asked: Asked, grant: tuple[str, ...]) -> bool:
        """True if this was the last one recorded. Args: grant: what makes it another one if it changes."""
        return self._grants.get(asked) == grant

    def note(self, asked: Asked, grant: tuple[str, ...]) -> None:
        """Note that a grant is on the disk."""
        with self._lock:
            self._grants[asked] = grant
            self._grants.move_to_end(asked)
            if len(self._grants) > self._count_max:
                self._grants.popitem(last=False)
