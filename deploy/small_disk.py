"""A disk of its own for one folder of one process, so that it can be full for that process alone.

The mount is seen by that process only (a mount namespace of its own) and is gone when it ends; the drill reaches the
disk through the process's root folder. What lay in the folder before is hidden, not lost.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

CLONE_NEWNS = 0x0002_0000
MS_REC, MS_PRIVATE = 0x4000, 0x4_0000
BALLAST = "ballast"
STEP = 1 << 20


def mount_small_disk(folder: Path, size: int) -> None:
    """Give this process, which must have no other thread, a disk of `size` bytes on `folder`.

    Raises:
        OSError: the system does not allow it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWNS), "a mount namespace")
    _check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "keeping mounts to oneself")
    _check(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()), f"a disk on {folder}")


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def seen_by(pid: int, folder: Path) -> Path:
    """The folder as the process with this id sees it."""
    return Path(f"/proc/{pid}/root{folder.absolute()}")


def fill_disk(folder: Path) -> None:
    """Take every whole block that is left on the folder's disk."""
    with (folder / BALLAST).open("wb") as ballast:
        size = 0
        while True:
            try:
                os.posix_fallocate(ballast.fileno(), size, STEP)
            except OSError:
                return
            size += STEP


def make_room(folder: Path) -> None:
    """Give back what `fill_disk` took."""
    (folder / BALLAST).unlink()


def why_no_small_disk() -> str:
    """Why no such disk can be had here; empty if it can. Tried in a process of its own."""
    code = "import pathlib, deploy.small_disk as d; d.mount_small_disk(pathlib.Path('/tmp'), d.STEP)"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return ""
    return f"the system allows no small disk: {tried.stderr.strip().splitlines()[-1]}"
