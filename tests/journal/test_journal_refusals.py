"""Bad input of every kind causes a clear error and damages nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.journal import (
    BlockCorrupt,
    DiskFull,
    ForeignFile,
    Journal,
    JournalClosed,
    NetworkFileSystem,
    NewerFormat,
    ReadOnly,
    SettingsDiffer,
    Tailer,
    Upkeep,
    WrongKey,
)
from tandemfeed.journal.format.block import blocks_in
from tandemfeed.journal.format.body import Body
from tandemfeed.journal.format.filesystem import file_system_type, require_local
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN, CONTROL_NAME, PIDS
from tandemfeed.journal.persistent_queue import PersistentQueue
from tandemfeed.journal.transactional import TransactionalStore
from tests.small_disk import SmallDisk

BLOCK = BLOCK_SIZE_MIN
KEY = bytes(range(32))


def _contents(folder: Path) -> dict[str, bytes]:
    """The contents of every file, without the list of current appenders."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    if CONTROL_NAME in found:
        found[CONTROL_NAME] = found[CONTROL_NAME][:PIDS]
    return found


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    with Journal.open(tmp_path / "journal", block_size=BLOCK) as journal:
        journal.append_batch([b"one", b"two"])
    return tmp_path / "journal"


def test_a_folder_with_foreign_files_is_refused_and_unchanged(journal: Path) -> None:
    path = blocks_in(journal)[0].path
    for damage, error in (
        (lambda data: b"\x7fELF" + data[4:], ForeignFile),
        (lambda data: data[:4] + b"\x09" + data[5:], NewerFormat),
        (lambda data: data[:30] + b"\xff" + data[31:], BlockCorrupt),
        (lambda data: b"text", ForeignFile),
    ):
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        before = _contents(journal)
        with pytest.raises(error, match=path.name):
            Journal.open(journal, block_size=BLOCK)
        with pytest.raises(error, match=path.name), Tailer(journal) as tailer:
            tailer.read()
        assert _contents(journal) == before
        path.write_bytes(whole)
    with Journal.open(journal, block_size=BLOCK) as opened:
        assert [record for _, record in opened.records()] == [b"one", b"two"]


def test_a_foreign_control_file_is_refused_and_unchanged(journal: Path) -> None:
    path = journal / CONTROL_NAME
    whole = path.read_bytes()
    for data, error in (
        (b"TFJX" + whole[4:], ForeignFile),
        (whole[:4] + b"\x63" + whole[5:], NewerFormat),
        (whole[:40] + b"\xff" + whole[41:], BlockCorrupt),
        (whole[:100], ForeignFile),
    ):
        path.write_bytes(data)
        with pytest.raises(error, match=CONTROL_NAME):
            Journal.open(journal, block_size=BLOCK)
        with pytest.raises(error, match=CONTROL_NAME):
            Tailer(journal).read()
        assert path.read_bytes() == data
    path.unlink()
    with pytest.raises(ForeignFile, match="without"):
        Journal.open(journal, block_size=BLOCK)
    assert not path.exists()


def test_a_block_of_another_journal_is_refused(journal: Path, tmp_path: Path) -> None:
    with Journal.open(tmp_path / "other", block_size=BLOCK) as other:
        other.append(b"other")
    name = blocks_in(journal)[0].path.name
    (journal / name).write_bytes(blocks_in(tmp_path / "other")[0].path.read_bytes())
    with pytest.raises(ForeignFile, match="another journal"):
        Journal.open(journal, block_size=BLOCK)
    (journal / "notes.tfj").write_bytes(b"")
    with pytest.raises(ForeignFile, match="notes"):
        Journal.open(journal, block_size=BLOCK)


def test_different_settings_are_refused_and_named(journal: Path) -> None:
    with pytest.raises(SettingsDiffer, match=f"block_size {BLOCK}"):
        Journal.open(journal, block_size=2 * BLOCK)
    with pytest.raises(SettingsDiffer, match="is a journal, not a queue"):
        Journal.open(journal, block_size=BLOCK, face="queue")
    with pytest.raises(ValueError, match="whole pages"):
        Journal.open(journal, block_size=BLOCK + 1)
    with pytest.raises(ValueError, match="FORTNIGHTLY"):
        Journal.open(journal, block_size=BLOCK, roll_cycle="FORTNIGHTLY")


def test_a_wrong_or_missing_key_opens_nothing_and_no_file_contains_plaintext(tmp_path: Path) -> None:
    secret = b"the quick brown fox " * 20
    with Journal.open(tmp_path, block_size=BLOCK, key=KEY) as sealed:
        index = sealed.append(secret)
        sealed.append_batch([secret, b"", b"short"])
        assert sealed.read(index) == secret
    assert all(secret[:20] not in data for data in _contents(tmp_path).values())
    for key in (None, bytes(32)):
        with pytest.raises(WrongKey, match="encrypted"):
            Journal.open(tmp_path, block_size=BLOCK, key=key)
        with pytest.raises(WrongKey, match="encrypted"), Tailer(tmp_path, key=key) as tailer:
            tailer.read()
    with Tailer(tmp_path, key=KEY) as tailer:
        records = [record for _, record in tailer]
        assert records == [secret, secret, b"", b"short"]
        assert {type(record) for record in records} == {bytes}  # as in a journal without a key
    with pytest.raises(ValueError, match="32 bytes"):
        Journal.open(tmp_path, block_size=BLOCK, key=b"short")
    Journal.open(tmp_path / "plain", block_size=BLOCK).close()
    with pytest.raises(WrongKey, match="not encrypted"):
        Journal.open(tmp_path / "plain", block_size=BLOCK, key=KEY)


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /data rw,relatime - nfs4 host:/export rw,vers=4.2
41 40 0:36 / /data/local\\040disk rw - xfs /dev/vdb rw
42 22 0:37 / /mnt/remote rw - fuse.sshfs user@host: rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/srv/journal", "ext4"),
        ("/data/journal", "nfs4"),
        ("/data/local disk/journal", "xfs"),
        ("/database", "ext4"),
        ("/mnt/remote", "fuse.sshfs"),
    ],
)
def test_a_network_file_system_is_detected_from_its_mount(folder: str, kind: str) -> None:
    assert file_system_type(Path(folder), MOUNTS) == kind
    if kind in ("nfs4", "fuse.sshfs"):
        with pytest.raises(NetworkFileSystem, match=rf"{kind}.*local disk"):
            require_local(Path(folder), MOUNTS)
    else:
        require_local(Path(folder), MOUNTS)


READ_ONLY = """
import os, sys
from pathlib import Path
from tandemfeed.journal import Journal, ReadOnly, Tailer
folder = Path(sys.argv[1])
with Journal.open(Path(sys.argv[2]), block_size=1 << 18) as journal, journal.tailer() as tailer:
    journal.append(b"everything is imported")
    assert tailer.read()
os.setgid(65534); os.setuid(65534)
for path in (folder, folder / "inside" / "new"):
    try:
        Journal.open(path, block_size=1 << 18)
    except ReadOnly as refused:
        print("refused", refused)
print([record for _, record in Tailer(folder)])
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike those of the test run."""
    with tempfile.TemporaryDirectory(prefix="tandemfeed-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user who may not write")
def test_a_read_only_folder_cannot_be_appended_to_but_can_be_read(open_folder: Path) -> None:
    folder = open_folder / "journal"
    with Journal.open(folder, block_size=BLOCK) as journal:
        journal.append_batch([b"one", b"two"])
    for path in folder.iterdir():
        path.chmod(0o644)
    folder.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(folder), str(open_folder / "other")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.count("refused") == 2, done.stderr
    assert done.stdout.endswith("[b'one', b'two']\n")


def _append_until_refused(journal: Journal, record: bytes, written: list[tuple[int, bytes]]) -> None:
    for _ in range(100):
        written.append((journal.append(record), record))


def test_a_full_disk_raises_disk_full_and_appending_resumes_when_there_is_space(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with SmallDisk(disk, "2m"), Journal.open(disk / "journal", block_size=BLOCK) as journal:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        written: list[tuple[int, bytes]] = []
        record = os.urandom(30_000)
        with pytest.raises(DiskFull, match="free disk space"):
            _append_until_refused(journal, record, written)
        assert len(written) >= 8
        with pytest.raises(DiskFull):
            journal.append(record)
        assert list(journal.records()) == written
        ballast.unlink()
        written += [(journal.append(record), record) for _ in range(10)]
        assert list(journal.records()) == written


def test_new_blocks_leave_the_required_disk_space_free(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    everything = disk.f_bavail * disk.f_frsize
    with pytest.raises(DiskFull, match="must stay free"):
        Journal.open(tmp_path / "journal", block_size=BLOCK, upkeep=Upkeep(free_disk_min=2 * everything))
    Journal.open(tmp_path / "journal", block_size=BLOCK).close()  # the refused attempt left no obstacle


def test_a_closed_journal_refuses_every_call(journal: Path) -> None:
    opened = Journal.open(journal, block_size=BLOCK)
    opened.close()
    opened.close()
    for work in (lambda: opened.append(b"x"), lambda: opened.append_batch([b"x"]), opened.sync):
        with pytest.raises(JournalClosed, match="open it again"):
            work()


def test_an_invalid_batch_is_refused(journal: Path) -> None:
    with Journal.open(journal, block_size=BLOCK) as opened:
        data = np.zeros(10, np.uint8)
        for ends in ([], [3, 2, 10], [3, 9], [-1, 10], [3, 11]):
            with pytest.raises(ValueError, match=r"batch|ends"):
                Body.of_columns(data, np.array(ends, np.int64))
        with pytest.raises(ValueError, match="contiguous"):
            opened.append_rows(np.zeros((4, 4), np.uint8)[:, ::2])
        assert len(list(opened.records())) == 2


def test_a_file_instead_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ReadOnly, match="is a file"):
        Journal.open(tmp_path / "file")
    assert Tailer(tmp_path / "nothing").read() is None


def test_a_time_that_is_not_a_number_is_refused_with_what_it_must_be(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal, journal.tailer() as tailer:
        journal.append(b"record")
        with pytest.raises(TypeError, match="the nanoseconds since 1970, is '2026'; expected an integer"):
            tailer.to_time("2026")  # type: ignore[arg-type]


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    with Journal.open(str(tmp_path / "journal")) as journal:
        journal.append(b"record")
        assert Tailer(str(tmp_path / "journal")).read() == (journal.next_index - 1, b"record")
    with PersistentQueue.open(str(tmp_path / "queue"), more_paths=[str(tmp_path / "more")]) as queue:
        assert queue.put(b"item") == 0
    with TransactionalStore.open(str(tmp_path / "store")) as store:
        assert store.queues() == []
