"""Which process is registered as which adapter of a feed. Pure.

Invariant: of two processes that claim to be the same adapter, only one is registered. While the registered process
attends and reports, any other is refused unless it was started with --replace; a replaced process is refused
permanently.

A restarted server knows which process was registered (`ProcessRecord`). If that process attended when the server
stopped, others must wait for as long as the server waits for a silent process. Otherwise the first process to return
would win, and that may be the one that was refused before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

NONCE_SIZE = 16
REPLACED_REMEMBERED = 64  # starts of each adapter; a replaced process registers again within a second, or never
HOST_LENGTH_MAX = 64  # of the host name that a process reports
REASON_LENGTH_MAX = 500  # of a reason that a source or an adapter reports
ENDPOINT_LENGTH_MAX = 261  # of an address: a name of 253 characters (RFC 1035), and a port with its colon, or brackets
SECOND = 1_000_000_000


class AnotherProcess(Exception):
    """Another process is registered as this adapter; the text says which one, and what to do."""


class ReturnAwaited(Exception):
    """The process registered before the server's restart may still return; the text says for how long."""


class StartsTooOften(ReturnAwaited):
    """The adapter begins new starts in a loop; the text says when the next one may begin."""


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """One start of an adapter's process.

    Attributes:
        nonce: random, chosen by the process when it starts; identifies the start over all its connections.
        process_id, host: as reported by the process; 0 and "" if it reports none.
        peer: the address of its connection.
    """

    nonce: bytes = field(repr=False)
    process_id: int = 0
    host: str = ""
    peer: str = ""

    def __str__(self) -> str:
        process = f"process {self.process_id}" if self.process_id else "a process"
        where = f" on host {self.host!r}" if self.host else ""
        return f"{process}{where}, from {self.peer or 'an unknown address'}"


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The durable record of the process registered as an adapter.

    Attributes:
        start: the registered process.
        at_unix_ns: when it registered.
        is_attended: its stream is open or about to open; False: it has left, and any other process may register.
        replaced: the nonces of the processes that it replaced, which stay refused; the newest last.
    """

    start: ProcessStart
    at_unix_ns: int
    is_attended: bool = True
    replaced: tuple[bytes, ...] = ()

    @property
    def since(self) -> str:
        """When it registered, as text."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at_unix_ns // SECOND))


class Registrations:
    """The processes of one feed's adapters.

    Args:
        attended_ns: how long after its last report a process is considered to run. At least a lease term, so that a
            hung process has by then lost its lease by its own clock.
        restored: adapter_id -> the record on the disk when the server started.
        began_at_ns: when the server started.
    """

    def __init__(
        self, attended_ns: int, restored: Mapping[int, ProcessRecord] | None = None, *, began_at_ns: int = 0
    ) -> None:
        self.attended_ns = attended_ns
        self._records = dict(restored or {})
        self._awaited = {adapter_id for adapter_id, record in self._records.items() if record.is_attended}
        self._awaited_until_ns = began_at_ns + attended_ns

    def record(self, adapter_id: int) -> ProcessRecord | None:
        """The record to save. Safe to call from any thread."""
        return self._records.get(adapter_id)

    def check(
        self,
        adapter_id: int,
        name: str,
        start: ProcessStart,
        *,
        heard_at_ns: int | None,
        now_ns: int,
        resumed_at_ns: int = 0,
        is_replacing: bool = False,
    ) -> None:
        """Return if a process may register.

        Args:
            name: the adapter's name, for the error text.
            heard_at_ns: when the registered process last reported; None: it does not attend.
            resumed_at_ns: when this server's last pause ended: what it has not read since then is not a silence.
            is_replacing: the process was started with --replace.

        Raises:
            AnotherProcess: it may not register.
            ReturnAwaited: it may not register yet.
        """
        registered = self._records.get(adapter_id)
        if registered is None or registered.start.nonce == start.nonce:
            return
        if start.nonce in registered.replaced:
            raise AnotherProcess(
                f"this process was replaced: since {registered.since}, {registered.start} has been registered as "
                f"{name}; stop that process before you start this one again"
            )
        if is_replacing:
            return
        if heard_at_ns is not None and now_ns - max(heard_at_ns, resumed_at_ns) <= self.attended_ns:
            raise AnotherProcess(
                f"another process has been registered as {name} since {registered.since}: {registered.start}; "
                "stop it, or start this one with --replace"
            )
        awaited_until_ns = max(self._awaited_until_ns, resumed_at_ns + self.attended_ns)
        if heard_at_ns is None and adapter_id in self._awaited and now_ns <= awaited_until_ns:
            raise ReturnAwaited(
                f"the admin server has just started, and another process was registered as {name}: {registered.start}; "
                f"if it does not return within {self.attended_ns / SECOND:g} s, this one may register"
            )

    def note(self, adapter_id: int, start: ProcessStart, now_unix_ns: int) -> None:
        """A process registered, and replaces the one that was registered before."""
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
        """The stream of the registered process began or ended."""
        record = self._records.get(adapter_id)
        if record is not None:
            self._records[adapter_id] = replace(record, is_attended=is_attended)
