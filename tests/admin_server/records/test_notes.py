"""What is noted waits for nothing, is in the file after a kill, soon on the disk, and written again after an error."""

from __future__ import annotations

import errno
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandemfeed.admin_server.records import notes as notes_module
from tandemfeed.admin_server.records.lease_records import (
    EPOCH_BLOCK,
    HISTORY_KEPT_COUNT,
    HistoryEvent,
    RecordsUnavailable,
)
from tandemfeed.admin_server.records.notes import NOTES, FeedNotes, Notes, read_notes
from tandemfeed.admin_server.records.restored_backups import sign_of_restored_folder
from tandemfeed.admin_server.records.store import Store
from tests.failing_calls_here import CASES, failing_calls
from tests.losing_disk import FailsAt, LosingDisk, losing_disk


def event(number: int) -> HistoryEvent:
    return HistoryEvent(number, "lease granted", "a", number, "", "")


def await_so(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(notes_module, "FLUSH_INTERVAL_S", 0.002)
    (made := tmp_path / "state").mkdir()
    return made


class Gate:
    """A fault that holds up the operations that match, until it opens."""

    def __init__(self, operation: str, name: str) -> None:
        self._operation, self._name = operation, name
        self.is_closed, self.reached, self._opened = False, threading.Event(), threading.Event()

    def __call__(self, operation: str, path: Path) -> None:
        if self.is_closed and operation == self._operation and self._name in path.name:
            self.reached.set()
            assert self._opened.wait(30)

    def open(self) -> None:
        self._opened.set()


def test_a_note_is_in_the_file_when_it_was_taken_and_later_notes_replace_it(folder: Path) -> None:
    notes = Notes(folder / NOTES)
    notes.note_lease(1, 7, 2)
    notes.note_lease(1, 8, 1)
    notes.note_ttl(1, 300)
    notes.note_session(2, 20_261_122)
    notes.note_audit_head(3, "digest")
    for count in range(1, HISTORY_KEPT_COUNT + 6):
        notes.note_history(1, [event(number) for number in range(max(0, count - HISTORY_KEPT_COUNT), count)])
    found = read_notes(folder / NOTES)
    history = tuple(event(number) for number in range(5, HISTORY_KEPT_COUNT + 5))
    expected = {1: FeedNotes((8, 1), 300, 0, history), 2: FeedNotes(session=20_261_122)}
    assert found.feeds == expected
    assert found.audit_head == (3, "digest")
    notes.close()
    again = Notes(folder / NOTES)
    assert {feed_id: again.of(feed_id) for feed_id in (1, 2)} == expected
    assert again.audit_head == (3, "digest")
    again.note_history(1, [event(1)])
    assert read_notes(folder / NOTES).of(1).history == (event(1),), "another history takes the place of the former"
    again.close()
    assert (folder / NOTES).stat().st_mode & 0o777 == 0o600
    with pytest.raises(RecordsUnavailable, match="is closed"):
        again.note_lease(1, 9, 1)


@pytest.mark.parametrize(
    ("operation", "name"), [("flush", NOTES), ("flush", ".next.draft"), ("rename", ".draft"), ("flush_folder", "state")]
)
def test_a_note_waits_for_no_disk_however_slow_and_a_kill_then_loses_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, name: str
) -> None:
    gate = Gate(operation, name)
    with losing_disk(folder, tmp_path / "kept", gate):
        notes = Notes(folder / NOTES)
        gate.is_closed = True
        if name != NOTES:
            monkeypatch.setattr(notes_module, "SIZE_MAX", 10)
        notes.note_lease(1, 1, 1)
        assert gate.reached.wait(30)
        for epoch in range(2, 50):
            notes.note_lease(1, epoch, 2)
            assert read_notes(folder / NOTES).of(1).lease == (epoch, 2)
        gate.open()
        notes.note_lease(1, 50, 1)
        assert read_notes(folder / NOTES).of(1).lease == (50, 1)
        notes.close()
    assert read_notes(folder / NOTES).of(1).lease == (50, 1)
    assert [each.name for each in folder.iterdir()] == [NOTES]


def test_notes_are_on_the_disk_a_moment_later(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        notes = Notes(folder / NOTES)
        for epoch in range(1, 4):
            notes.note_lease(1, epoch, 2)
            await_durable(disk, tmp_path / f"image-{epoch}", (epoch, 2))
        notes.close()


def await_durable(disk: LosingDisk, image: Path, lease: tuple[int, int]) -> None:
    """Wait until the lease would be noted after a power failure."""
    taken = (image.with_name(f"{image.name}-{number}") for number in range(10_000))
    await_so(lambda: read_notes(disk.image(next(taken)) / NOTES).of(1).lease == lease)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("operation", ["flush", "write", "rename", "flush_folder"])
def test_after_an_error_of_the_disk_everything_is_written_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, count: int
) -> None:
    fails = FailsAt(1, 0, (operation,))
    with losing_disk(folder, tmp_path / "kept", fails) as disk:
        notes = Notes(folder / NOTES)
        notes.note_lease(1, 1, 1)
        await_durable(disk, tmp_path / "before", (1, 1))
        monkeypatch.setattr(notes_module, "SIZE_MAX", 10)
        disk.fault = fails = FailsAt(1, count, (operation,))
        refused = 0
        for epoch in range(2, 100):
            try:
                notes.note_lease(1, epoch, 2)
            except RecordsUnavailable:
                refused += 1
            time.sleep(0.001)  # the writing thread has its turns
        await_so(lambda: fails.failed == count)
        await_durable(disk, tmp_path / "after", (99, 2))
        notes.close()
    assert (refused > 0) == (operation == "write")
    assert read_notes(folder / NOTES).of(1).lease == (99, 2)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("name", "number"), CASES)
def test_whichever_call_fails_the_last_notes_are_in_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int, count: int
) -> None:
    monkeypatch.setattr(notes_module, "SIZE_MAX", 10)
    for first in range(1, 12):
        path = folder / str(first) / NOTES
        path.parent.mkdir()
        notes = Notes(path)
        with failing_calls(name, number, first, path.parent, count):
            for epoch in range(1, 20):
                try:
                    notes.note_lease(1, epoch, 1)
                except RecordsUnavailable:
                    await_so(lambda path=path, epoch=epoch: read_notes(path).of(1).lease == (epoch, 1))  # type: ignore[misc]
                assert read_notes(path).of(1).lease == (epoch, 1)
        notes.close()
        assert read_notes(path).of(1).lease == (19, 1)
        Notes(path).close()


def test_notes_of_many_threads_are_all_in_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "SIZE_MAX", 100)
    notes = Notes(folder / NOTES)

    def note(feed_id: int) -> None:
        for epoch in range(1, 300):
            notes.note_lease(feed_id, epoch, feed_id)
            notes.note_session(feed_id, epoch)
            assert read_notes(folder / NOTES).of(feed_id) == FeedNotes((epoch, feed_id), session=epoch)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(note, range(1, 5)))
    notes.close()
    found = read_notes(folder / NOTES)
    assert found.feeds == {feed_id: FeedNotes((299, feed_id), session=299) for feed_id in range(1, 5)}


def test_what_a_crash_has_damaged_is_skipped_and_what_a_killed_server_left_is_made_durable(
    folder: Path, tmp_path: Path
) -> None:
    notes = Notes(folder / NOTES)
    for epoch in (1, 2, 3):
        notes.note_lease(1, epoch, 1)
    notes.note_session(1, 5)
    notes.close()
    lines = (folder / NOTES).read_bytes().splitlines(keepends=True)
    whole = [b'{"feed":1,"lease":[%d,1]}' % epoch for epoch in (1, 2, 3)]
    assert [line.rpartition(b" ")[0] for line in lines[:3]] == whole
    lines[2] = bytes(len(lines[2]) - 1) + b"\n"
    (folder / NOTES).write_bytes(b"".join(lines) + b'{"feed":1,"lease":[4')
    with losing_disk(folder, tmp_path / "kept") as disk:
        again = Notes(folder / NOTES)
        assert again.of(1) == FeedNotes((2, 1), session=5)
        assert read_notes(disk.image(tmp_path / "image") / NOTES).of(1) == FeedNotes((2, 1), session=5)
        again.close()


def test_a_file_that_cannot_be_used_is_named(folder: Path) -> None:
    (folder / NOTES).mkdir()
    with pytest.raises(RecordsUnavailable, match=r"notes\.jsonl"):
        Notes(folder / NOTES)


# ---- a database of an earlier version ----

FORMER = """
CREATE TABLE leases (feed_id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, adapter_id INTEGER NOT NULL);
CREATE TABLE terms (feed_id INTEGER PRIMARY KEY, ttl_ns INTEGER NOT NULL);
CREATE TABLE sessions (feed_id INTEGER PRIMARY KEY, session INTEGER NOT NULL);
CREATE TABLE history (feed_id INTEGER PRIMARY KEY, events TEXT NOT NULL);
CREATE TABLE audit_head (only_row INTEGER PRIMARY KEY CHECK (only_row = 0), number INTEGER, digest TEXT);
INSERT INTO leases VALUES (1, 7, 2), (2, 3, 1);
INSERT INTO terms VALUES (1, 600);
INSERT INTO sessions VALUES (1, 20261122);
INSERT INTO audit_head VALUES (0, 12, 'digest');
"""


@pytest.fixture
def former(folder: Path) -> Path:
    """The database of an earlier version."""
    with sqlite3.connect(folder / "leases.sqlite") as database:
        database.executescript(FORMER)
        database.execute("INSERT INTO history VALUES (1, ?)", (json.dumps([event(1), event(2)]),))
    database.close()
    return folder / "leases.sqlite"


def tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as database:
        found = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    database.close()
    return found


def check_moved(store: Store) -> None:
    assert (store.last_lease(1), store.last_lease(2)) == ((7, 2), (3, 1))
    assert (store.noted_ttl_ns(1), store.noted_ttl_ns(2)) == (600, 0)
    assert (store.newest_session(1), store.newest_session(2)) == (20_261_122, 0)
    assert (store.history(1), store.history(2)) == ([event(1), event(2)], [])
    assert store.audit_head() == (12, "digest")


def test_the_notes_in_a_database_of_an_earlier_version_move_to_the_file_once(former: Path) -> None:
    for _ in range(2):
        store = Store(former)
        check_moved(store)
        store.close()
    assert not tables(former) & {"leases", "terms", "sessions", "history", "audit_head"}


def test_the_tables_stay_until_the_file_is_on_the_disk(former: Path, tmp_path: Path) -> None:
    with losing_disk(former.parent, tmp_path / "kept", FailsAt(1, operations=("flush_folder",))):
        with pytest.raises(RecordsUnavailable):
            Store(former)
        assert {"leases", "terms", "sessions", "history", "audit_head"} <= tables(former)
        store = Store(former)
        check_moved(store)
        store.close()


def test_what_an_earlier_version_noted_after_the_move_counts_too(former: Path) -> None:
    store = Store(former)
    store.note_lease(2, 9, 2)
    store.close()
    with sqlite3.connect(former) as database:  # an earlier version was installed again
        database.executescript(FORMER.replace("(1, 7, 2)", "(1, 8, 1)").replace("12, 'digest'", "20, 'later'"))
    database.close()
    store = Store(former)
    assert (store.last_lease(1), store.last_lease(2)) == ((8, 1), (9, 2))
    assert store.audit_head() == (20, "later")
    assert store.history(1) == [event(1), event(2)]
    store.close()


def test_a_database_that_is_older_than_the_notes_is_a_restored_backup_and_no_epoch_is_used_twice(folder: Path) -> None:
    store = Store(folder / "leases.sqlite")
    assert store.reserve_epochs(1, 0) == EPOCH_BLOCK
    store.note_lease(1, EPOCH_BLOCK, 2)
    assert sign_of_restored_folder(folder, store) == ""
    store.note_lease(1, EPOCH_BLOCK + 5, 2)  # as if the database had been restored since
    why = sign_of_restored_folder(folder, store)
    assert why == "epoch 69 of feed 1 was granted, and the records know epochs up to 64"
    assert store.reserved_end(1) == EPOCH_BLOCK + 5
    store.reserve_epochs(1, store.reserved_end(1))
    assert sign_of_restored_folder(folder, store) == ""
    store.close()


def test_notes_that_the_disk_refuses_raise_records_unavailable_and_never_the_error_itself(folder: Path) -> None:
    notes = Notes(folder / NOTES)
    with failing_calls("write", errno.ENOSPC, 1, folder, None):
        for note in (
            lambda: notes.note_lease(1, 1, 1),
            lambda: notes.note_ttl(1, 1),
            lambda: notes.note_session(1, 1),
            lambda: notes.note_history(1, [event(1)]),
            lambda: notes.note_audit_head(1, ""),
        ):
            with pytest.raises(RecordsUnavailable, match=r"notes\.jsonl: .*No space left") as raised:
                note()
            assert isinstance(raised.value.__cause__, OSError)
    notes.close()
    found = read_notes(folder / NOTES)
    assert found.of(1) == FeedNotes((1, 1), 1, 1, (event(1),))
    assert found.audit_head == (1, "")
