"""Mounts a small disk on one folder of one process, so that it can be full for that process only.

The mount exists only in that process's own mount namespace and disappears with it. The drill reaches the disk through
the process's root folder. Files that were in the folder before are hidden, not lost.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from tandemfeed.runtime.durable import PRIVATE_FOLDER, make_folder

CLONE_NEWNS = 0x0002_0000
MS_REC, MS_PRIVATE = 0x4000, 0x4_0000
BALLAST = "ballast"
STEP = 1 << 20


def mount_small_disk(folder: Path, size: int) -> None:
    """Mount a disk of `size` bytes on `folder` for this process, which must have only one thread.

    Raises:
        OSError: the system does not allow it.
    """
    make_folder(folder)
    own_mounts()
    _check(
        _libc().mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size},mode={PRIVATE_FOLDER:o}".encode()),
        f"mounting {folder}",
    )


def own_mounts() -> None:
    """From now on, what this process mounts is mounted for it and its children only, and disappears with them, however
    they end. The process must have only one thread.

    Raises:
        OSError: the system does not allow it.
    """
    _check(_libc().unshare(CLONE_NEWNS), "making a mount namespace")
    _check(_libc().mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "making mounts private")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def path_in_process(pid: int, folder: Path) -> Path:
    """A path that leads to a folder as the process with this id sees it."""
    return Path(f"/proc/{pid}/root{folder.absolute()}")


def fill_disk(folder: Path) -> None:
    """Use up all the space on the folder's disk, in steps of `STEP` bytes."""
    with (folder / BALLAST).open("wb") as ballast:
        size = 0
        while True:
            try:
                os.posix_fallocate(ballast.fileno(), size, STEP)
            except OSError:
                return
            size += STEP


def make_room(folder: Path) -> None:
    """Free the space that `fill_disk` used up."""
    (folder / BALLAST).unlink()


def why_no_small_disk() -> str:
    """Why no small disk can be mounted on this machine; empty if one can. Tries it in a child process."""
    code = "import pathlib, tandemfeed.deploy.cluster.small_disk as d; d.mount_small_disk(pathlib.Path('/tmp'), d.STEP)"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return ""
    return f"this system does not allow mounting a small disk: {tried.stderr.strip().splitlines()[-1]}"
