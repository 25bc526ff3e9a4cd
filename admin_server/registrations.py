"""Which process is registered as which adapter of a feed. Pure.

Invariant: of two processes that call themselves the same adapter one stays out. While the registered one is attended
and reports, any other is refused unless it was told to replace it; a process that was replaced is refused for good.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

NONCE_SIZE = 16
REPLACED_REMEMBERED = 64  # starts of one adapter: a replaced process comes back within a second, or never
HOST_LENGTH_MAX = 64  # of a name that another process tells
SECOND = 1_000_000_000


class AnotherProcess(Exception):
    """Another process is registered as this adapter; the text says which, and what to do."""


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """One start of an adapter's process.

    Attributes:
        nonce: drawn at random by the process when it starts; names the start over all its connections.
        process_id, host: as the process tells them; 0 and "" if it does not.
        peer: where its connection comes from.
    """

    nonce: bytes
    process_id: int = 0
    host: str = ""
    peer: str = ""

    def __str__(self) -> str:
        process = f"process {self.process_id}" if self.process_id else "a process"
        where = f" on host {self.host[:HOST_LENGTH_MAX]!r}" if self.host else ""
        return f"{process}{where}, from {self.peer or 'an unknown address'}"


@dataclass(frozen=True, slots=True)
class _Registration:
    start: ProcessStart
    at_unix_ns: int

    @property
    def since(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at_unix_ns // SECOND))


class Registrations:
    """The processes of one feed's adapters.

    Args:
        attended_ns: how long after its last report a process is still taken to run. Not less than a lease's term: by
            then a process that hangs has lost its lease by its own clock.
    """

    def __init__(self, attended_ns: int) -> None:
        self.attended_ns = attended_ns
        self._registered: dict[int, _Registration] = {}
        self._replaced: dict[int, deque[bytes]] = {}

    def check(
        self,
        adapter_id: int,
        name: str,
        start: ProcessStart,
        *,
        heard_at_ns: int | None,
        now_ns: int,
        is_replacing: bool = False,
    ) -> None:
        """Return if a process may register.

        Args:
            name: of the adapter, for the text.
            heard_at_ns: when the registered process last reported; None: it is not attended.
            is_replacing: it was told to take the place of whichever process runs.

        Raises:
            AnotherProcess: it may not.
        """
        registered = self._registered.get(adapter_id)
        if registered is None or registered.start.nonce == start.nonce:
            return
        if start.nonce in self._replaced.get(adapter_id, ()):
            raise AnotherProcess(
                f"this process was replaced: since {registered.since} {registered.start} is registered as {name}; "
                "stop that one before this one is started again"
            )
        if is_replacing or heard_at_ns is None or now_ns - heard_at_ns > self.attended_ns:
            return
        raise AnotherProcess(
            f"another process is registered as {name} since {registered.since}: {registered.start}; "
            "stop it, or start this one with --replace"
        )

    def note(self, adapter_id: int, start: ProcessStart, now_unix_ns: int) -> None:
        """A process registered: whichever was registered before is replaced."""
        former = self._registered.get(adapter_id)
        if former is not None and former.start.nonce == start.nonce:
            return
        if former is not None:
            self._replaced.setdefault(adapter_id, deque(maxlen=REPLACED_REMEMBERED)).append(former.start.nonce)
        self._registered[adapter_id] = _Registration(start, now_unix_ns)
