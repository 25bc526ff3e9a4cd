"""Which process is registered as which adapter of a feed. Pure.

Invariant: of two processes that call themselves the same adapter one stays out. While the registered one is attended
and reports, any other is refused unless it was told to replace it; a process that was replaced is refused for good.

A server that restarts knows who was registered (`ProcessRecord`). If that process was attended when the server was last
seen, others wait as long as a silent process is waited for: else the first to return would win, which may be the twin
that was refused before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

NONCE_SIZE = 16
REPLACED_REMEMBERED = 64  # starts of one adapter: a replaced process comes back within a second, or never
HOST_LENGTH_MAX = 64  # of a name that another process tells
SECOND = 1_000_000_000


class AnotherProcess(Exception):
    """Another process is registered as this adapter; the text says which, and what to do."""


class ReturnAwaited(Exception):
    """The process registered before the server's restart may still come back; the text says for how long."""


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
        where = f" on host {self.host!r}" if self.host else ""
        return f"{process}{where}, from {self.peer or 'an unknown address'}"


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Who is registered as an adapter, as it is kept on the disk.

    Attributes:
        start: the registered process.
        at_unix_ns: since when.
        is_attended: its stream stands, or is about to; False: it has left, and any other may register.
        replaced: nonces of the processes before it, which stay refused; the newest last.
    """

    start: ProcessStart
    at_unix_ns: int
    is_attended: bool = True
    replaced: tuple[bytes, ...] = ()

    @property
    def since(self) -> str:
        """When it registered, for a text."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at_unix_ns // SECOND))


class Registrations:
    """The processes of one feed's adapters.

    Args:
        attended_ns: how long after its last report a process is still taken to run. Not less than a lease's term: by
            then a process that hangs has lost its lease by its own clock.
        restored: adapter_id -> what was on the disk when the server began.
        began_at_ns: when that was.
    """

    def __init__(
        self, attended_ns: int, restored: Mapping[int, ProcessRecord] | None = None, *, began_at_ns: int = 0
    ) -> None:
        self.attended_ns = attended_ns
        self._records = dict(restored or {})
        self._awaited = {adapter_id for adapter_id, record in self._records.items() if record.is_attended}
        self._awaited_until_ns = began_at_ns + attended_ns

    def record(self, adapter_id: int) -> ProcessRecord | None:
        """What is to be on the disk; from any thread."""
        return self._records.get(adapter_id)

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
            ReturnAwaited: it may not yet.
        """
        registered = self._records.get(adapter_id)
        if registered is None or registered.start.nonce == start.nonce:
            return
        if start.nonce in registered.replaced:
            raise AnotherProcess(
                f"this process was replaced: since {registered.since} {registered.start} is registered as {name}; "
                "stop that one before this one is started again"
            )
        if is_replacing:
            return
        if heard_at_ns is not None and now_ns - heard_at_ns <= self.attended_ns:
            raise AnotherProcess(
                f"another process is registered as {name} since {registered.since}: {registered.start}; "
                "stop it, or start this one with --replace"
            )
        if heard_at_ns is None and adapter_id in self._awaited and now_ns <= self._awaited_until_ns:
            raise ReturnAwaited(
                f"the admin server has just started, and another process was registered as {name} before: "
                f"{registered.start}; it has {self.attended_ns / SECOND:g} s to come back, then this one may register"
            )

    def note(self, adapter_id: int, start: ProcessStart, now_unix_ns: int) -> None:
        """A process registered: whichever was registered before is replaced."""
        self._awaited.discard(adapter_id)
        former = self._records.get(adapter_id)
        if former is None:
            self._records[adapter_id] = ProcessRecord(start, now_unix_ns)
        elif former.start.nonce == start.nonce:
            self._records[adapter_id] = replace(former, is_attended=True)
        else:
            replaced = (*former.replaced, former.start.nonce)[-REPLACED_REMEMBERED:]
            self._records[adapter_id] = ProcessRecord(start, now_unix_ns, replaced=replaced)

    def note_attended(self, adapter_id: int, is_attended: bool) -> None:
        """The registered process's stream began, or ended."""
        record = self._records.get(adapter_id)
        if record is not None and record.is_attended != is_attended:
            self._records[adapter_id] = replace(record, is_attended=is_attended)
