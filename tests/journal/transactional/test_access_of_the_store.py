"""Who may read and write a store's files: only the owner by default, or also a group."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.journal.transactional import StoreLimits, TransactionalStore
from tests.journal.journals_made import ROOT

GROUP, USER, MEMBER = 61_234, 61_001, 61_002  # ids that no one has
LIMITS = StoreLimits(volatile_memory_bytes_max=1)
FILES = {"store.db", "store.db-wal", "store.db-shm", "store.lock", "store.reserve", "swap-00000001.tfs"}
is_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")


@pytest.fixture(params=[0o022, 0o077, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    former = os.umask(request.param)
    yield request.param
    os.umask(former)


def use(folder: Path, group: str | int | None = None) -> dict[str, int]:
    """Make every kind of file; returns the modes of all, and of the folder as `.`."""
    with TransactionalStore.open(folder, limits=LIMITS, group=group) as store:
        if not store.queues():
            store.create_queue("orders")
        for persistent in (True, False):
            transaction = store.transaction()
            transaction.put("orders", b"message", persistent=persistent)
            transaction.commit()
        paths = {".": folder, **{each.name: each for each in folder.iterdir()}}
        return {name: stat.S_IMODE(path.stat().st_mode) for name, path in paths.items()}


def test_a_new_store_is_for_its_user_only_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    modes = use(tmp_path / "store")
    assert modes.pop(".") == 0o700
    assert modes == dict.fromkeys(FILES, 0o600)


def test_a_new_store_can_be_shared_with_a_group_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    modes = use(tmp_path / "store", group=os.getgid())
    assert modes.pop(".") == 0o2770
    assert modes == dict.fromkeys(FILES, 0o660)


def test_an_empty_folder_that_exists_is_shared_too(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o700)
    assert use(tmp_path / "store", group=os.getgid())["."] == 0o2770


def test_an_existing_store_keeps_its_modes_and_new_files_have_those_of_the_database(tmp_path: Path) -> None:
    use(tmp_path / "store")
    (tmp_path / "store").chmod(0o2750)
    (tmp_path / "store" / "store.db").chmod(0o640)
    (tmp_path / "store" / "store.reserve").unlink()
    modes = use(tmp_path / "store", group=os.getgid())
    assert modes.pop(".") == 0o2750
    assert modes.pop("store.lock") == 0o600  # it existed
    assert modes == dict.fromkeys(FILES - {"store.lock"}, 0o640)


def test_an_unknown_group_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name or id of a group of this host"):
        TransactionalStore.open(tmp_path / "store", group="no such group")
    assert not (tmp_path / "store").exists()


AS_USER = """
import os, sys
from pathlib import Path
from tandemfeed.journal.transactional import StoreLimits, StoreReadOnly, TransactionalStore
folder, user, group, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.setgroups([group] if group else [])
os.setgid(65534)
os.setuid(user)
os.umask(0o077)
try:
    store = TransactionalStore.open(folder, limits=StoreLimits(volatile_memory_bytes_max=1))
except StoreReadOnly:
    print("not opened")
    raise SystemExit
for persistent in (True, False):
    transaction = store.transaction()
    transaction.put("orders", b"message", persistent=persistent)
    transaction.commit()
print(store.queues()[0].count)
sys.stdout.flush()
if end == "close":
    store.close()
os._exit(0)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can enter, but not list; unlike those of the test run."""
    with tempfile.TemporaryDirectory(prefix="tandemfeed-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def as_user(folder: Path, user: int, group: int, end: str = "close") -> str:
    done = subprocess.run(
        [sys.executable, "-c", AS_USER, str(folder), str(user), str(group), end],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@is_root
@pytest.mark.parametrize("end", ["close", "crash"])
def test_members_of_the_group_use_the_store_in_turn_and_others_cannot_open_it(shared: Path, end: str) -> None:
    folder = shared / "store"
    use(folder, group=GROUP)
    assert as_user(folder, MEMBER, GROUP, end) == "3"  # with the one that is not persistent
    assert as_user(folder, USER, GROUP, end) == "4"
    assert as_user(folder, MEMBER, 0) == "not opened"
    assert {path.stat().st_gid for path in folder.iterdir()} == {GROUP}
    assert "store.lock" in use(folder)  # what the members made is the owner's as well
    assert as_user(folder, MEMBER, GROUP, end) == "6"


@is_root
def test_what_root_makes_in_a_users_store_is_the_users(shared: Path) -> None:
    folder = shared / "store"
    use(folder)
    (folder / "store.reserve").unlink()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    use(folder)
    assert as_user(folder, USER, 0) == "4"
