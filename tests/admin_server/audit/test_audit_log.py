"""The audit log: what was acknowledged is there after a crash, and what was changed is named."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandemfeed.admin_server.audit import log as audit_log
from tandemfeed.admin_server.audit import log_file
from tandemfeed.admin_server.audit.chain import Head
from tandemfeed.admin_server.audit.files import audit_files
from tandemfeed.admin_server.audit.log import AuditLog, AuditUnavailable
from tandemfeed.admin_server.audit.verification import Verification, verify
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.records.store import Store
from tests.admin_server.conftest import EndedProcess
from tests.losing_disk import losing_disk


def written(
    folder: Path, *events: str, file_size_max: int = 1 << 20, now_unix_ns: Callable[[], int] = time.time_ns
) -> Head:
    """Write these events to the log of a folder, one after the other; return its head."""
    log = AuditLog(folder, file_size_max, now_unix_ns)
    for event in events:
        log.write(event, identity="reader")
    log.close()
    return log.head


def events(folder: Path) -> list[str]:
    return [json.loads(line)["event"] for path in audit_files(folder) for line in path.read_text().splitlines()]


def change_line(path: Path, place: int, change: Callable[[str], list[str]]) -> None:
    """Replace a line of a file by others."""
    lines = path.read_text().splitlines()
    lines[place : place + 1] = change(lines[place])
    path.write_text("".join(f"{line}\n" for line in lines))


def test_entries_continue_over_files_and_starts_in_one_chain(tmp_path: Path) -> None:
    written(tmp_path, "a", "b", file_size_max=1)
    head = written(tmp_path, "c", "d", "e", file_size_max=1)
    assert [path.name for path in audit_files(tmp_path)] == [
        *(f"audit-{number:012}.jsonl" for number in range(1, 5)),
        "audit.jsonl",
    ]
    assert verify(tmp_path, head) == Verification(5, 1, head)
    assert events(tmp_path) == ["a", "b", "c", "d", "e"]
    assert {oct(path.stat().st_mode & 0o777) for path in audit_files(tmp_path)} == {"0o600"}


def test_what_comes_during_a_flush_is_written_as_soon_as_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(tmp_path)
    is_flushing, let_go, flush = threading.Event(), threading.Event(), os.fdatasync

    def held_flush(descriptor: int) -> None:
        is_flushing.set()
        assert let_go.wait(60)
        flush(descriptor)

    monkeypatch.setattr(os, "fdatasync", held_flush)
    first = log.submit("first")
    assert is_flushing.wait(60)
    second = log.submit("second")
    let_go.set()
    first.result(60)
    second.result(60)  # no other entry wakes the thread
    log.close()
    assert events(tmp_path) == ["first", "second"]


def test_a_log_that_could_always_be_written_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tandemfeed.admin_server.audit"):
        written(tmp_path, "a", "b")
    assert [each.message for each in caplog.records] == []


def test_a_file_of_another_day_is_not_continued(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    written(tmp_path, "a", "b", now_unix_ns=lambda: now_ns)
    written(tmp_path, "c", now_unix_ns=lambda: now_ns + log_file.DAY_NS)
    assert [path.name for path in audit_files(tmp_path)] == ["audit-000000000001.jsonl", "audit.jsonl"]
    assert not verify(tmp_path).problems


def test_concurrent_writers_share_flushes_and_each_entry_is_there_when_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    flush = os.fdatasync

    def slow_flush(descriptor: int) -> None:
        time.sleep(0.002)  # a slow disk
        flush(descriptor)
        flushed.append(descriptor)

    log = AuditLog(tmp_path)
    monkeypatch.setattr(os, "fdatasync", slow_flush)

    def write(place: int) -> bool:
        log.write("subscribed", place=place)
        return f'"place":{place}}}' in (tmp_path / "audit.jsonl").read_text()

    with ThreadPoolExecutor(32) as callers:
        assert all(callers.map(write, range(400)))
    assert 0 < len(flushed) < 200, "entries that arrive during a flush are flushed together"
    log.close()
    assert verify(tmp_path, log.head).entry_count == 400


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda line: [line.replace("reader", "nobody")],
            "line 4 (entry 4): it does not continue entry 3",
        ),
        (lambda _: [], "audit.jsonl, line 3 (entry 3): it has number 4; 3 was expected, so entries are missing"),
        (lambda line: [line, line], "audit.jsonl, line 4 (entry 4): it has number 3; 4 was expected"),
        (lambda _: ["garbage"], "audit.jsonl, line 3 (entry 3): it is not an entry"),
        (lambda line: [line.replace('"number":3', '"number":"3"')], "line 3 (entry 3): it is not an entry"),
    ],
)
def test_what_was_changed_is_named_with_file_and_entry(
    tmp_path: Path, change: Callable[[str], list[str]], problem: str
) -> None:
    head = written(tmp_path, *"abcdef")
    change_line(tmp_path / "audit.jsonl", 2, change)
    assert problem in verify(tmp_path, head).problems[0]


def test_a_truncated_or_replaced_log_is_noticed_by_a_head_that_is_kept_elsewhere(tmp_path: Path) -> None:
    head = written(tmp_path, *"abcd")
    path = tmp_path / "audit.jsonl"
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:2]))
    assert verify(tmp_path, head).problems == ["the log ends with entry 2; entry 4 was written, so the end is missing"]
    assert not verify(tmp_path).problems, "the chain alone cannot show it"
    path.unlink()
    written(tmp_path, *"abcd")
    assert "line 4: entry 4 is not the one that was written" in verify(tmp_path, head).problems[0]


def test_a_log_whose_oldest_files_were_moved_away_is_whole_from_there(tmp_path: Path) -> None:
    head = written(tmp_path, *"abcd", file_size_max=1)
    audit_files(tmp_path)[0].unlink()
    assert verify(tmp_path, head) == Verification(3, 2, head)
    audit_files(tmp_path)[1].unlink()
    assert "audit.jsonl, line 1 (entry 3): it has number 4" in verify(tmp_path, head).problems[0]


@pytest.mark.parametrize("torn", [b'{"number":4,"prev', bytes(4096), b'{"number":4,"pr\0\0\0\n{"number":5}\n'])
def test_an_end_that_a_crash_has_damaged_is_set_aside_with_a_note(tmp_path: Path, torn: bytes) -> None:
    written(tmp_path, *"abc")
    with (tmp_path / "audit.jsonl").open("ab") as opened:
        opened.write(torn)
    head = written(tmp_path, "d")
    assert events(tmp_path) == ["a", "b", "c", "audit log repaired", "d"]
    found = verify(tmp_path, head)
    assert not found.problems
    assert len(found.notes) == 1
    (kept,) = tmp_path.glob("audit-damaged-*.bytes")
    assert kept.read_bytes() == torn
    assert kept.name in found.notes[0]


def test_a_log_continues_after_a_crash_between_two_files(tmp_path: Path) -> None:
    written(tmp_path, "a")
    (tmp_path / "audit.jsonl").rename(tmp_path / "audit-000000000001.jsonl")
    head = written(tmp_path, "b")
    assert verify(tmp_path, head) == Verification(2, 1, head)


def test_a_log_that_lost_entries_that_the_records_know_says_so_for_ever(tmp_path: Path) -> None:
    store = Store(tmp_path / "leases.sqlite")
    log = AuditLog(tmp_path)
    log.use_records(store)
    for event in "abcd":
        log.write(event)
    log.close()
    assert store.audit_head() == (4, log.head.digest)
    path = tmp_path / "audit.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    log = AuditLog(tmp_path)
    log.use_records(store)
    log.write("e")
    log.close()
    store.close()
    assert events(tmp_path) == ["a", "b", "audit entries missing", "e"]
    assert verify(tmp_path, log.head).problems == [
        "audit.jsonl, line 3: entries 3 to 4 had been written, and were lost or removed"
    ]


def test_while_the_disk_is_full_nothing_is_acknowledged_and_notes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, is_full = os.write, [False]

    def write_if_room(descriptor: int, data: bytes) -> int:
        if is_full[0] and b"previous" in bytes(data):
            write(descriptor, data[:10])  # a full disk may take a part
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    log = AuditLog(tmp_path)
    monkeypatch.setattr(os, "write", write_if_room)
    log.write("before")
    is_full[0] = True
    log.note("lease granted")
    with pytest.raises(AuditUnavailable, match="No space left"):
        log.write("subscribed")
    is_full[0] = False
    log.write("after")
    log.close()
    assert events(tmp_path) == ["before", "lease granted", "after"]
    assert not verify(tmp_path, log.head).problems
    with pytest.raises(AuditUnavailable, match="closed"):
        log.write("too late")


class FailingFile:
    """A log file whose appends raise what no disk does, or wait."""

    def __init__(self, log: AuditLog) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self.head, self.records, self.close = log.head, 0, log._file.close

    def append(self, records: int, encoded: list[str]) -> None:
        self.reached.set()
        assert self.go.wait(30)
        raise ValueError("broken")


def test_a_log_whose_thread_fails_refuses_what_waits_and_what_comes_and_ends_the_process(
    tmp_path: Path, ended_process: EndedProcess
) -> None:
    log = AuditLog(tmp_path)
    log._file = broken = FailingFile(log)  # type: ignore[assignment]
    first = log.submit("taken")
    assert broken.reached.wait(30)
    second = log.submit("waits")
    broken.go.set()
    for each in (first, second):
        with pytest.raises(AuditUnavailable, match="the audit log has failed: broken"):
            each.result(30)
    with pytest.raises(AuditUnavailable, match="closed"):
        log.write("too late")
    log.close()
    assert ended_process.reasons() == ["audit: broken"]


def test_notes_that_a_slow_disk_cannot_take_are_bounded_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "WAITING_MAX", 3)
    reached, go = threading.Event(), threading.Event()

    def wait(operation: str, path: Path) -> None:
        if not reached.is_set():
            reached.set()
            assert go.wait(30)

    log = AuditLog(tmp_path)
    with losing_disk(tmp_path, tmp_path.with_name("kept"), wait):
        log.note("taken")
        assert reached.wait(30)
        for place in range(5):
            log.note(f"note {place}")
        with pytest.raises(AuditUnavailable, match="the audit log is 3 entries late, which is the limit"):
            log.write("refused")
        go.set()
        log.close()
    assert events(tmp_path) == ["taken", "note 0", "note 1", "note 2", "audit notes lost"]
    assert json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])["count"] == 2


class BusyRecords:
    """Records that another thread writes to, until they are free."""

    generation = 0

    def __init__(self) -> None:
        self.tries, self.is_free, self.heads = 0, False, list[int]()

    def audit_head(self) -> None:
        return None

    def note_audit_head(self, number: int, digest: str) -> None:
        self.tries += 1
        if not self.is_free and self.tries < 3:
            raise RecordsUnavailable("database is locked")
        self.heads.append(number)


def test_a_head_that_could_not_be_recorded_is_recorded_later(tmp_path: Path) -> None:
    log, records = AuditLog(tmp_path), BusyRecords()
    log.use_records(records)
    log.write("only")
    deadline = time.monotonic() + 30
    while not records.heads:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    log.close()
    assert records.heads == [1]
