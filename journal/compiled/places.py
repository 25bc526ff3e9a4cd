"""Where compiled code is stored: only in folders that are private to this user, because what is loaded from there runs.

Needs neither numba nor numpy, because a program that launches the JVM first needs to know where its classes are.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

FOLDER_VARIABLE = "TANDEMFEED_KERNEL_CACHE"  # its folder replaces the user's cache folder
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
OTHERS_MAY_ANYTHING = stat.S_IRWXG | stat.S_IRWXO


def cache_places() -> tuple[Path, ...]:
    """Where kernels may be stored: the folder that TANDEMFEED_KERNEL_CACHE names, otherwise this user's cache folder.

    Never the package's own folder: an installed package is not changed by running it.
    """
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return (Path(chosen),)
    try:
        return (Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "tandemfeed",)
    except RuntimeError:  # the user has no home
        return ()


def kernel_folder(digest: str, *parents: Path) -> Path | None:
    """The cache folder for kernels of this digest, in the first parent where it is private to this user, or None.

    Numba executes what it loads from there, so folders that other users own or can write to are skipped.
    """
    folders = (parent / f"kernels-{digest}" for parent in parents)
    return next((folder for folder in folders if private_folder(folder)), None)


def private_folder(path: Path) -> bool:
    """Create a folder that is private to this user, unless it exists; True if it is private and writable.

    A folder that others can, or could, write to is not made private: its contents may be theirs.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()  # a symbolic link is refused: another user may change its target
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if not is_ours or found.st_mode & OTHERS_MAY_ANYTHING:
            return False
        return os.access(path, os.W_OK) and all(_keeps_its_entries(each) for each in path.resolve().parents)
    except OSError:
        return False


def _keeps_its_entries(folder: Path) -> bool:
    """True if no other user can replace this user's folders in it.

    The owner of `/` is trusted: it is root, but has another number in a user namespace. A group with write permission
    is trusted: its members can also change the program's sources or the user's settings next to it.
    """
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), os.stat("/").st_uid):
        return False
    return not found.st_mode & stat.S_IWOTH or bool(found.st_mode & stat.S_ISVTX)


def private_file(path: str) -> bool:
    """True if a file is a regular file of this user that no other user can write to."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS_MAY_WRITE
