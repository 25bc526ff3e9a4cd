"""Checks and operations on the file system: local disks, free space, writable folders."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from tandemfeed.journal.errors import DiskFull, JournalFailed, NetworkFileSystem, ReadOnly
from tandemfeed.journal.format.access import PRIVATE, Access
from tandemfeed.runtime import durable
from tandemfeed.runtime.durable import sync_folder as sync_folder  # for modules that import it from here

MOUNTS = Path("/proc/self/mountinfo")
OCTAL = re.compile(r"\\([0-7]{3})")  # the escapes of spaces and some other characters in mountinfo
# On these, mapped memory is not shared between hosts, and locks may not show whether a process is alive.
NETWORK_TYPES = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "gpfs",
        "ocfs2",
        "gfs2",
        "beegfs",
    }
    | {"orangefs", "pvfs2", "davfs"}
    | {f"fuse.{name}" for name in ("ceph", "davfs2", "gcsfuse", "glusterfs", "rclone", "s3fs", "sshfs")}
)
ZEROS = bytes(256 << 10)


def file_system_type(folder: Path, mounts: str) -> str:
    """The type of the file system that a folder is on.

    Args:
        folder: absolute and resolved.
        mounts: in the form of /proc/self/mountinfo (proc(5)).
    """
    best, found = -1, "unknown"
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = Path(OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        if (folder == point or point in folder.parents) and len(point.parts) >= best:
            best, found = len(point.parts), right.split(" ")[0]
    return found


def require_local(folder: Path, mounts: str | None = None) -> None:
    """Refuse a folder on a network file system.

    Raises:
        NetworkFileSystem
    """
    if mounts is None:
        mounts = MOUNTS.read_text() if MOUNTS.exists() else ""
    kind = file_system_type(folder.resolve(), mounts)
    if kind in NETWORK_TYPES:
        raise NetworkFileSystem(
            f"{folder} is on a network file system ({kind}), where mapped memory is not shared between hosts: "
            "use a local disk, and replication to copy the journal to other hosts"
        )


def make_folder(folder: Path, access: Access = PRIVATE) -> None:
    """Create a journal's folder and its missing parents if needed; their names are durable on return.

    Raises:
        NetworkFileSystem, ReadOnly, JournalFailed.
    """
    if not folder.is_dir():
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        try:
            durable.make_folder(folder, access.folder_mode)
            for each in missing:
                access.give(each, is_folder=True)
        except (FileExistsError, NotADirectoryError):
            raise ReadOnly(f"{folder} is a file, or below a file; give a folder") from None
        except durable.FlushFailed as failed:
            raise JournalFailed(str(failed)) from failed
        except OSError as refused:
            raise ReadOnly(f"{folder}: cannot be created ({refused.strerror}); give a writable folder") from None
    require_local(folder)


def reserve(descriptor: int, size: int, path: Path, pause: Callable[[], object] = lambda: None) -> None:
    """Allocate a new file and fill it with zeros.

    If a page were only reserved, the first append to it would wait some microseconds for the file system.

    Args:
        pause: called after each quarter of a megabyte.

    Raises:
        DiskFull
    """
    try:
        os.posix_fallocate(descriptor, 0, size)
        for offset in range(0, size, len(ZEROS)):
            os.pwrite(descriptor, ZEROS[: size - offset], offset)
            pause()
    except OSError as full:
        raise DiskFull(
            f"{path}: no space for a block of {size} bytes ({full.strerror}): free disk space, or set a retention; "
            "appending then resumes, and no record is lost"
        ) from full
