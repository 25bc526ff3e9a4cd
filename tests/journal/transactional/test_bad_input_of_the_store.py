"""What a store must refuse: the error says what, where and what to do, and nothing is damaged."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tandemfeed.journal.errors import JournalError
from tandemfeed.journal.transactional import (
    BadName,
    ForeignStore,
    NewerStore,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreLimits,
    StoreLocked,
    StoreReadOnly,
    TransactionalStore,
    TransactionState,
)
from tandemfeed.journal.transactional import store as store_module
from tandemfeed.journal.transactional.pages import page_store as page_store_module
from tests.journal.transactional.store_copies import bodies, crashed_copy, put_all


def made(folder: Path) -> Path:
    with TransactionalStore.open(folder) as store:
        store.create_queue("orders")
        put_all(store, "orders", b"kept")
    return folder / "store.db"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "store.lock"}


def check_refused(folder: Path, error: type[JournalError], text: str) -> None:
    before = files_of(folder)
    with pytest.raises(error, match=text):
        TransactionalStore.open(folder)
    assert files_of(folder) == before


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"SQLite format 3\0", os.urandom(10_000)])
def test_a_foreign_file_is_refused_unchanged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.db").write_bytes(content)
    check_refused(tmp_path, ForeignStore, "store.db is not a transactional store")
    assert not (tmp_path / "store.lock").exists()


def test_a_foreign_database_is_refused_unchanged(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "store.db")
    database.execute("CREATE TABLE accounts (id)")
    database.close()
    check_refused(tmp_path, ForeignStore, "choose another folder")


def test_a_newer_schema_is_refused_unchanged(tmp_path: Path) -> None:
    database = sqlite3.connect(made(tmp_path / "store"))
    database.execute("PRAGMA user_version=2")
    shutil.copytree(tmp_path / "store", tmp_path / "in-the-log")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    with pytest.raises(NewerStore, match="schema version 2"):
        TransactionalStore.open(tmp_path / "in-the-log")
    check_refused(tmp_path / "store", NewerStore, "schema version 2.*later release")


def test_a_folder_that_is_a_file_or_has_no_parent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    for folder in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(ForeignStore, match="is not a folder"):
            TransactionalStore.open(folder)
    with pytest.raises(ForeignStore, match="create it first"):
        TransactionalStore.open(tmp_path / "missing" / "store")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_damage_is_reported_and_damaged_messages_are_never_delivered(tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    with TransactionalStore.open(tmp_path / "store") as store:
        put_all(store, "orders", b"a body of which a bit will flip", b"behind")
    path.write_bytes(path.read_bytes().replace(b"a bit will flip", b"a bit w1ll flip"))
    with TransactionalStore.open(tmp_path / "store") as store:
        assert any("damaged" in problem for problem in store.problems())
        transaction = store.transaction()
        assert transaction.get("orders") is not None
        with pytest.raises(StoreCorrupt, match=r"message \d+ of queue orders is damaged"):
            transaction.get("orders")
        transaction.rollback()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    with pytest.raises(StoreCorrupt, match="backup"):
        TransactionalStore.open(tmp_path / "store")


def test_a_damaged_message_can_be_skipped(tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    path.write_bytes(path.read_bytes().replace(b"kept", b"k3pt"))
    with TransactionalStore.open(tmp_path / "store") as store:
        put_all(store, "orders", b"behind")
        with store.transaction() as transaction:
            with pytest.raises(StoreCorrupt) as caught:
                transaction.get("orders")
            number = int(str(caught.value).split("message ")[1].split(" ")[0])
            transaction.delete("orders", number)
        assert bodies(store, "orders") == [b"behind"]
        assert store.problems() == []


def test_a_second_opener_is_refused_and_the_error_names_the_first_process(tmp_path: Path) -> None:
    with TransactionalStore.open(tmp_path / "store"), pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        TransactionalStore.open(tmp_path / "store")


def test_a_second_opener_does_not_open_the_file_because_closing_it_would_drop_the_first_ones_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touched(_: Path) -> bool:
        raise AssertionError

    with TransactionalStore.open(tmp_path / "store"):
        for module in (store_module, page_store_module):
            monkeypatch.setattr(module, "check_file", touched)
        with pytest.raises(StoreLocked):
            TransactionalStore.open(tmp_path / "store")


def _hold(folder: Path, pipe: Connection) -> None:
    with TransactionalStore.open(folder):
        pipe.send(os.getpid())
        pipe.recv()


def test_another_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(tmp_path / "store", theirs))
    process.start()
    holder = ours.recv()
    with pytest.raises(StoreLocked, match=f"process {holder}"):
        TransactionalStore.open(tmp_path / "store")
    process.kill()
    process.join()
    TransactionalStore.open(tmp_path / "store").close()


def test_a_transaction_is_refused_while_another_program_writes_the_file_and_succeeds_later(tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    with TransactionalStore.open(tmp_path / "store") as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        transaction = store.transaction()
        transaction.put("orders", b"later")
        with pytest.raises(StoreLocked, match="Another program"):
            transaction.commit()
        other.execute("ROLLBACK")
        other.close()
        transaction.commit()
        assert bodies(store, "orders") == [b"kept", b"later"]


UNPRIVILEGED_ID = 65534


def _open_as_unprivileged_user(folder: Path, pipe: Connection) -> None:
    """Root can write read-only files, so the process becomes another user first."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(UNPRIVILEGED_ID)
        os.setuid(UNPRIVILEGED_ID)
    try:
        TransactionalStore.open(folder)
    except JournalError as error:
        pipe.send((type(error), str(error)))
    else:
        pipe.send((None, ""))


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that any user can reach: the test runs as another user, because root can write read-only files."""
    folder = Path(tempfile.mkdtemp(prefix="tandemfeed-read-only-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["folder", "store.db", "store.lock", "parent"])
def test_a_read_only_folder_or_file_is_refused(public_folder: Path, what: str) -> None:
    folder = public_folder / "store"
    if what != "parent":
        made(folder)
        folder.chmod(0o777)
        for name in ("store.db", "store.lock"):
            (folder / name).chmod(0o666)
    locked = {"folder": folder, "parent": public_folder}.get(what, folder / what)
    locked.chmod(0o555)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_open_as_unprivileged_user, args=(folder, theirs))
    process.start()
    error, text = ours.recv()
    process.join()
    public_folder.chmod(0o755)
    assert error is StoreReadOnly
    assert "writable for this user" in text
    assert str(public_folder) in text
    if what != "parent":
        folder.chmod(0o755)
        with TransactionalStore.open(folder) as store:
            assert bodies(store, "orders") == [b"kept"]


def test_a_full_store_refuses_new_messages_and_still_lets_messages_be_consumed(tmp_path: Path) -> None:
    limits = StoreLimits(store_bytes_max=400_000)
    with TransactionalStore.open(tmp_path / "store", limits=limits) as store:
        store.create_queue("orders")
        put = 0
        with pytest.raises(StoreFull, match=r"database or disk is full.*Free disk space"):  # noqa: PT012
            while put < 100:
                put_all(store, "orders", b"%04d" % put + bytes(9_996))
                put += 1
        assert 20 < put < 40
        refused = store.transaction()
        refused.put("orders", b"none" + bytes(20_000))
        with pytest.raises(StoreFull):
            refused.commit()
        assert refused.state is TransactionState.ACTIVE
        with pytest.raises(StoreFull):
            refused.commit()  # the result is the same at every attempt
        with store.transaction() as consuming:
            for _ in range(10):
                message = consuming.get("orders")
                assert message is not None
                consuming.ack(message)
        refused.commit()
        expected = [b"%04d" % number for number in range(10, put)] + [b"none"]
        assert [body[:4] for body in bodies(store, "orders")] == expected
        assert store.problems() == []
        crashed_copy(store, tmp_path / "crashed")
    with TransactionalStore.open(tmp_path / "crashed") as store:
        assert [body[:4] for body in bodies(store, "orders")] == expected


def test_a_store_on_a_full_disk_loses_nothing_and_can_be_consumed_from_and_opened(tmp_path: Path) -> None:
    """Run on a separate small file system, which needs a mount namespace."""
    script = 'mount -t tmpfs -o size=5M none "$1" && exec "$2" -m tests.journal.transactional.full_disk "$1"'
    command = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c", script, "sh"]
    probe = 'mount -t tmpfs none "$1"'
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command[:-2], probe, "sh", tmp_path], check=False).returncode
    ):
        pytest.skip("no file system can be mounted here")
    said = subprocess.run([*command, tmp_path, sys.executable], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr


def test_if_a_group_does_not_fit_the_transactions_that_fit_alone_are_committed(tmp_path: Path) -> None:
    limits = StoreLimits(store_bytes_max=400_000, group_transactions_max=3, group_delay_s=600.0)
    with TransactionalStore.open(tmp_path / "store", limits=limits) as store:
        store.create_queue("orders")
        transactions = [store.transaction() for _ in range(3)]
        for transaction, size in zip(transactions, (10, 1_000_000, 20), strict=True):
            transaction.put("orders", bytes(size))
        futures = [transaction.commit_async() for transaction in transactions]
        assert futures[0].result(timeout=30) is None
        assert isinstance(futures[1].exception(timeout=30), StoreFull)
        assert futures[2].result(timeout=30) is None
        transactions[1].rollback()
        assert [len(body) for body in bodies(store, "orders")] == [10, 20]


def test_a_failed_flush_stops_the_store_and_the_next_opening_shows_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "store")
    store = TransactionalStore.open(tmp_path / "store")

    def broken(_: object) -> None:
        raise StoreFailed("the disk is gone")

    monkeypatch.setattr(store._parts.pages, "write", broken)
    transaction, waiting = store.transaction(), store.transaction()
    transaction.put("orders", b"who knows")
    with pytest.raises(StoreFailed, match="open it again"):
        transaction.commit()
    for late in (store.transaction, store.flush, waiting.commit, lambda: waiting.get("orders")):
        with pytest.raises(StoreFailed):
            late()
    store.close()
    with TransactionalStore.open(tmp_path / "store") as again:
        assert bodies(again, "orders") == [b"kept"]


def test_a_store_can_be_created_after_a_crash_while_creating_it(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.unfinished").write_bytes(b"SQLite format 3\0half of it")
    with TransactionalStore.open(tmp_path / "store") as store:
        assert store.queues() == []


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ünder", "a:b", "x" * 201, "a\0b"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    with TransactionalStore.open(tmp_path / "store") as store:
        with pytest.raises(BadName, match="letters"):
            store.create_queue(name)
        with pytest.raises(BadName):
            store.create_subscriber(name, "#")
        with pytest.raises(BadName):
            store.create_subscriber("desk", "a.#.b")


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="never be committed"):
        StoreLimits(message_bytes_max=2, transaction_bytes_max=1)
    with pytest.raises(ValueError, match="greater than zero"):
        StoreLimits(group_transactions_max=0)
