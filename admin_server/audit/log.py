"""The audit log: one entry for everything that was granted, refused or changed, in a hash chain (`chain`).

`write` returns when its entry is on the disk, so that nothing is acknowledged before; `note` never waits, for decisions
about leases, which must not wait for a disk. One thread writes: what arrives while it flushes is flushed together. If
that thread fails, nothing could be granted any more, so the process ends.
The log never contains secrets, tokens or keys.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Protocol
from weakref import WeakSet

import grpc

from tandemfeed.admin_server.audit.chain import Head, encode_fields
from tandemfeed.admin_server.audit.log_file import FILE_SIZE_MAX, LogFile
from tandemfeed.admin_server.audit.refusal_counts import RefusalCounts, Refused
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.runtime.threads import end_process, start_thread
from tandemfeed.transport.calls.serving.call_context import CallAborted, CallContext

LOG = logging.getLogger("tandemfeed.admin_server.audit")
REFUSALS = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,  # also the answer for what the caller may not see
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
NOTES_KEPT_MAX = 10_000  # a few MB of memory while the disk is full
WAITING_MAX = 20_000  # while a flush lasts; writers wait for theirs, so only notes can be so many
RETRY_INTERVAL_S = 1.0
HEAD_INTERVAL_NS = 100_000_000  # a truncation within it is not noticed; more often would delay the notes of leases
HEAD_REFUSED_MANY = 50  # five seconds: not just another writer
URGENT_TRIES, URGENT_PAUSE_S = 100, 0.02  # at the end of the log, when others may still write to the records
REASON_LENGTH_MAX = 300


class AuditUnavailable(OSError):
    """An entry could not be written, so what it describes must not be granted; the text says why."""


class AuditedRecords(Protocol):
    """Records that keep the head of the log, and whose generation the log keeps, so that each proves the other."""

    @property
    def generation(self) -> int:
        """Counts the durable changes of the records."""
        ...

    def audit_head(self) -> tuple[int, str] | None:
        """The last noted head of the log: number and digest."""
        ...

    def note_audit_head(self, number: int, digest: str) -> None:
        """Remember the head of the log. Waits neither for the disk nor for another writer.

        Raises:
            RecordsUnavailable: it is not remembered; another thread may be writing to the records.
        """
        ...


@dataclass(slots=True)
class _Waiting:
    """An entry that is not on the disk.

    Attributes:
        encoded: empty: only waits for those before.
        is_kept: whether it is retried if it cannot be written; for any other, the writer receives the error.
    """

    encoded: str
    is_kept: bool
    done: Future[None] = field(default_factory=Future)


class AuditLog:
    """Writes the log. Safe to call from any thread.

    Owner: `_changed` guards what callers and the writing thread share; what only that thread uses is named.

    Args:
        folder: the private folder in which its files are.
        now_unix_ns: the wall clock.

    Raises:
        OSError: the files cannot be used.
    """

    def __init__(
        self, folder: Path, file_size_max: int = FILE_SIZE_MAX, now_unix_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.folder, self._now_unix_ns = folder, now_unix_ns
        self._file = LogFile(folder, file_size_max, now_unix_ns)
        self._records: AuditedRecords | None = None
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._writing: list[_Waiting] = []  # taken from those that wait, and not done
        self._lost_count = 0  # notes that were not kept; the log will say how many
        self._has_kept, self._is_closed = False, False
        self._refusals = RefusalCounts()
        # Used by the writing thread only.
        self._kept: list[_Waiting] = []  # notes that could not be written
        self._has_failed, self._head_noted_at_ns, self._is_head_noted, self._head_refused_count = False, 0, True, 0
        self._recorded: WeakSet[object] = WeakSet()  # calls whose refusal is in the log
        self._thread = start_thread(self._run, "audit", self._on_failure)
        if self._file.damaged is not None:
            kept_as, why = self._file.damaged
            LOG.error("the audit log was damaged at its end", extra={"why": why, "kept_as": kept_as})
            self.note("audit log repaired", why=why, kept_as=kept_as)

    @property
    def head(self) -> Head:
        """The last entry that is on the disk."""
        return self._file.head

    @property
    def known_generation(self) -> int:
        """The highest generation of the records that the log has seen."""
        return self._file.records

    def use_records(self, records: AuditedRecords) -> None:
        """From now on, keep the head in these records, and state their generation in every entry.

        Notes it if the records know entries that the log lacks: it was truncated or restored.
        """
        noted = records.audit_head()
        found = self._file.head
        if noted is not None and noted[0] > found.number:
            LOG.error(
                "entries are missing at the end of the audit log", extra={"known": noted[0], "last": found.number}
            )
            self.note("audit entries missing", known_number=noted[0], known_digest=noted[1], last_number=found.number)
        self._records = records

    def write(self, event: str, **fields: object) -> None:
        """Record something; return when it is on the disk.

        Raises:
            AuditUnavailable: it is not recorded, so the caller must not grant what it describes.
        """
        self.submit(event, **fields).result()

    def submit(self, event: str, **fields: object) -> Future[None]:
        """Like `write`, for callers that must not block: the outcome comes with the future."""
        return self._put(_Waiting(encode_fields(self._now_unix_ns(), event, fields), is_kept=False))

    def note(self, event: str, **fields: object) -> None:
        """Record something soon, without waiting. If the disk is full, it is recorded when there is room."""
        self._put(_Waiting(encode_fields(self._now_unix_ns(), event, fields), is_kept=True))

    async def settle(self) -> None:
        """Wait until everything noted so far is on the disk: before a call is answered.

        Raises:
            AuditUnavailable: it cannot be written now.
        """
        with self._changed:
            if not (self._waiting or self._writing or self._has_kept):
                return
        await asyncio.wrap_future(self._put(_Waiting("", is_kept=False)))

    def refuse(
        self, context: grpc.ServicerContext, code: grpc.StatusCode, text: str, event: str, **fields: str
    ) -> NoReturn:
        """Record a refusal and end the call with it."""
        self._recorded.add(context)
        self.note_refusal(context.peer(), code, text, event, **fields)
        context.abort(code, text)

    def note_refusal(self, peer: str, code: grpc.StatusCode, text: str, event: str, **fields: str) -> None:
        """Record the refusal of a request within a call, which continues."""
        identity = fields.pop("identity", "")
        reason = fields.get("why", text)[:REASON_LENGTH_MAX]  # callers get one text for several causes
        self._record(Refused(event, code.name, identity, _address_of(peer), reason), peer, fields)

    def note_refused_call(self, call: CallContext, aborted: CallAborted) -> None:
        """Record a call that ends with a refusal, unless `refuse` has recorded it."""
        if aborted.code in REFUSALS and call not in self._recorded:
            identity = "" if call.caller is None else call.caller.identity
            reason = aborted.details[:REASON_LENGTH_MAX]
            refused = Refused("call refused", aborted.code.name, identity, _address_of(call.peer()), reason)
            self._record(refused, call.peer(), {"method": call.method})

    def close(self) -> None:
        """Write what waits, and close the file."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        self._file.close()

    # ---- inside ----

    def _put(self, waiting: _Waiting) -> Future[None]:
        with self._changed:
            if self._is_closed:
                waiting.done.set_exception(AuditUnavailable("the audit log is closed"))
            elif len(self._waiting) < WAITING_MAX:
                self._waiting.append(waiting)
                self._changed.notify_all()
            else:
                self._lost_count += waiting.is_kept
                why = f"the audit log is {WAITING_MAX} entries late, which is the limit; check the disk"
                waiting.done.set_exception(AuditUnavailable(why))
        return waiting.done

    def _record(self, refused: Refused, peer: str, fields: Mapping[str, str]) -> None:
        """Record a refusal, or count it if one like it was recorded within the last minute."""
        with self._changed:
            is_first = self._refusals.add(refused, time.monotonic_ns())
        if not is_first:
            return
        known = {"code": refused.code, "peer": peer, "identity": refused.identity, "reason": refused.reason}
        try:
            self.write(refused.event, **known, **fields)
        except AuditUnavailable:  # a refusal grants nothing, so the caller is refused nevertheless
            LOG.warning("could not record a refusal", extra={"lost": refused.event, "identity": refused.identity})

    # ---- in the writing thread ----

    def _run(self) -> None:
        while self._write_next():
            pass

    def _write_next(self) -> bool:
        """Write what waits, or wait; False if that was the last."""
        with self._changed:
            if not (self._waiting or self._is_closed):
                self._changed.wait(self._pause_s())
            counted = self._refusals.due(None if self._is_closed else time.monotonic_ns())
            self._writing, self._waiting = self._waiting, []
            is_last, lost_count = self._is_closed, self._lost_count
        repeated = [self._repeated(refused, dict(counts)) for refused, counts in counted]
        lost_more = self._commit([*self._kept, *self._writing, *repeated], lost_count)
        with self._changed:
            self._writing, self._has_kept = [], bool(self._kept)
            self._lost_count += lost_more
        self._note_head(is_urgent=is_last)
        return not is_last

    def _on_failure(self, name: str, failure: BaseException) -> None:
        """Called when the writing thread has failed: nothing is acknowledged any more, and this process ends."""
        with self._changed:
            self._is_closed = True
            pending, self._writing, self._waiting = [*self._writing, *self._waiting], [], []
        for each in pending:
            if not each.done.done() and each.done.set_running_or_notify_cancel():
                each.done.set_exception(AuditUnavailable(f"the audit log has failed: {failure}"))
        end_process(name, failure)

    def _pause_s(self) -> float | None:
        if self._kept:
            return RETRY_INTERVAL_S
        if not self._is_head_noted:
            return HEAD_INTERVAL_NS / 1e9
        deadline_ns = self._refusals.next_deadline_ns()
        return None if deadline_ns is None else max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)

    def _repeated(self, refused: Refused, counts: dict[str, object]) -> _Waiting:
        fields: dict[str, object] = {"code": refused.code, "identity": refused.identity, "address": refused.address}
        fields |= {"reason": refused.reason, "refused": refused.event, **counts}
        return _Waiting(encode_fields(self._now_unix_ns(), "refused again", fields), is_kept=True)

    def _commit(self, batch: list[_Waiting], lost_count: int) -> int:
        """Write a batch. Args: lost_count: of notes, to be recorded. Returns: by how much their number changes."""
        entries = [each.encoded for each in batch if each.encoded]
        if lost_count and entries:
            entries.append(encode_fields(self._now_unix_ns(), "audit notes lost", {"count": lost_count}))
        try:
            if entries:
                self._file.append(self._generation(), entries)
        except OSError as failed:
            return self._fail(batch, failed)
        if self._has_failed:
            LOG.warning("the audit log can be written again", extra={"lost": lost_count})
        self._kept, self._has_failed = [], False
        self._is_head_noted = self._is_head_noted and not entries
        for each in batch:
            if each.done.set_running_or_notify_cancel():
                each.done.set_result(None)
        return -lost_count if entries else 0

    def _fail(self, batch: list[_Waiting], failed: OSError) -> int:
        """Keep the notes of a batch that could not be written, and refuse the rest; return how many notes are lost."""
        if not self._has_failed:
            self._has_failed = True
            LOG.error("cannot write the audit log; nothing is granted until it can be", extra={"why": str(failed)})
        kept = [each for each in batch if each.is_kept]
        self._kept = kept[-NOTES_KEPT_MAX:]
        for each in batch:
            if not each.is_kept and each.done.set_running_or_notify_cancel():
                each.done.set_exception(AuditUnavailable(f"the audit log cannot be written: {failed}"))
        return len(kept) - len(self._kept)

    def _generation(self) -> int:
        known = self._file.records
        return known if self._records is None else max(known, self._records.generation)

    def _note_head(self, *, is_urgent: bool) -> None:
        """Keep the head in the records, so that a truncation of the log is noticed. Waits only if it is urgent."""
        now_ns = time.monotonic_ns()
        if self._records is None or self._is_head_noted:
            return
        if not is_urgent and now_ns - self._head_noted_at_ns < HEAD_INTERVAL_NS:
            return
        self._head_noted_at_ns = now_ns
        for _ in range(URGENT_TRIES if is_urgent else 1):
            try:
                self._records.note_audit_head(self.head.number, self.head.digest)
            except RecordsUnavailable as failed:  # usually because another thread writes to them; soon again
                self._head_refused_count += 1
                if self._head_refused_count == HEAD_REFUSED_MANY:
                    why = str(failed)
                    LOG.warning("cannot record the end of the audit log in the records; retrying", extra={"why": why})
            else:
                self._is_head_noted, self._head_refused_count = True, 0
                return
            if is_urgent:
                time.sleep(URGENT_PAUSE_S)


def _address_of(peer: str) -> str:
    """The host in gRPC's name of a peer, such as ipv4:10.0.0.1:40112."""
    return peer.rpartition(":")[0]
