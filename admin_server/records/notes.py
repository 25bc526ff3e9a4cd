"""What the server notes without waiting for the disk or another writer: who holds each feed's lease, how long its terms
may be, its session and its last events, and the end of the audit log.

A takeover waits for these notes, so they have a file of their own, to which a note is one short write. A thread flushes
it within a second, and writes it again when it has become long, while notes continue. Invariants: a note that was taken
is in the file after any crash of the process, and within a second after any crash of the machine; after an I/O error,
everything is written again, from memory, to a new file.

Each line is a JSON object and its CRC-32. A later line replaces what earlier ones say; what a crash has damaged is
skipped.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from binascii import crc32
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tandemfeed.admin_server.records.lease_records import (
    HISTORY_KEPT_COUNT,
    HistoryEvent,
    RecordsUnavailable,
)
from tandemfeed.runtime.durable import (
    PRIVATE_FILE,
    FlushFailed,
    flush,
    open_to_append,
    rename_file,
    replace_file,
    write_all,
)
from tandemfeed.runtime.threads import mark_unhealthy, start_thread

LOG = logging.getLogger("tandemfeed.admin_server.records.notes")
NOTES = "notes.jsonl"  # the file, in the folder of the records
FLUSH_INTERVAL_S = 1.0  # how much the crash of a machine may take
SIZE_MAX = 4 << 20  # then the file is written again; a hundred feeds have at most 2 MB of values


@dataclass(frozen=True, slots=True)
class FeedNotes:
    """What is noted of one feed. Attributes: lease: (epoch, adapter_id) of the last holder."""

    lease: tuple[int, int] | None = None
    ttl_ns: int = 0
    session: int = 0
    history: tuple[HistoryEvent, ...] = ()

    def merged(self, other: FeedNotes) -> FeedNotes:
        """The later of two states of the same feed, of which it is unknown which is later."""
        later = max(self, other, key=lambda each: each.history[-1].at_unix_ns if each.history else 0)
        return FeedNotes(
            max(self.lease or (0, 0), other.lease or (0, 0)) if self.lease or other.lease else None,
            max(self.ttl_ns, other.ttl_ns),
            max(self.session, other.session),
            later.history,
        )


@dataclass(slots=True)
class NotedValues:
    """Everything that the file says.

    Attributes:
        audit_head: the last noted entry of the audit log: number and digest.
        damaged_count: lines that a crash has damaged.
    """

    feeds: dict[int, FeedNotes] = field(default_factory=dict)
    audit_head: tuple[int, str] | None = None
    damaged_count: int = 0

    def of(self, feed_id: int) -> FeedNotes:
        """The notes of a feed."""
        return self.feeds.get(feed_id, FeedNotes())

    def copy(self) -> NotedValues:
        """A copy that later notes do not change."""
        return NotedValues(dict(self.feeds), self.audit_head)


class Notes:
    """The file. Safe to call from any thread.

    Owner: `_lock` guards the values and what appends use; the file itself is flushed and replaced by one thread only,
    which holds the lock for a moment, and never while it waits for the disk.

    Args:
        earlier: notes of an earlier version of the server, which are merged.

    Raises:
        RecordsUnavailable: the file cannot be used.
    """

    def __init__(self, path: Path, earlier: NotedValues | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._changed, self._closing = threading.Event(), threading.Event()
        self._line_end = b""  # after a note that was written in part
        self._replacing: list[bytes] | None = None  # the notes since a replacement of the file has begun
        self._next = -1  # the replacement, once it takes notes too
        self._must_replace, self._has_failed, self._is_closed = False, False, False
        try:
            self._values = _with_earlier(read_notes(path), earlier)
            if self._values.damaged_count:
                LOG.warning("skipped damaged notes", extra={"file": str(path), "count": self._values.damaged_count})
            replace_file(path, _encoded(self._values))  # what a killed server noted counts, so it is on the disk first
            self._descriptor, self._size = open_to_append(path, PRIVATE_FILE), path.stat().st_size
        except OSError as refused:
            raise RecordsUnavailable(f"{path}: {refused}") from refused
        self._thread = start_thread(self._run, "lease notes", mark_unhealthy)

    # ---- what is noted ----

    def of(self, feed_id: int) -> FeedNotes:
        """The notes of a feed."""
        with self._lock:
            return self._values.of(feed_id)

    @property
    def feed_ids(self) -> list[int]:
        """The feeds of which something is noted."""
        with self._lock:
            return list(self._values.feeds)

    @property
    def audit_head(self) -> tuple[int, str] | None:
        """The last noted entry of the audit log."""
        return self._values.audit_head

    def note_lease(self, feed_id: int, epoch: int, adapter_id: int) -> None:
        """Note the holder of a lease.

        Raises:
            RecordsUnavailable: it is noted as soon as the disk allows it.
        """
        self._note(feed_id, lambda feed: (replace(feed, lease=(epoch, adapter_id)), {"lease": (epoch, adapter_id)}))

    def note_ttl(self, feed_id: int, ttl_ns: int) -> None:
        """Note the longest term that may be announced from now on. Raises like `note_lease`."""
        self._note(feed_id, lambda feed: (replace(feed, ttl_ns=ttl_ns), {"ttl_ns": ttl_ns}))

    def note_session(self, feed_id: int, session: int) -> None:
        """Note the session that a feed's adapters have begun. Raises like `note_lease`."""
        self._note(feed_id, lambda feed: (replace(feed, session=session), {"session": session}))

    def note_history(self, feed_id: int, events: Iterable[HistoryEvent]) -> None:
        """Note the last events of a feed. Raises like `note_lease`."""
        noted = tuple(events)[-HISTORY_KEPT_COUNT:]

        def change(feed: FeedNotes) -> tuple[FeedNotes, dict[str, object]]:
            is_one_more = bool(noted) and noted == (*feed.history, noted[-1])[-HISTORY_KEPT_COUNT:]
            return replace(feed, history=noted), {"event": noted[-1]} if is_one_more else {"history": noted}

        self._note(feed_id, change)

    def note_audit_head(self, number: int, digest: str) -> None:
        """Note the last entry of the audit log. Raises like `note_lease`."""
        with self._lock:
            self._values.audit_head = number, digest
            self._append({"audit_head": (number, digest)})

    def close(self) -> None:
        """Flush and close the file."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._closing.set()
        self._changed.set()
        self._thread.join()
        with suppress(OSError):  # it was flushed
            os.close(self._descriptor)

    # ---- inside ----

    def _note(self, feed_id: int, change: Callable[[FeedNotes], tuple[FeedNotes, dict[str, object]]]) -> None:
        """Change the notes of a feed, and append what has changed."""
        with self._lock:
            self._values.feeds[feed_id], fields = change(self._values.of(feed_id))
            self._append({"feed": feed_id, **fields})

    def _append(self, fields: Mapping[str, object]) -> None:
        """Append a line. The lock is held."""
        if self._is_closed:
            raise RecordsUnavailable(f"{self._path} is closed")
        line = _line(fields)
        if self._replacing is not None:
            self._replacing.append(line)
        data = self._line_end + line
        self._size += len(data)
        try:
            write_all(self._descriptor, data)
            if self._next >= 0:
                write_all(self._next, data)
        except OSError as refused:
            self._line_end, self._must_replace = b"\n", True
            raise RecordsUnavailable(f"{self._path}: {refused}") from refused
        else:
            self._line_end = b""
        finally:
            self._changed.set()

    # ---- in the flushing thread ----

    def _run(self) -> None:
        while not self._closing.is_set():
            self._changed.wait()
            self._closing.wait(FLUSH_INTERVAL_S)
            self._changed.clear()  # before the flush: what is noted meanwhile is flushed next
            self._keep()
        self._keep()
        if self._must_replace:
            self._keep()

    def _keep(self) -> None:
        """Flush the file, or write it again; after a failure, write it again a moment later."""
        try:
            if self._must_replace or self._size > SIZE_MAX:
                self._replace()
            else:
                flush(self._descriptor, self._path)
        except OSError as failed:
            if not self._has_failed:
                LOG.error("cannot write the notes of leases to the disk; retrying", extra={"why": str(failed)})
            self._has_failed = self._must_replace = True
            self._changed.set()
            return
        if self._has_failed:
            LOG.warning("the notes of leases are on the disk again", extra={"file": str(self._path)})
        self._has_failed = False

    def _replace(self) -> None:
        """Write everything to a new file. From the moment at which it is complete, both files take each note."""
        draft = self._path.with_name(f".{self._path.name}.next.draft")
        descriptor = open_to_append(draft, PRIVATE_FILE, os.O_TRUNC)
        is_renamed = False
        try:
            with self._lock:
                values, self._replacing, self._must_replace = self._values.copy(), [], False
            content = _encoded(values)
            write_all(descriptor, content)
            flush(descriptor, draft)
            with self._lock:
                write_all(descriptor, b"".join(self._replacing))
                self._next, self._size = descriptor, len(content) + sum(map(len, self._replacing))
                self._replacing = None
            try:
                rename_file(draft, self._path)
            except FlushFailed:  # of the folder: the file has its name, but after a power failure it may be the former
                is_renamed = True
                raise
            is_renamed = True
        finally:
            with self._lock:
                self._replacing, self._next = None, -1
                unused = self._descriptor if is_renamed else descriptor
                if is_renamed:
                    self._descriptor = descriptor
            with suppress(OSError):
                os.close(unused)
            if not is_renamed:
                with suppress(OSError):
                    os.unlink(draft)


def read_notes(path: Path) -> NotedValues:
    """What a file says; nothing if there is none.

    Raises:
        OSError: it cannot be read.
    """
    found = NotedValues()
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return found
    for line in lines:
        if line:
            _read_line(line, found)
    return found


def _read_line(line: bytes, found: NotedValues) -> None:
    text, _, check = line.rpartition(b" ")
    if check != b"%08x" % crc32(text):
        found.damaged_count += 1
        return
    fields = json.loads(text)
    if "audit_head" in fields:
        number, digest = fields["audit_head"]
        found.audit_head = number, digest
    else:
        found.feeds[fields["feed"]] = _changed(found.of(fields["feed"]), fields)


def _changed(feed: FeedNotes, fields: Mapping[str, Any]) -> FeedNotes:
    """The notes of a feed after those of a line."""
    lease = tuple(fields["lease"]) if "lease" in fields else feed.lease
    history = feed.history
    if "history" in fields:
        history = tuple(HistoryEvent(*event) for event in fields["history"])
    if "event" in fields:
        history = (*history, HistoryEvent(*fields["event"]))[-HISTORY_KEPT_COUNT:]
    return FeedNotes(lease, fields.get("ttl_ns", feed.ttl_ns), fields.get("session", feed.session), history)


def _encoded(values: NotedValues) -> bytes:
    lines = []
    for feed_id, feed in values.feeds.items():
        lease = {} if feed.lease is None else {"lease": feed.lease}
        noted = {"ttl_ns": feed.ttl_ns, "session": feed.session, "history": feed.history}
        lines.append(_line({"feed": feed_id, **lease, **noted}))
    if values.audit_head is not None:
        lines.append(_line({"audit_head": values.audit_head}))
    return b"".join(lines)


def _line(fields: Mapping[str, object]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%b %08x\n" % (text, crc32(text))


def _with_earlier(found: NotedValues, earlier: NotedValues | None) -> NotedValues:
    if earlier is not None:
        for feed_id, feed in earlier.feeds.items():
            found.feeds[feed_id] = found.of(feed_id).merged(feed)
        found.audit_head = max(found.audit_head or (0, ""), earlier.audit_head or (0, ""))
        found.audit_head = found.audit_head if found.audit_head[0] else None
    return found
