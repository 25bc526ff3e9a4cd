"""Durable writes: the only module that flushes, creates, replaces, renames and removes files whose content must last.

Invariant: what a function here has returned for survives a power failure. A failed flush is never simply repeated: the
kernel has marked the pages clean, so the next flush succeeds although the data is gone (Rebello et al., "Can
Applications Recover from fsync Failures?", USENIX ATC 2020). What was written since the last successful flush must be
written again, or be refused.

Every system call goes through `DISK`, which tests replace with one that loses what was not flushed, or fails.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import mmap
import os
import struct
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

PRIVATE_FILE = 0o600  # what we store is for the process's user only, like keys
PRIVATE_FOLDER = 0o700
PAGE = 4_096
NOT_TRIED = (errno.EACCES, errno.EMFILE, errno.ENFILE, errno.ENOENT)  # the file could not be opened
CRC = struct.Struct("<I")  # of everything after it in the copy of what is written again
PIECE_HEAD = struct.Struct("<QQ")  # offset and size of a piece, which follows
PIECE = 32 << 20  # the kernel caches a file in aligned units; each is in one window of `rewrite`


class FlushFailed(OSError):
    """The disk refused a flush. What was written since the last successful one may be gone, although it can be read."""

    def __init__(self, path: Path, cause: OSError) -> None:
        super().__init__(
            cause.errno or errno.EIO,
            f"{path}: could not be flushed to the disk ({(cause.strerror or str(cause)).lower()}); what was written "
            "since the last flush may be lost in a power failure. Check the disk, then open the file again",
        )
        self.path = path

    def __str__(self) -> str:
        return str(self.args[1])


class Disk:
    """The system calls that make data durable."""

    def flush(self, descriptor: int, path: Path) -> None:
        """Flush a file's data, and what is needed to read it. `path` is for errors."""
        os.fdatasync(descriptor)

    def flush_folder(self, folder: Path) -> None:
        """Flush a folder's entries."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write at the descriptor's position; returns how many bytes were written."""
        return os.write(descriptor, data)

    def rewrite(self, descriptor: int, offset: int, data: bytes) -> None:
        """Write bytes that the file already has, from the start of a page on, so that the next flush keeps them.

        Past the page cache, also of pages that processes have mapped: ext4 takes the cached pages of a preallocated
        range for written after their first write failed, and never marks the range as written on the disk.
        """
        whole = len(data) - len(data) % PAGE
        if whole and not _wrote_directly(descriptor, offset, data[:whole]):
            whole = 0
        if whole < len(data):
            os.posix_fadvise(descriptor, offset + whole, len(data) - whole, os.POSIX_FADV_DONTNEED)
            _write_at(descriptor, offset + whole, data[whole:])

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file; an existing target is replaced."""
        os.rename(path, target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)


DISK = Disk()


def flush(descriptor: int, path: Path) -> None:
    """Flush an open file to the disk.

    Args:
        path: of the file, for the error.

    Raises:
        FlushFailed: what was written since the last flush must be written again, or be refused.
    """
    try:
        DISK.flush(descriptor, path)
    except OSError as failed:
        raise FlushFailed(path, failed) from failed


def flush_file(path: Path) -> None:
    """Flush a file to the disk, whichever process wrote it. Does nothing if it was deleted.

    Raises:
        FlushFailed
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        flush(descriptor, path)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk: the names of new, renamed and removed files.

    Raises:
        FlushFailed: what was created, renamed or removed since the last flush may not be so after a power failure.
        OSError: the folder could not be opened, so nothing was tried.
    """
    try:
        DISK.flush_folder(folder)
    except OSError as failed:
        if failed.errno in NOT_TRIED:
            raise
        raise FlushFailed(folder, failed) from failed


def flush_tree(folder: Path) -> None:
    """Flush every file in a folder and below it, whichever process wrote it, and the names of all of them.

    No process may change it meanwhile.

    Raises:
        FlushFailed: some of it may be lost; give up all of it.
    """
    for each, _, names in os.walk(folder):
        for name in names:
            flush_file(Path(each, name))
        sync_folder(Path(each))


def make_folder(folder: Path, mode: int = PRIVATE_FOLDER) -> None:
    """Create a folder and its missing parents; their names are durable on return. An existing folder keeps its mode.

    Raises:
        OSError: it cannot be created, or is a file.
        FlushFailed
    """
    missing: list[Path] = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    if missing:
        sync_name(folder)  # a process that created it may have died before it flushed the name
    for each in reversed(missing):
        each.mkdir(mode=mode, exist_ok=True)
        sync_folder(each.parent)


def sync_name(path: Path) -> None:
    """Flush the name of an existing file or folder, if the process may read the folder that it is in.

    Raises:
        FlushFailed
    """
    with suppress(PermissionError):
        sync_folder(path.absolute().parent)


def replace_file(path: Path, content: bytes | Callable[[BinaryIO], object], mode: int = PRIVATE_FILE) -> None:
    """Replace a file, or create it: after a crash or an error it is the old one or the new one, whole.

    Args:
        path: in an existing folder.
        content: the bytes, or a function that writes them to the opened file.
        mode: of the new file.

    Raises:
        OSError: the old file is intact.
        FlushFailed: of the folder: the new file is there, but after a power failure it may be the old one.
    """
    draft = _draft_of(path)
    try:
        _write_whole(draft, content, mode, os.O_TRUNC)
        DISK.rename(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
    sync_folder(path.parent)


def remove_drafts(folder: Path, name: str = "") -> None:
    """Remove what replacements that a crash interrupted have left. No other process may write there.

    Args:
        name: only those of this file; empty: of all files in the folder.
    """
    for draft in folder.glob(f".{glob.escape(name)}.*.draft" if name else ".*.draft"):
        with suppress(OSError):
            os.unlink(draft)


def create_file(path: Path, content: bytes | Callable[[BinaryIO], object], mode: int = PRIVATE_FILE) -> None:
    """Create a file that must not exist yet; durable on return. At no time does another process see part of it.

    Raises:
        FileExistsError: it exists, and is unchanged.
        OSError: the file does not exist.
    """
    draft = _draft_of(path)
    try:
        _write_whole(draft, content, mode, os.O_TRUNC)
        os.link(draft, path)
    finally:
        with suppress(OSError):
            os.unlink(draft)
    try:
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def rename_unsynced(path: Path, target: Path) -> None:
    """Rename a file; durable only after `sync_folder`.

    Raises:
        OSError
    """
    DISK.rename(path, target)


def rename_file(path: Path, target: Path) -> None:
    """Rename a file or folder within a file system; durable on return.

    Raises:
        OSError, FlushFailed
    """
    DISK.rename(path, target)
    sync_folder(target.parent)
    if path.parent != target.parent:
        sync_folder(path.parent)  # after the other: a power failure leaves both names, or the new one


def remove_file(path: Path) -> None:
    """Remove a file if it exists; durable on return.

    Raises:
        OSError, FlushFailed
    """
    try:
        DISK.remove(path)
    except FileNotFoundError:
        return
    sync_folder(path.parent)


def rewrite(path: Path, start: int = 0, *more: tuple[int, int], end: int | None = None, copied: bool = False) -> None:
    """Write a file's bytes again, and flush them: after a failed flush, which marked them clean.

    No process may write to these pages meanwhile; they may be mapped. A last page that is not whole must have been
    flushed before, as that of a file to which data is appended.

    Args:
        start, end: which bytes, extended to whole pages. Without an end: up to the file's end.
        more: further ranges, start and end.
        copied: keep a copy of the bytes beside the file meanwhile, which `restore_interrupted` reads. Otherwise, if
            this process is killed while the disk refuses, the bytes may be gone that could be read before.

    Raises:
        FlushFailed: the disk still refuses.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        for window in range(0, size, PIECE):
            ranges = ((start, size if end is None else end), *more)
            pieces = _pieces_between(descriptor, window, min(window + PIECE, size), ranges)
            if copied and pieces:
                _copy_pieces(path, pieces)
            _rewrite_pieces(descriptor, pieces)
    except OSError as failed:
        raise FlushFailed(path, failed) from failed
    else:
        flush(descriptor, path)
    finally:
        os.close(descriptor)
    if copied:
        remove_file(_copy_of(path))  # durably: an old copy must not come back


def restore_interrupted(path: Path) -> None:
    """Make what a process had begun to write again, and did not finish, readable again. Not flushed.

    Call it before anything changes the file, and then write it again.

    Raises:
        OSError
    """
    copy = _copy_of(path)
    if not copy.exists():
        return
    content = copy.read_bytes()
    (crc,) = CRC.unpack_from(content.ljust(CRC.size, b"\0"))
    if zlib.crc32(content[CRC.size :]) != crc:
        return  # not completed, so nothing was written past the cache yet
    descriptor, place = os.open(path, os.O_RDWR | os.O_CLOEXEC), CRC.size
    try:
        while place < len(content):
            offset, size = PIECE_HEAD.unpack_from(content, place)
            place += PIECE_HEAD.size
            _write_at(descriptor, offset, content[place : place + size])
            place += size
    finally:
        os.close(descriptor)


def _copy_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.again")


def _copy_pieces(path: Path, pieces: list[tuple[int, bytes]]) -> None:
    """Flushed, so that a disk that refuses writes is noticed before the cached pages are dropped."""
    content = b"".join(PIECE_HEAD.pack(offset, len(data)) + data for offset, data in pieces)
    descriptor = os.open(_copy_of(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        write_all(descriptor, CRC.pack(zlib.crc32(content)) + content)
        flush(descriptor, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(_copy_of(path))
        raise
    finally:
        os.close(descriptor)


def _pieces_between(
    descriptor: int, begin: int, end: int, ranges: tuple[tuple[int, int], ...]
) -> list[tuple[int, bytes]]:
    """What of the ranges is between two offsets, with its offsets."""
    pieces: list[tuple[int, bytes]] = []
    for start, stop in ranges:
        offset, stop = max(start - start % PAGE, begin), min(-(-stop // PAGE) * PAGE, end)
        while offset < stop and (data := os.pread(descriptor, stop - offset, offset)):
            pieces.append((offset, data))
            offset += len(data)
    return pieces


def _rewrite_pieces(descriptor: int, pieces: list[tuple[int, bytes]]) -> None:
    """Write pieces again. All of them were read before the first is written: a write past the page cache drops cached
    pages around it too, which may be all there is."""
    try:
        for offset, data in pieces:
            DISK.rewrite(descriptor, offset, data)
    except OSError:
        for offset, data in pieces:
            with suppress(OSError):
                _write_at(descriptor, offset, data)  # so that it can still be read
        raise


class Unflushed:
    """What a writer has changed and not flushed yet: files, and folders with new names.

    Owner: its lock. `flush` returns only when everything that was added before the call is on the disk, including what
    another thread is flushing. After a failure, every further flush fails in the same way.
    """

    def __init__(self) -> None:
        self._adding, self._flushing = threading.Lock(), threading.Lock()
        self._files: dict[Path, None] = {}  # in the order in which they were added
        self._folders: dict[Path, None] = {}
        self.failure: FlushFailed | None = None

    def add_file(self, path: Path) -> None:
        """A file has bytes that may not be on the disk."""
        with self._adding:
            self._files[path] = None

    def add_folder(self, folder: Path) -> None:
        """A folder has a name that may not be on the disk."""
        with self._adding:
            self._folders[folder] = None

    @property
    def files(self) -> list[Path]:
        """The files that were not flushed yet."""
        with self._adding:
            return list(self._files)

    def flush(self) -> None:
        """Flush everything that was added; files that were deleted are left out.

        Raises:
            FlushFailed: nothing was forgotten; each further call raises it again.
        """
        with self._flushing:
            if self.failure is not None:
                raise self.failure
            with self._adding:
                files, self._files = self._files, {}
                folders, self._folders = self._folders, {}
            try:
                for path in files:
                    flush_file(path)
                for folder in folders:
                    sync_folder(folder)
            except BaseException as failed:
                with self._adding:
                    self._files, self._folders = files | self._files, folders | self._folders
                if isinstance(failed, FlushFailed):
                    self.failure = failed
                raise


class AppendedFile:
    """A file to which data is appended and flushed, such as a log whose records count.

    Owner: one thread at a time. What it contains when it is opened is on the disk, whichever process wrote it. A failed
    append leaves the file as it was before. If the disk refuses even that, the file has failed: further appends raise
    until `restore` has written it again.

    A mark beside the file outlives the process while its content is in doubt: a flush that was refused is reported
    once, and the next one, of whichever process, succeeds. After a power failure the mark means nothing.

    Attributes:
        path: where the file is now.
        size: bytes; all of them are on the disk.
    """

    def __init__(self, path: Path, descriptor: int, size: int, mode: int = PRIVATE_FILE) -> None:
        self.path, self.size = path, size
        self._name, self._mode = path, mode  # the path until `rotate` has moved the file
        self._descriptor = descriptor
        self._failure: FlushFailed | None = None

    @classmethod
    def open(cls, path: Path, mode: int = PRIVATE_FILE) -> Self:
        """Open a file, creating it if needed, and make what it contains durable.

        Raises:
            OSError, FlushFailed: it cannot be opened, or its content cannot be flushed.
        """
        descriptor, is_doubtful = open_to_append(path, mode), _doubt_of(path).exists()
        try:
            _mark_doubtful(path)
            if is_doubtful or not _is_flushed(descriptor, path):
                replace_file(path, path.read_bytes(), mode)  # all of it again, elsewhere
                former, descriptor = descriptor, open_to_append(path, mode)
                _close_flushed(former)
            sync_folder(path.parent)
            _clear_doubt(path)
            return cls(path, descriptor, os.fstat(descriptor).st_size, mode)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def has_failed(self) -> bool:
        """Whether appends raise until `restore` has written the file again."""
        return self._failure is not None

    def append(self, data: bytes) -> None:
        """Append bytes; they are on the disk on return.

        Raises:
            OSError: nothing was appended.
            FlushFailed: nothing was appended; if the file could not be restored, it fails from now on.
        """
        if self._failure is not None:
            raise self._failure
        try:
            write_all(self._descriptor, data)
            flush(self._descriptor, self.path)
        except OSError as failed:
            self._take_back(failed)
            raise
        self.size += len(data)

    def truncate(self, size: int) -> None:
        """Cut the file; durable on return.

        Raises:
            OSError: nothing has changed.
            FlushFailed: it is cut, but after a power failure it may not be; it fails until `restore`.
        """
        os.ftruncate(self._descriptor, size)
        self.size = size
        try:
            flush(self._descriptor, self.path)
        except FlushFailed as failed:
            _mark_doubtful(self.path)
            self._failure = failed
            raise

    def restore(self) -> None:
        """After a failure, write the bytes that count again, as a new file, and append to that one.

        Raises:
            OSError, FlushFailed: the disk still refuses; the file is as it was.
        """
        content = _read_whole(self._descriptor, self.size)
        if len(content) != self.size:
            raise FlushFailed(self.path, OSError(errno.EIO, f"only {len(content)} of {self.size} bytes can be read"))
        replace_file(self.path, content, self._mode)
        former, self._descriptor = self._descriptor, open_to_append(self.path, self._mode)
        self._failure = None
        _clear_doubt(self.path)
        _close_flushed(former)

    def rotate(self, archive: Path) -> None:
        """Move the file to another name in its folder, and continue with an empty one under the former name.

        The next file is opened before anything is moved. After an error, nothing is lost: appends continue in the same
        file, under the name that it has now, and the next call does the rest.

        Args:
            archive: must not exist.

        Raises:
            FileExistsError: `archive` exists; nothing has changed.
            OSError, FlushFailed
        """
        if self._failure is not None:
            raise self._failure
        is_moved = self.path != self._name
        if not is_moved and os.path.lexists(archive):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(archive))
        draft = self._name.with_name(f".{self._name.name}.next")
        descriptor = open_to_append(draft, self._mode, os.O_TRUNC)
        try:
            flush(descriptor, draft)
            if not is_moved:
                DISK.rename(self.path, archive)
                self.path = archive
            sync_folder(archive.parent)  # a crash leaves the content under one name, whatever the file system reorders
            DISK.rename(draft, self._name)
            sync_folder(archive.parent)
        except BaseException:
            _close_flushed(descriptor)
            with suppress(OSError):
                os.unlink(draft)
            raise
        former, self._descriptor = self._descriptor, descriptor
        self.path, self.size = self._name, 0
        _close_flushed(former)

    def replace_with(self, target: AppendedFile) -> None:
        """Close this file, and be that one from now on."""
        former, self.path, self.size = self._descriptor, target.path, target.size
        self._name, self._mode = target._name, target._mode
        self._descriptor, self._failure = target._descriptor, target._failure
        _close_flushed(former)

    def close(self) -> None:
        """Close the file; everything in it is on the disk."""
        _close_flushed(self._descriptor)

    def _take_back(self, failed: OSError) -> None:
        """Remove what was appended in part. Its last page holds earlier bytes too, so they are written again."""
        _mark_doubtful(self.path)
        try:
            os.ftruncate(self._descriptor, self.size)
            if isinstance(failed, FlushFailed):
                rewrite(self.path, max(0, self.size - 1))
            _clear_doubt(self.path)
        except OSError as refused:
            self._failure = failed if isinstance(failed, FlushFailed) else FlushFailed(self.path, refused)


def _doubt_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.doubtful")


def _mark_doubtful(path: Path) -> None:
    """The content of a file may not be on the disk. Only processes until the next power failure have to know."""
    with suppress(OSError):
        os.close(os.open(_doubt_of(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))


def _clear_doubt(path: Path) -> None:
    with suppress(OSError):
        os.unlink(_doubt_of(path))


def _is_flushed(descriptor: int, path: Path) -> bool:
    """Flush; False if that failed, of an earlier process's writes, or in the background."""
    try:
        flush(descriptor, path)
    except FlushFailed:
        return False
    return True


def _wrote_directly(descriptor: int, offset: int, data: bytes) -> bool:
    """Write whole pages past the page cache; False if the file system cannot do that."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    buffer = mmap.mmap(-1, len(data))  # aligned, as such a write requires
    buffer[:] = data
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        _write_at(descriptor, offset, buffer)
    except OSError as failed:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        if failed.errno == errno.EINVAL:
            return False
        raise
    else:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return True
    finally:
        buffer.close()


def _write_at(descriptor: int, offset: int, data: bytes | mmap.mmap) -> None:
    if os.pwrite(descriptor, data, offset) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _close_flushed(descriptor: int) -> None:
    """Close a file of which everything is on the disk, so that an error says nothing; Linux closes it all the same."""
    with suppress(OSError):
        os.close(descriptor)


def _read_whole(descriptor: int, size: int) -> bytes:
    parts, offset = [], 0
    while offset < size and (data := os.pread(descriptor, min(PIECE, size - offset), offset)):
        parts.append(data)
        offset += len(data)
    return b"".join(parts)


def open_to_append(path: Path, mode: int, flags: int = 0) -> int:
    """Open a file for appending, creating it if needed, and return its descriptor. Its name may not be durable."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | flags, mode)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.draft")


def _write_whole(path: Path, content: bytes | Callable[[BinaryIO], object], mode: int, flags: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, mode)
    if mode != PRIVATE_FILE:
        os.fchmod(descriptor, mode)  # whatever the umask takes away
    if callable(content):
        with os.fdopen(descriptor, "wb") as file:
            content(file)
            file.flush()
            flush(descriptor, path)
        return
    try:
        write_all(descriptor, content)
        flush(descriptor, path)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write bytes at the descriptor's position; they are not on the disk before a flush.

    Raises:
        OSError: a part may have been written.
    """
    rest = memoryview(data)
    while rest:
        written = DISK.write(descriptor, rest)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest = rest[written:]
