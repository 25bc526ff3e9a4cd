"""What the durable writes promise: checked against a disk that keeps only what was flushed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.runtime import durable
from tandemfeed.runtime.durable import AppendedFile, FlushFailed, Unflushed
from tests.dying_process import die_after
from tests.losing_disk import FailsAt, losing_disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


def test_a_replaced_file_is_there_after_a_power_failure_with_its_mode(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        durable.replace_file(folder / "state", b"one")
        durable.replace_file(folder / "state", b"two")
        image = disk.image(tmp_path / "image")
    assert [each.name for each in image.iterdir()] == ["state"]
    assert (image / "state").read_bytes() == b"two"
    assert stat.S_IMODE((folder / "state").stat().st_mode) == 0o600


@pytest.mark.parametrize("operation", ["write", "flush", "rename"])
def test_a_replacement_that_fails_leaves_the_old_file_and_no_draft(
    folder: Path, tmp_path: Path, operation: str
) -> None:
    durable.replace_file(folder / "state", b"one")
    with losing_disk(folder, tmp_path / "kept", FailsAt(1, operations=(operation,))), pytest.raises(OSError):  # noqa: PT011
        durable.replace_file(folder / "state", b"two")
    assert [(each.name, each.read_bytes()) for each in folder.iterdir()] == [("state", b"one")]


def test_a_created_file_never_replaces_another(folder: Path) -> None:
    durable.create_file(folder / "key", b"one")
    with pytest.raises(FileExistsError):
        durable.create_file(folder / "key", b"two")
    assert (folder / "key").read_bytes() == b"one"


def test_renamed_and_removed_files_stay_so_after_a_power_failure(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        durable.create_file(folder / name, name.encode())
    with losing_disk(folder, tmp_path / "kept") as disk:
        durable.rename_file(folder / "a", folder / "c")
        durable.remove_file(folder / "b")
        image = disk.image(tmp_path / "image")
    assert [(each.name, each.read_bytes()) for each in image.iterdir()] == [("c", b"a")]


def test_a_file_that_was_moved_to_another_folder_is_only_there_after_a_power_failure(
    folder: Path, tmp_path: Path
) -> None:
    durable.make_folder(folder / "x")
    durable.create_file(folder / "a", b"a")
    with losing_disk(folder, tmp_path / "kept") as disk:
        durable.rename_file(folder / "a", folder / "x" / "b")
        image = disk.image(tmp_path / "image")
    assert [each.name for each in image.iterdir()] == ["x"]
    assert (image / "x" / "b").read_bytes() == b"a"


def test_a_flushed_tree_is_there_whole_after_a_power_failure_also_under_another_name(
    folder: Path, tmp_path: Path
) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        for name in ("a", "x/b", "x/y/c"):
            path = folder / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode() * 1_000)
        durable.flush_tree(folder / "tree")
        durable.rename_file(folder / "tree", folder / "renamed")
        image = disk.image(tmp_path / "image")
    assert [each.name for each in image.iterdir()] == ["renamed"]
    for name in ("a", "x/b", "x/y/c"):
        assert (image / "renamed" / name).read_bytes() == name.encode() * 1_000


def test_a_tree_of_which_one_flush_fails_is_not_flushed(folder: Path, tmp_path: Path) -> None:
    (folder / "x").mkdir()
    for name in ("a", "x/b"):
        (folder / name).write_bytes(b"content")
    for operation in ("flush", "flush_folder"):
        for first in (1, 2):
            fault = FailsAt(first, operations=(operation,))
            kept = tmp_path / f"kept-{operation}-{first}"
            with losing_disk(folder, kept, fault), pytest.raises(FlushFailed):
                durable.flush_tree(folder)


def test_new_folders_are_private_and_their_names_durable(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        durable.make_folder(folder / "x" / "y")
        durable.create_file(folder / "x" / "y" / "z", b"")
        image = disk.image(tmp_path / "image")
    assert (image / "x" / "y" / "z").exists()
    assert stat.S_IMODE((folder / "x").stat().st_mode) == 0o700


def test_an_appended_file_keeps_every_acknowledged_append_over_a_power_failure(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        file = AppendedFile.open(folder / "log")
        for number in range(100):
            file.append(b"%d\n" % number)
        image = disk.image(tmp_path / "image")
        file.close()
    assert (image / "log").read_bytes() == b"".join(b"%d\n" % number for number in range(100))


def test_what_a_dead_writer_left_is_on_the_disk_once_the_file_was_opened(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        (folder / "log").write_bytes(b"left by a killed process\n")
        AppendedFile.open(folder / "log").close()
        image = disk.image(tmp_path / "image")
    assert (image / "log").read_bytes() == b"left by a killed process\n"


@pytest.mark.parametrize("size", [10, 4_096, 5_000])
def test_an_append_whose_flush_failed_is_taken_back_and_the_next_one_is_durable(
    folder: Path, tmp_path: Path, size: int
) -> None:
    fault = FailsAt(3)
    with losing_disk(folder, tmp_path / "kept", fault) as disk:
        file = AppendedFile.open(folder / "log")
        file.append(b"a" * size)
        with pytest.raises(FlushFailed, match="could not be flushed to the disk"):
            file.append(b"b" * size)
        assert (folder / "log").read_bytes() == b"a" * size
        file.append(b"c" * size)
        image = disk.image(tmp_path / "image")
        file.close()
    assert (image / "log").read_bytes() == b"a" * size + b"c" * size


def test_a_file_whose_disk_stays_broken_fails_for_good(folder: Path, tmp_path: Path) -> None:
    fault = FailsAt(3, 2)
    with losing_disk(folder, tmp_path / "kept", fault):
        file = AppendedFile.open(folder / "log")
        file.append(b"a")
        for _ in range(3):  # the disk works again at the second try; the file does not
            with pytest.raises(FlushFailed):
                file.append(b"b")
        file.close()
        assert (folder / "log").read_bytes() == b"a"


def test_a_file_with_lost_pages_is_written_again_when_it_is_opened(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept", FailsAt(1)) as disk:
        (folder / "log").write_bytes(b"left by a killed process\n")
        AppendedFile.open(folder / "log").close()
        image = disk.image(tmp_path / "image")
    assert (image / "log").read_bytes() == b"left by a killed process\n"


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dies", [False, True])
def test_a_file_that_the_disk_did_not_let_open_is_written_again_by_the_next_opening(
    folder: Path, tmp_path: Path, count: int, dies: bool
) -> None:
    """The flush that was refused is reported once, perhaps to a process that dies of it."""
    with losing_disk(folder, tmp_path / "kept") as disk:
        (folder / "log").write_bytes(b"left by a killed process\n")
        disk.fault = FailsAt(1, count)
        flush = disk.flush

        def flush_or_die(descriptor: int, path: Path) -> None:
            try:
                flush(descriptor, path)
            except OSError:
                os._exit(0)

        def open_it() -> None:
            if dies:
                disk.flush = flush_or_die  # type: ignore[method-assign]
            with contextlib.suppress(OSError):
                AppendedFile.open(folder / "log").close()
            os._exit(0)

        with pytest.raises(AssertionError, match="before it had a result"):
            die_after(open_it)
        disk.fault = lambda operation, path: None
        AppendedFile.open(folder / "log").close()
        image = disk.image(tmp_path / "image")
    assert (image / "log").read_bytes() == b"left by a killed process\n"
    assert [each.name for each in folder.iterdir() if not each.name.endswith(".draft")] == ["log"]


def test_what_an_append_left_that_the_disk_refused_counts_for_the_next_process_only_once_it_is_on_the_disk(
    folder: Path, tmp_path: Path
) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        file = AppendedFile.open(folder / "log")
        file.append(b"acknowledged\n")
        disk.fault = FailsAt(1, 2)
        with pytest.raises(FlushFailed):
            file.append(b"refused\n")
        assert file.has_failed
        with (folder / "log").open("ab") as left:
            left.write(b"refused\n")  # as if it could not be cut either
        disk._forget_unflushed(folder / "log")
        file.close()
        AppendedFile.open(folder / "log").close()
        image = disk.image(tmp_path / "image")
    assert (image / "log").read_bytes() == (folder / "log").read_bytes() == b"acknowledged\nrefused\n"


def test_a_full_disk_takes_back_what_was_appended_in_part(folder: Path, tmp_path: Path) -> None:
    fault = FailsAt(2, operations=("write",), number=errno.ENOSPC)
    with losing_disk(folder, tmp_path / "kept", fault):
        file = AppendedFile.open(folder / "log")
        file.append(b"a")
        with pytest.raises(OSError, match="No space left"):
            file.append(b"b")
        file.append(b"c")
        file.close()
    assert (folder / "log").read_bytes() == b"ac"


def test_a_failed_file_takes_appends_again_after_it_was_written_again(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept", FailsAt(3, 3)) as disk:
        file = AppendedFile.open(folder / "log")
        file.append(b"a")
        with pytest.raises(FlushFailed):
            file.append(b"b")
        assert file.has_failed
        with pytest.raises(FlushFailed):
            file.restore()
        file.restore()
        file.append(b"c")
        image = disk.image(tmp_path / "image")
        file.close()
    assert (folder / "log").read_bytes() == (image / "log").read_bytes() == b"ac"
    assert [each.name for each in folder.iterdir()] == ["log"]


def test_a_cut_that_could_not_be_flushed_is_written_again_before_the_next_append(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept", FailsAt(3)) as disk:
        file = AppendedFile.open(folder / "log")
        file.append(b"abc")
        with pytest.raises(FlushFailed):
            file.truncate(1)
        with pytest.raises(FlushFailed):
            file.append(b"d")
        file.restore()
        file.append(b"d")
        image = disk.image(tmp_path / "image")
        file.close()
    assert (folder / "log").read_bytes() == (image / "log").read_bytes() == b"ad"


def test_a_rotated_file_is_kept_under_the_other_name_and_the_next_begins_empty(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        file = AppendedFile.open(folder / "log")
        for number in range(3):
            file.append(b"%d" % number)
            file.rotate(folder / f"log.{number}")
        file.append(b"last")
        image = disk.image(tmp_path / "image")
        file.close()
    found = {each.name: each.read_bytes() for each in image.iterdir()}
    assert found == {"log.0": b"0", "log.1": b"1", "log.2": b"2", "log": b"last"}
    assert file.path == folder / "log"


@pytest.mark.parametrize(
    ("operation", "first"), [("flush", 1), ("flush_folder", 1), ("flush_folder", 2), ("rename", 1), ("rename", 2)]
)
def test_a_rotation_that_fails_leaves_a_file_that_takes_appends_and_the_next_call_does_the_rest(
    folder: Path, tmp_path: Path, operation: str, first: int
) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        file = AppendedFile.open(folder / "log")
        file.append(b"a")
        disk.fault = FailsAt(first, operations=(operation,))
        with pytest.raises(OSError):  # noqa: PT011
            file.rotate(folder / "archive")
        file.append(b"b")
        assert b"".join(each.read_bytes() for each in disk.image(tmp_path / "image").iterdir()) == b"ab"
        file.rotate(folder / "archive")
        file.append(b"c")
        image = disk.image(tmp_path / "image-2")
        file.close()
    assert {each.name: each.read_bytes() for each in image.iterdir()} == {"archive": b"ab", "log": b"c"}


def test_a_rotation_never_replaces_a_file(folder: Path) -> None:
    durable.create_file(folder / "archive", b"another")
    file = AppendedFile.open(folder / "log")
    file.append(b"a")
    with pytest.raises(FileExistsError):
        file.rotate(folder / "archive")
    file.append(b"b")
    file.close()
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == {"archive": b"another", "log": b"ab"}


def test_drafts_that_a_crash_has_left_are_removed(folder: Path) -> None:
    (folder / ".key.17.4711.draft").write_bytes(b"secret")
    (folder / ".key2.17.4711.draft").write_bytes(b"secret")
    (folder / "key").write_bytes(b"secret")
    durable.remove_drafts(folder, "key")
    assert sorted(each.name for each in folder.iterdir()) == [".key2.17.4711.draft", "key"]
    durable.remove_drafts(folder)
    assert [each.name for each in folder.iterdir()] == ["key"]


def test_a_rename_that_was_not_flushed_has_happened_as_a_whole_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    durable.create_file(folder / "log", b"first")
    seen = set()
    with losing_disk(folder, tmp_path / "kept") as disk:
        durable.create_file(folder / "draft", b"second")
        durable.DISK.rename(folder / "log", folder / "archive")
        durable.DISK.rename(folder / "draft", folder / "log")
        for seed in range(20):
            image = disk.image(tmp_path / f"image-{seed}", random.Random(seed))
            seen.add(tuple(sorted((each.name, each.read_bytes()) for each in image.iterdir())))
    assert seen == {
        (("draft", b"second"), ("log", b"first")),
        (("archive", b"first"), ("log", b"second")),
    }


def test_what_failed_to_be_flushed_is_not_forgotten_and_fails_again(folder: Path, tmp_path: Path) -> None:
    (folder / "a").write_bytes(b"a")
    (folder / "b").write_bytes(b"b")
    with losing_disk(folder, tmp_path / "kept", FailsAt(1)):
        unflushed = Unflushed()
        unflushed.add_file(folder / "a")
        unflushed.add_file(folder / "b")
        for _ in range(2):
            with pytest.raises(FlushFailed):
                unflushed.flush()
        assert unflushed.files == [folder / "a", folder / "b"]


def test_a_flush_waits_for_that_of_another_thread(folder: Path, tmp_path: Path) -> None:
    (folder / "a").write_bytes(b"a")
    reached, go = threading.Event(), threading.Event()

    def fault(operation: str, path: Path) -> None:
        if path.name == "a":
            reached.set()
            assert go.wait(30)

    with losing_disk(folder, tmp_path / "kept", fault):
        unflushed = Unflushed()
        unflushed.add_file(folder / "a")
        first = threading.Thread(target=unflushed.flush)
        first.start()
        assert reached.wait(30)
        second = threading.Thread(target=unflushed.flush)
        second.start()
        second.join(0.05)
        assert second.is_alive()
        go.set()
        first.join(30)
        second.join(30)
        assert not second.is_alive()


def test_a_file_that_was_flushed_after_a_failure_is_still_lost_unless_it_is_written_again(
    folder: Path, tmp_path: Path
) -> None:
    path = folder / "data"
    path.write_bytes(b"old")
    with losing_disk(folder, tmp_path / "kept", FailsAt(1)) as disk:
        path.write_bytes(b"new")
        with pytest.raises(FlushFailed):
            durable.flush_file(path)
        durable.flush_file(path)
        assert (disk.image(tmp_path / "image-1") / "data").read_bytes() == b"old"
        durable.rewrite(path)
        assert (disk.image(tmp_path / "image-2") / "data").read_bytes() == b"new"


def test_a_new_file_is_not_taken_for_a_removed_one_whose_flush_failed(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept", FailsAt(1)) as disk:
        with pytest.raises(FlushFailed):
            durable.replace_file(folder / "state", b"content")
        durable.replace_file(folder / "state", b"content")
        assert (disk.image(tmp_path / "image") / "state").read_bytes() == b"content"


def test_a_flush_reaches_the_kernel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[str, str]] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(
            os, name, lambda descriptor, name=name: flushed.append((name, os.readlink(f"/proc/self/fd/{descriptor}")))
        )
    durable.replace_file(folder / "state", b"one")
    durable.sync_folder(folder)
    drafts, folders = flushed[:1], flushed[1:]
    assert [name for name, _ in drafts] == ["fdatasync"]
    assert folders == [("fsync", str(folder))] * 2


def test_a_renamed_file_has_its_new_name_after_a_power_failure(folder: Path, tmp_path: Path) -> None:
    durable.create_file(folder / "a", b"a")
    with losing_disk(folder, tmp_path / "kept") as disk:
        durable.rename_file(folder / "a", folder / "c")
        image = disk.image(tmp_path / "image")
    assert [each.name for each in image.iterdir()] == ["c"]


def test_new_names_in_a_folder_are_durable_after_a_flush_of_what_was_added(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        unflushed = Unflushed()
        (folder / "a").write_bytes(b"a")
        unflushed.add_file(folder / "a")
        unflushed.add_folder(folder)
        unflushed.flush()
        image = disk.image(tmp_path / "image")
    assert [(each.name, each.read_bytes()) for each in image.iterdir()] == [("a", b"a")]


def test_a_truncated_file_is_short_after_a_power_failure(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        file = AppendedFile.open(folder / "log")
        file.append(b"abcdef")
        file.truncate(2)
        image = disk.image(tmp_path / "image")
        file.append(b"xy")
        file.close()
    assert (image / "log").read_bytes() == b"ab"
    assert (folder / "log").read_bytes() == b"abxy"


@pytest.mark.parametrize("size", [1, 5_000])  # less than the file's buffer, and more
def test_what_a_function_writes_to_a_file_is_durable(folder: Path, tmp_path: Path, size: int) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        durable.replace_file(folder / "state", lambda file: [file.write(b"a" * size) for _ in range(3)])
        image = disk.image(tmp_path / "image")
    assert (image / "state").read_bytes() == b"a" * 3 * size


class RecordingDisk(durable.Disk):
    """The real disk, which also lists what is written again."""

    def __init__(self) -> None:
        self.rewritten: list[tuple[int, int]] = []

    def rewrite(self, descriptor: int, offset: int, data: bytes) -> None:
        self.rewritten.append((offset, len(data)))
        super().rewrite(descriptor, offset, data)


@pytest.mark.parametrize(
    ("size", "arguments", "end", "pages"),
    [
        (10_000, (), None, [(0, 10_000)]),
        (10_000, (5_000,), None, [(4_096, 5_904)]),
        (10_000, (0,), 100, [(0, 4_096)]),
        (10_000, (0,), 9_000, [(0, 10_000)]),
        (20_000, (0, (9_000, 9_001)), 1, [(0, 4_096), (8_192, 4_096)]),
        (durable.PIECE + 5_000, (4_096,), None, [(4_096, durable.PIECE - 4_096), (durable.PIECE, 5_000)]),
        (0, (), None, []),
    ],
)
@pytest.mark.parametrize("can_write_directly", [True, False])
def test_a_range_is_written_again_by_whole_pages_and_keeps_its_bytes(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    arguments: tuple[Any, ...],
    end: int | None,
    pages: list[tuple[int, int]],
    can_write_directly: bool,
) -> None:
    disk, written = RecordingDisk(), []
    monkeypatch.setattr(durable, "DISK", disk)
    real_write = os.pwrite

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        is_direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        if is_direct and not can_write_directly:
            raise OSError(errno.EINVAL, "no direct writes here")
        written.append((offset, len(data), bool(is_direct)))
        return real_write(descriptor, data, offset)

    path, content = folder / "data", os.urandom(size)
    path.write_bytes(content)
    monkeypatch.setattr(os, "pwrite", pwrite)
    durable.rewrite(path, *arguments, end=end)
    assert path.read_bytes() == content
    assert disk.rewritten == pages
    whole = [(offset, count - count % durable.PAGE, True) for offset, count in pages if count >= durable.PAGE]
    if can_write_directly:
        rest = [(o + c - c % durable.PAGE, c % durable.PAGE, False) for o, c in pages if c % durable.PAGE]
        assert sorted(written) == sorted(whole + rest)
    else:
        assert written == [(offset, count, False) for offset, count in pages]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_direct_write_that_fails_is_a_failed_flush_and_the_bytes_can_still_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path, content = folder / "data", os.urandom(8_192)
    path.write_bytes(content)
    real_write = os.pwrite

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            real_write(path_descriptor, b"\0" * len(data), offset)  # the page cache no longer has them
            raise OSError(number, os.strerror(number))
        return real_write(descriptor, data, offset)

    path_descriptor = os.open(path, os.O_WRONLY)
    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(FlushFailed, match="could not be flushed"):
        durable.rewrite(path)
    os.close(path_descriptor)
    assert path.read_bytes() == content


def test_nothing_here_leaves_a_descriptor_open(folder: Path, tmp_path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    (folder / "log").write_bytes(b"left by a killed process\n")
    with losing_disk(folder, tmp_path / "kept", FailsAt(1)):
        AppendedFile.open(folder / "log").close()  # written again, elsewhere
    AppendedFile.open(folder / "log").close()
    durable.create_file(folder / "a", b"a")
    with pytest.raises(FileExistsError):
        durable.create_file(folder / "a", b"b")
    durable.replace_file(folder / "a", b"b")
    durable.replace_file(folder / "a", lambda file: file.write(b"c"))
    durable.flush_file(folder / "a")
    durable.rewrite(folder / "a")
    durable.rename_file(folder / "a", folder / "b")
    durable.remove_file(folder / "b")
    durable.make_folder(folder / "x" / "y")
    with pytest.raises(OSError, match="No such file"):
        AppendedFile.open(folder / "none" / "log")
    assert count() == before


def test_a_file_that_cannot_be_created_whole_is_not_there(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept", FailsAt(1)), pytest.raises(FlushFailed):
        durable.create_file(folder / "key", b"one")
    assert list(folder.iterdir()) == []


def test_a_missing_file_is_removed_without_a_flush(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        durable.remove_file(folder / "none")
        assert disk.flushes == []


def test_a_disk_that_takes_nothing_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable.Disk, "write", lambda disk, descriptor, data: 0)
    with pytest.raises(OSError, match="No space left"):
        durable.replace_file(folder / "state", b"one")
    assert list(folder.iterdir()) == []


def test_a_file_that_failed_for_good_says_which_flush_failed(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept", FailsAt(2, 2)):
        file = AppendedFile.open(folder / "log")
        failures = []
        for _ in range(2):
            with pytest.raises(FlushFailed) as raised:
                file.append(b"b")
            failures.append(raised.value)
        file.close()
    assert failures[0] is failures[1]


def test_a_file_has_the_mode_that_was_asked_for_whatever_the_umask(folder: Path) -> None:
    former = os.umask(0o077)
    try:
        durable.replace_file(folder / "shared", b"", 0o660)
        durable.replace_file(folder / "private", b"")
    finally:
        os.umask(former)
    assert [(folder / name).stat().st_mode & 0o777 for name in ("shared", "private")] == [0o660, 0o600]


def test_a_rewrite_that_was_interrupted_leaves_a_copy_from_which_it_is_restored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process may have dropped the only copy from the page cache, while the disk refused to take it."""
    path, content = folder / "data", os.urandom(20_000)
    path.write_bytes(content)

    class Killed(BaseException):
        pass

    def drop(descriptor: int, offset: int, data: bytes) -> None:
        os.pwrite(descriptor, bytes(len(data)), offset)
        raise Killed

    with losing_disk(folder, tmp_path / "kept") as disk:
        monkeypatch.setattr(disk, "rewrite", drop)
        with pytest.raises(Killed):
            durable.rewrite(path, 0, (12_000, 13_000), end=4_096, copied=True)
        assert path.read_bytes() != content
        durable.restore_interrupted(path)
        assert path.read_bytes() == content
        monkeypatch.undo()
        durable.DISK = disk
        durable.rewrite(path, copied=True)
        assert path.read_bytes() == content
        durable.restore_interrupted(path)
        image = disk.image(tmp_path / "image")
    assert [each.name for each in folder.iterdir()] == [each.name for each in image.iterdir()] == ["data"]
    assert (image / "data").read_bytes() == content


def test_a_disk_that_refuses_the_copy_leaves_the_page_cache_as_it_is(folder: Path, tmp_path: Path) -> None:
    path = folder / "data"
    path.write_bytes(bytes(range(256)) * 64)
    with losing_disk(folder, tmp_path / "kept", FailsAt(1)) as disk:
        rewritten: list[int] = []
        disk.rewrite = lambda descriptor, offset, data: rewritten.append(offset)  # type: ignore[method-assign]
        with pytest.raises(FlushFailed):
            durable.rewrite(path, copied=True)
    assert not rewritten
    assert [each.name for each in folder.iterdir()] == ["data"]


def test_a_copy_that_was_not_completed_is_not_restored(folder: Path) -> None:
    path = folder / "data"
    path.write_bytes(b"a" * 8_192)
    for torn in (b"", b"\1\2", b"\1\2\3\4" + b"b" * 100):
        (folder / ".data.again").write_bytes(torn)
        durable.restore_interrupted(path)
        assert path.read_bytes() == b"a" * 8_192


def test_every_descriptor_that_was_flushed_before_learns_of_a_failure_once(folder: Path, tmp_path: Path) -> None:
    """As on a real disk: see tests/test_failing_device.py."""
    path = folder / "file"
    with losing_disk(folder, tmp_path / "kept") as disk:
        one, other = (durable.open_to_append(path, 0o600) for _ in range(2))
        for descriptor in (one, other):
            os.write(descriptor, b"a")
            durable.flush(descriptor, path)
        os.write(one, b"b")
        disk.fault = FailsAt(1)
        for descriptor in (one, other):
            with pytest.raises(FlushFailed):
                durable.flush(descriptor, path)
        third = durable.open_to_append(path, 0o600)
        for descriptor in (one, other, third):
            durable.flush(descriptor, path)
            os.close(descriptor)
