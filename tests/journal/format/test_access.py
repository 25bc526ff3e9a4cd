"""Who may read and write a journal's files: only the owner by default, or also a group."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.journal import Journal, NamedPosition, Tailer, Upkeep
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.format.compression import compress_block
from tests.journal.journals_made import BLOCK, ROOT, files_of

GROUP, USER, MEMBER = 61_234, 61_001, 61_002  # ids that no one has
is_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")


def modes_below(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in sorted(folder.rglob("*"))}


def fill(folder: Path, **options: object) -> None:
    """A journal with every kind of file."""
    with Journal.open(folder, block_size=BLOCK, **options) as journal:  # type: ignore[arg-type]
        for _ in range(12):
            journal.append(bytes(60_000))
        with Tailer(folder, name="reader") as tailer:
            tailer.read()
            tailer.commit()
    compress_block(files_of(folder)[0])


@pytest.fixture(params=[0o022, 0o077, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    former = os.umask(request.param)
    yield request.param
    os.umask(former)


def test_only_the_owner_may_read_a_journal_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "made" / "journal"
    fill(folder)
    modes = modes_below(tmp_path)
    assert {name for name, mode in modes.items() if mode == 0o700} == {"made", "made/journal", "made/journal/tailers"}
    assert {mode for mode in modes.values() if mode != 0o700} == {0o600}
    assert len(modes) >= 8


def test_a_group_may_read_and_write_a_journal_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "made" / "journal"
    fill(folder, group=os.getgid())
    modes = modes_below(tmp_path)
    assert {name for name, mode in modes.items() if mode == 0o2770} == {"made", "made/journal", "made/journal/tailers"}
    assert {mode for mode in modes.values() if mode != 0o2770} == {0o660}


def test_a_position_outside_of_a_journal_is_private(tmp_path: Path) -> None:
    NamedPosition(tmp_path / "made" / "position").store(1)
    assert modes_below(tmp_path) == {"made": 0o700, "made/position": 0o600}


def test_an_existing_journal_keeps_its_modes_and_new_files_have_them(tmp_path: Path) -> None:
    fill(tmp_path / "journal")
    for path in (tmp_path / "journal").iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)
    (tmp_path / "journal").chmod(0o755)
    count = len(files_of(tmp_path / "journal"))
    with Journal.open(tmp_path / "journal", block_size=BLOCK, group=os.getgid()) as journal:
        for _ in range(12):
            journal.append(bytes(60_000))
        Tailer(tmp_path / "journal", name="another").close()
    modes = modes_below(tmp_path)
    assert len(files_of(tmp_path / "journal")) > count
    assert modes.pop("journal/tailers/reader.position") == 0o600  # it existed
    assert modes.pop("journal/tailers/another.position") == 0o644
    assert set(modes.values()) == {0o755, 0o644}


def test_an_unknown_group_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name or id of a group of this host"):
        Journal.open(tmp_path / "journal", block_size=BLOCK, group="no such group")
    assert not (tmp_path / "journal").exists()


@pytest.mark.parametrize(("group", "group_id"), [("root", 0), (61_234, 61_234), ("61234", 61_234)])
def test_the_group_of_a_journal_may_be_given_by_its_name_or_its_id(group: str | int, group_id: int) -> None:
    assert Access.of_group(group).group_id == group_id


@pytest.mark.parametrize("group", ["no such group", "-1", "", "1.5", "²"])
def test_what_is_neither_name_nor_id_of_a_group_is_refused(group: str) -> None:
    with pytest.raises(ValueError, match="name or id of a group of this host"):
        Access.of_group(group)


AS_USER = """
import os, sys
from pathlib import Path
from tandemfeed.journal import Journal, ReadOnly, Tailer
folder, user, group = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with Journal.open(Path(sys.argv[4]), block_size=1 << 18) as journal, journal.tailer() as tailer:
    journal.append(b"everything is compiled")
    assert tailer.read()
os.setgroups([group] if group else [])
os.setgid(65534)
os.setuid(user)
os.umask(0o077)
try:
    with Tailer(folder) as tailer:
        print("read", len(list(tailer)))
except PermissionError:
    print("not read")
try:
    with Tailer(folder, name="member") as tailer:
        tailer.read()
        tailer.commit()
    print("committed")
except PermissionError:
    print("not committed")
try:
    with Journal.open(folder, block_size=1 << 18) as journal:
        for _ in range(12):
            journal.append(bytes(60_000))
    print("appended")
except (PermissionError, ReadOnly):
    print("not appended")
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can enter, unlike those of the test run."""
    with tempfile.TemporaryDirectory(prefix="tandemfeed-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def as_user(folder: Path, user: int, group: int, tmp_path: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", AS_USER, str(folder), str(user), str(group), str(tmp_path / "own")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@is_root
def test_members_of_the_group_append_and_others_cannot_even_read(shared: Path, tmp_path: Path) -> None:
    folder = shared / "journal"
    fill(folder, group=GROUP)
    assert as_user(folder, MEMBER, GROUP, tmp_path) == ["read 12", "committed", "appended"]
    assert as_user(folder, USER, GROUP, tmp_path) == ["read 24", "committed", "appended"]
    assert as_user(folder, MEMBER, 0, tmp_path) == ["not read", "not committed", "not appended"]
    assert {path.stat().st_gid for path in folder.rglob("*")} == {GROUP}
    with Journal.open(folder, block_size=BLOCK) as journal:  # what the members made is the owner's as well
        assert len(list(journal.records())) == 36


@is_root
def test_an_owner_who_takes_the_right_to_write_leaves_the_group_the_right_to_read(shared: Path, tmp_path: Path) -> None:
    """New files have the modes of the control file. Nothing that a reader needs has to be written."""
    folder = shared / "journal"
    fill(folder, group=GROUP)
    for path in (folder, *folder.rglob("*")):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~stat.S_IWGRP)
    assert as_user(folder, MEMBER, GROUP, tmp_path) == ["read 12", "not committed", "not appended"]
    with Journal.open(folder, block_size=BLOCK, upkeep=Upkeep(compress=True)) as journal:
        for _ in range(12):
            journal.append(bytes(60_000))
    assert as_user(folder, MEMBER, GROUP, tmp_path) == ["read 24", "not committed", "not appended"]


@is_root
def test_what_root_makes_in_a_users_journal_is_the_users(shared: Path, tmp_path: Path) -> None:
    folder = shared / "journal"
    fill(folder)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    with Journal.open(folder, block_size=BLOCK) as journal:
        for _ in range(12):
            journal.append(bytes(60_000))
    assert as_user(folder, USER, 0, tmp_path) == ["read 24", "committed", "appended"]
