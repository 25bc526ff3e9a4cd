"""A disk for tests that keeps only what was flushed, and can refuse flushes.

It takes the place of `tandemfeed.runtime.durable.DISK`. A flush copies the file's present content into a folder of the
disk's own, a flush of a folder copies its list of names; `image` then makes the folder as a power failure would leave
it. The copies are files, so that child processes that were forked, or given the same folder, add to them.

After a flush that failed, the kernel has marked the pages clean: they are lost unless they are written again. Pages
that did not change between the failed flush and the next one stay lost here too, unless `rewrite` wrote them. Every
descriptor that was flushed before learns of the failure, once, at its own next flush; one opened later does not.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from tandemfeed.runtime import durable

PAGE = durable.PAGE
KNOWN = 40  # marks what was flushed through a descriptor: the signal of an open file description, which is 0 at first
# Called with the operation (flush, flush_folder, write, rewrite, rename, remove) and the path; may raise or wait.
Fault = Callable[[str, Path], None]


class LosingDisk(durable.Disk):
    """Everything below a folder, as it is on the disk.

    Args:
        root: what it contains now counts as durable.
        kept: a folder for the copies, on the same file system and not below `root`.
        fault: called before each operation.
    """

    def __init__(self, root: Path, kept: Path, fault: Fault = lambda operation, path: None) -> None:
        self.root, self._kept, self.fault = root.resolve(), kept, fault
        self._former = durable.Disk()
        self._failures: dict[int, int] = {}  # how often a flush failed, by inode
        self._reported: dict[int, tuple[int, int]] = {}  # inode and the count that it knows, by descriptor
        self.flushes: list[Path] = []  # of this process, in order
        self.stored_to = ""  # how the names of files end to whose mapped pages a process stores before each flush
        kept.mkdir(parents=True, exist_ok=True)
        for folder, _, names in os.walk(self.root):
            self._keep_names(Path(folder))
            for name in names:
                self._keep_content(Path(folder, name))
        self._keep_names(self.root.parent)

    # ---- the operations ----

    def flush(self, descriptor: int, path: Path) -> None:
        """Keep the content, unless the fault refuses."""
        inode = os.fstat(descriptor).st_ino
        try:
            self.fault("flush", path)
        except OSError:
            with self._alone():
                self._forget_unflushed(Path(f"/proc/self/fd/{descriptor}"))
                self._failures[inode] = self._failures.get(inode, 0) + 1
                self._report(descriptor, inode)
            raise
        with self._alone():
            if self._report(descriptor, inode):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if self.stored_to and path.name.endswith(self.stored_to):
                self._set_lost(Path(f"/proc/self/fd/{descriptor}"), {})
            self._keep_content(Path(f"/proc/self/fd/{descriptor}"))
        self.flushes.append(path)

    def _report(self, descriptor: int, inode: int) -> bool:
        """Whether a flush has failed of which this descriptor has not learnt; it knows now."""
        former = self._reported.get(descriptor) if fcntl.fcntl(descriptor, fcntl.F_GETSIG) == KNOWN else None
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, KNOWN)
        self._reported[descriptor] = inode, self._failures.get(inode, 0)
        return former is not None and former[0] == inode and former != self._reported[descriptor]

    def flush_folder(self, folder: Path) -> None:
        """Keep the names, unless the fault refuses."""
        self.fault("flush_folder", folder)
        with self._alone():
            self._keep_names(folder)
        self.flushes.append(folder)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write; a fault can refuse."""
        self.fault("write", Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        return self._former.write(descriptor, data)

    def rewrite(self, descriptor: int, offset: int, data: bytes) -> None:
        """Write again: these pages are no longer lost."""
        path = Path(f"/proc/self/fd/{descriptor}")
        self.fault("rewrite", Path(os.readlink(path)))
        self._former.rewrite(descriptor, offset, data)
        with self._alone():
            lost = self._lost(path)
            pages = {page for page in lost if not offset <= page * PAGE < offset + len(data)}
            self._set_lost(path, {page: lost[page] for page in pages})

    def rename(self, path: Path, target: Path) -> None:
        """Rename; durable only after a flush of the folder."""
        self.fault("rename", path)
        with self._alone():
            self._move_names(path, target)
            self._former.rename(path, target)

    def remove(self, path: Path) -> None:
        """Remove; durable only after a flush of the folder."""
        self.fault("remove", path)
        self._former.remove(path)

    # ---- the image ----

    def image(self, target: Path, chance: random.Random | None = None) -> Path:
        """Make the folder as a power failure would leave it.

        Args:
            target: must not exist.
            chance: None: nothing that was not flushed is there. Otherwise each name and each page that was not flushed
                is there or not, by chance; but a rename has happened or not, as POSIX and journaling file systems
                promise.
        """
        with self._alone():
            self._make(self.root, target, chance)
        return target

    def _make(self, folder: Path, target: Path, chance: random.Random | None) -> None:
        target.mkdir()
        for name, inode in self._names_after(folder, chance).items():
            path, made = folder / name, target / name
            if inode is None:
                self._make(path, made, chance)
            else:
                made.write_bytes(self._content_after(inode, path, chance))

    def _names_after(self, folder: Path, chance: random.Random | None) -> dict[str, int | None]:
        record = self._record_of_names(folder)
        kept: dict[str, int | None] = json.loads(record.read_text()) if record.exists() else {}
        if chance is None:
            return kept
        present = _names_in(folder) if folder.is_dir() else {}
        changed = [name for name in sorted(kept.keys() | present.keys()) if kept.get(name) != present.get(name)]
        after = dict(kept)
        for names in _renamed_together(changed, kept, present):
            if chance.random() < 0.5:
                for name in names:
                    if name in present:
                        after[name] = present[name]
                    else:
                        del after[name]
        return after

    def _content_after(self, inode: int, path: Path, chance: random.Random | None) -> bytes:
        copy = self._kept / str(inode)
        kept = copy.read_bytes() if copy.exists() else b""
        if chance is None:
            return kept
        try:
            if path.stat().st_ino != inode:
                return kept
            present = path.read_bytes()
        except OSError:
            return kept
        lost = self._lost(path)
        pages = []
        for start in range(0, len(present), PAGE):
            old, new = kept[start : start + PAGE], present[start : start + PAGE]
            is_lost = start // PAGE in lost or chance.random() < 0.5
            pages.append(old.ljust(len(new), b"\0") if is_lost else new)
        return b"".join(pages)

    # ---- the copies ----

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread or process changes the copies meanwhile: of two flushes, the later one counts."""
        descriptor = os.open(self._kept / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _keep_content(self, path: Path) -> None:
        copy = self._kept / str(path.stat().st_ino)
        self._pin(path)
        lost = self._lost(path)
        draft = copy.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        shutil.copyfile(path, draft)
        if lost:
            former = copy.read_bytes() if copy.exists() else b""
            content = bytearray(draft.read_bytes())
            still = {}
            for page, digest in lost.items():
                place = slice(page * PAGE, (page + 1) * PAGE)
                if sha256(content[place]).hexdigest() == digest:
                    content[place] = former[place].ljust(len(content[place]), b"\0")
                    still[page] = digest
            draft.write_bytes(content)
            self._set_lost(path, still)
        draft.replace(copy)

    def _forget_unflushed(self, path: Path) -> None:
        """The kernel marks every page that was not on the disk clean."""
        self._pin(path)
        copy = self._kept / str(path.stat().st_ino)
        kept, present = copy.read_bytes() if copy.exists() else b"", path.read_bytes()
        lost = self._lost(path)
        for start in range(0, len(present), PAGE):
            page = present[start : start + PAGE]
            if page != kept[start : start + PAGE]:
                lost[start // PAGE] = sha256(page).hexdigest()
        self._set_lost(path, lost)

    def _pin(self, path: Path) -> None:
        """Keep the inode by a link, so that its number is not used again."""
        pin = self._kept / f"{path.stat().st_ino}.pin"
        if not pin.exists():
            with suppress(OSError):
                os.link(os.path.realpath(path), pin)

    def _lost(self, path: Path) -> dict[int, str]:
        """The pages that a failed flush has lost, with the digests of their content."""
        record = self._kept / f"{path.stat().st_ino}.lost"
        return {int(page): digest for page, digest in json.loads(record.read_text()).items()} if record.exists() else {}

    def _set_lost(self, path: Path, lost: dict[int, str]) -> None:
        _write_at_once(self._kept / f"{path.stat().st_ino}.lost", json.dumps(lost))

    def _keep_names(self, folder: Path) -> None:
        _write_at_once(self._record_of_names(folder), json.dumps(_names_in(folder)))

    def _move_names(self, path: Path, target: Path) -> None:
        """The lists of a folder that gets another name, and of those below it."""
        for folder, _, _ in os.walk(path):
            record = self._record_of_names(Path(folder))
            if record.exists():
                moved = self._record_of_names(target / Path(folder).relative_to(path))
                _write_at_once(moved, record.read_text())

    def _record_of_names(self, folder: Path) -> Path:
        return self._kept / f"names-{sha256(str(folder.resolve()).encode()).hexdigest()[:32]}"


def _names_in(folder: Path) -> dict[str, int | None]:
    """The inode of each file in a folder, None for a folder."""
    found: dict[str, int | None] = {}
    for each in os.scandir(folder):
        with suppress(FileNotFoundError):
            found[each.name] = None if each.is_dir(follow_symlinks=False) else each.inode()
    return found


def _write_at_once(path: Path, text: str) -> None:
    """Write a record that another thread or process may read meanwhile."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    draft.write_text(text)
    draft.replace(path)


def _renamed_together(
    changed: list[str], kept: dict[str, int | None], present: dict[str, int | None]
) -> list[list[str]]:
    """The changed names, those in one list that a file has moved between."""
    groups: list[tuple[set[int], list[str]]] = []
    for name in changed:
        inodes = {inode for inode in (kept.get(name), present.get(name)) if inode is not None}
        names = [name]
        for group in [each for each in groups if each[0] & inodes]:
            groups.remove(group)
            inodes |= group[0]
            names = [*group[1], *names]
        groups.append((inodes, names))
    return [names for _, names in groups]


@contextmanager
def losing_disk(root: Path, kept: Path, fault: Fault = lambda operation, path: None) -> Iterator[LosingDisk]:
    """Put a losing disk in the place of the real one, for this process and those that it forks."""
    disk, former = LosingDisk(root, kept, fault), durable.DISK
    durable.DISK = disk
    try:
        yield disk
    finally:
        durable.DISK = former


class FailsAt:
    """A fault: the n-th call of some operations fails.

    Args:
        first: from 1 on, which of the calls is the first that fails.
        count: how many fail; None: all from then on.
        operations: which ones count.
        matching: part of the path's name.
    """

    def __init__(
        self,
        first: int,
        count: int | None = 1,
        operations: tuple[str, ...] = ("flush",),
        matching: str = "",
        number: int = errno.EIO,
    ) -> None:
        self._first, self._count, self._operations, self._matching = first, count, operations, matching
        self._number, self.calls, self.failed = number, 0, 0

    def __call__(self, operation: str, path: Path) -> None:
        if operation not in self._operations or self._matching not in path.name:
            return
        self.calls += 1
        if self.calls >= self._first and (self._count is None or self.failed < self._count):
            self.failed += 1
            raise OSError(self._number, os.strerror(self._number))
