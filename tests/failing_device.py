"""A real disk whose writes fail for a while: ext4 on a loop device, whose backing store has no space meanwhile.

The kernel does what it does with a broken disk: writing back fails, each open file description learns of it once, the
pages are marked clean, and what they contained is lost although it can still be read. Writes fail only where the device
has nothing but zeros: a page that already has data can be overwritten. The file system's own metadata are not refused.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

MB = 1 << 20
PAGE = 4_096
PUNCH_HOLE, KEEP_SIZE = 2, 1  # fallocate(2)
SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32), linux/ext4.h
WITHOUT_FLUSH = 2  # EXT4_GOING_FLAGS_NOLOGFLUSH: nothing more reaches the disk
DETACH = 2  # MNT_DETACH
BLOCKS = re.compile(r"^  Free blocks: (\d.*)$", re.MULTILINE)  # of each group, in the output of dumpe2fs
_libc = ctypes.CDLL(None, use_errno=True)


class FailingDevice:
    """A disk of this kind, mounted at `folder` until the `with` ends. Skips the test where it cannot be had.

    Args:
        place: a folder for this test.
        size: of the disk in bytes.
        is_thin: its store gives space to a page only when it is first written. Then `fail` may be called while files
            are being written, but pages of zeros that were written before are not refused.
    """

    def __init__(self, place: Path, size: int = 64 * MB, *, is_thin: bool = False) -> None:
        self._store, self.folder = place / "store", place / "disk"
        self._image, self._filling = self._store / "image", self._store / "filling"
        self._size, self._is_thin = size, is_thin

    def __enter__(self) -> Self:
        self._require_tools()
        self._store.mkdir()
        self.folder.mkdir()
        if _libc.mount(b"tmpfs", bytes(self._store), b"tmpfs", 0, b"size=%d" % (self._size + 2 * MB)):
            pytest.skip(f"this system does not allow mounting a file system: {os.strerror(ctypes.get_errno())}")
        try:
            self._image.touch()
            os.truncate(self._image, self._size)
            options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
            _run("mkfs.ext4", "-q", "-b", str(PAGE), "-E", options, self._image)
            self._unused = self._unused_blocks()
            with self._image.open("r+b") as image:
                os.posix_fallocate(image.fileno(), 0, self._size)
            if self._is_thin:
                self._free_zeros()
            self._mount()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for folder in (self.folder, self._store):
            _libc.umount2(bytes(folder), DETACH)

    def fail(self) -> None:
        """From now on the disk refuses writes (ENOSPC, as the kernel passes it on)."""
        if not self._is_thin:
            self._free_zeros()
        with self._filling.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(PAGE))

    def heal(self) -> None:
        """From now on the disk accepts writes again. What was refused is not written by that."""
        self._filling.unlink()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """The disk refuses writes within the `with`."""
        self.fail()
        try:
            yield
        finally:
            self.heal()

    def drop_caches(self) -> None:
        """Make the kernel forget clean pages, as under memory pressure."""
        with suppress(PermissionError):
            Path("/proc/sys/vm/drop_caches").write_text("3\n")

    def lose_power(self) -> None:
        """Lose everything that is not on the disk, and start again. Files that are open meanwhile are unusable."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("<I", WITHOUT_FLUSH))
        finally:
            os.close(descriptor)
        if _libc.umount2(bytes(self.folder), 0):
            number = ctypes.get_errno()
            raise OSError(number, f"{os.strerror(number)}: close the files on the disk first", str(self.folder))
        self._mount()

    def _mount(self) -> None:
        mounted = subprocess.run(
            ["mount", "-t", "ext4", "-o", "loop,errors=continue", self._image, self.folder],
            capture_output=True,
            text=True,
            check=False,
        )
        if mounted.returncode:
            pytest.skip(f"this system does not mount loop devices: {mounted.stderr.strip()}")
        device = self.folder.stat().st_dev
        try:  # a request of several pages that is only partly written would count as written
            Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/max_sectors_kb").write_text("4")
        except OSError as refused:
            pytest.skip(f"this system does not allow changing a loop device: {refused}")

    def _unused_blocks(self) -> list[tuple[int, int]]:
        """The blocks that files can get, first and last. ext4 would stop for good if it could not write its journal."""
        shown = subprocess.run(["dumpe2fs", self._image], capture_output=True, text=True, check=True).stdout
        ranges = [each for line in BLOCKS.findall(shown) for each in line.split(", ")]
        return [(int(first), int(last or first)) for first, _, last in (each.partition("-") for each in ranges)]

    def _free_zeros(self) -> None:
        """Pages of zeros take no space in the store, so that writing to them needs space."""
        with self._image.open("r+b", buffering=0) as image:
            for first, last in self._unused:
                content = os.pread(image.fileno(), (last + 1 - first) * PAGE, first * PAGE)
                for place in range(0, len(content), PAGE):
                    if not content[place : place + PAGE].strip(b"\0"):
                        _punch(image.fileno(), first * PAGE + place, PAGE)

    @staticmethod
    def _require_tools() -> None:
        if os.geteuid() != 0:
            pytest.skip("a loop device needs root")
        for tool in ("mkfs.ext4", "dumpe2fs", "mount"):
            if shutil.which(tool) is None:
                pytest.skip(f"{tool} is not installed")


def _punch(descriptor: int, offset: int, size: int) -> None:
    kinds = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    arguments = (descriptor, PUNCH_HOLE | KEEP_SIZE, offset, size)
    if _libc.fallocate(*(kind(each) for kind, each in zip(kinds, arguments, strict=True))):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)
