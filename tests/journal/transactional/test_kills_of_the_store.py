"""A store whose process is killed at any moment has all acknowledged transactions, and no incomplete ones."""

from __future__ import annotations

import multiprocessing
import random
import shutil
from pathlib import Path

import pytest

from tandemfeed.journal.transactional import TransactionalStore
from tests.journal.transactional.crash_child import Report, child, verify
from tests.journal.transactional.store_copies import bodies, put_all

ROUNDS = 4
REPORTS_MAX = 600


def run_until_killed(folder: Path, seed: int, after_reports: int) -> list[Report]:
    """Kill a child after a number of reports; return its reports."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(folder, theirs, seed))
    process.start()
    theirs.close()
    reported: list[Report] = []
    try:
        while len(reported) < after_reports:
            reported.append(ours.recv())
        process.kill()
        while True:
            reported.append(ours.recv())
    except (EOFError, OSError):  # the process closed its end of the pipe, perhaps in mid-report
        pass
    finally:
        process.kill()
        process.join()
        ours.close()
    return reported


@pytest.mark.parametrize("seed", [1, 2])
def test_a_kill_under_load_loses_no_acknowledged_transaction_and_leaves_none_incomplete(
    tmp_path: Path, seed: int
) -> None:
    chance, reported = random.Random(seed), list[Report]()
    promised = 0
    for round_number in range(ROUNDS):
        reported += run_until_killed(tmp_path / "store", 100 * seed + round_number, chance.randrange(1, REPORTS_MAX))
        verify(tmp_path / "store", reported)
        with TransactionalStore.open(tmp_path / "store") as store:
            promised += len(store.in_doubt())
    assert any(what == "acknowledged" for what, _, _ in reported)
    assert promised


@pytest.mark.parametrize("lie", ["lost", "half", "undone", "promise"])
def test_the_check_detects_a_faulty_store(tmp_path: Path, lie: str) -> None:
    reported = run_until_killed(tmp_path / "store", 7, 400)
    with TransactionalStore.open(tmp_path / "store") as store:
        pages = store._parts.pages
        with pages.transaction() as database:
            if lie == "promise":
                database.execute("DELETE FROM prepared")
                database.execute("DELETE FROM prepared_hold")
                database.execute("DELETE FROM prepared_put")
                database.execute("DELETE FROM message WHERE id NOT IN (SELECT message_id FROM entry)")
                reported += [("begun", "x/0/0", {"removed": [], "added": []}), ("prepared", "x/0/0", None)]
            else:
                # "lost": a message of the fullest queue; "half": one of a shared message's entries; "undone": a token
                name = {"lost": "of-%", "half": "subscriber:all", "undone": "tokens"}[lie]
                fullest = (
                    "SELECT queue_id FROM entry JOIN queue ON queue.id = queue_id WHERE name LIKE ?"
                    " GROUP BY queue_id ORDER BY count(*) DESC LIMIT 1"
                )
                ((queue_id,),) = pages.numbers(fullest, (name,))
                put_back = "SELECT message_id FROM entry WHERE queue_id = ? ORDER BY position LIMIT 1"
                (message_id,) = database.execute(put_back, (queue_id,)).fetchone()
                database.execute("DELETE FROM entry WHERE queue_id = ? AND message_id = ?", (queue_id, message_id))
                database.execute("UPDATE message SET reference_count = reference_count - 1 WHERE id = ?", (message_id,))
                database.execute("DELETE FROM message WHERE reference_count = 0")
    with pytest.raises(AssertionError):
        verify(tmp_path / "store", reported)


def test_a_log_truncated_at_any_byte_contains_only_whole_transactions(tmp_path: Path) -> None:
    chance = random.Random(1)
    with TransactionalStore.open(tmp_path / "store") as store:
        store.create_queue("one")
        store.create_queue("other")
        store.checkpoint()
        for number in range(20):
            with store.transaction() as transaction:
                transaction.put("one", b"%d" % number + bytes(chance.randrange(6_000)))
                transaction.put("other", b"%d" % number)
        whole = (store.folder / "store.db-wal").stat().st_size
        for cut in sorted(chance.randrange(whole) for _ in range(40)):
            folder = tmp_path / f"cut-{cut}"
            folder.mkdir()
            shutil.copy(store.folder / "store.db", folder)
            (folder / "store.db-wal").write_bytes((store.folder / "store.db-wal").read_bytes()[:cut])
            with TransactionalStore.open(folder) as after:
                found = [body.rstrip(b"\0") for body in bodies(after, "one")]
                assert found == bodies(after, "other") == [b"%d" % number for number in range(len(found))]
                assert after.problems() == []


def test_every_commit_is_flushed_and_the_page_cache_is_bounded(tmp_path: Path) -> None:
    with TransactionalStore.open(tmp_path / "store") as store:
        store.create_queue("one")
        put_all(store, "one", b"a")
        writer = store._parts.pages._writer
        assert writer.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL: a flush of the log at each commit
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        for connection in (writer, store._parts.pages._reader):
            assert connection.execute("PRAGMA cache_size").fetchone() == (-(16 << 10),)  # KiB
