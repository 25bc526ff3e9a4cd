"""Who may read what the feed source stores: its user alone, or also the members of a group.

A folder that is shared has a group, which may do everything in it, and the set-group-ID bit. What is created in it is
shared with the same group; what is created anywhere else is private. So tasks and gateways need no option: each writer
looks at the folder. Never: readable by everyone.
"""

from __future__ import annotations

import argparse
import os
import stat
from pathlib import Path

from tandemfeed.journal.errors import JournalFailed
from tandemfeed.journal.format.access import GROUP_FOLDER, PRIVATE, Access
from tandemfeed.runtime.durable import FlushFailed, make_folder

PRIVATE_UMASK, SHARED_UMASK = 0o077, 0o007


def access_in(folder: Path) -> Access:
    """The access of what is created in an existing folder."""
    status = folder.stat()
    is_shared = stat.S_IMODE(status.st_mode) & GROUP_FOLDER == GROUP_FOLDER
    return Access.of_group(status.st_gid) if is_shared else PRIVATE


def make(folder: Path, group: str | None = None) -> Access:
    """Create a folder and its missing parents, durably; returns the access of what is created in it.

    Args:
        group: share the folder with it, also if it exists; None: as the folder in which it is created.

    Raises:
        ReadOnly: it cannot be given to the group. OSError, FlushFailed: it cannot be created.
    """
    if not folder.is_dir():
        inherited = make(folder.parent)
        make_folder(folder, inherited.folder_mode)
        inherited.give(folder, is_folder=True)
    if group is not None:
        Access.of_group(group).give(folder, is_folder=True)
    return access_in(folder)


def make_for_journal(folder: Path, group: str | None = None) -> Access:
    """The same for a folder of journals, with their error if the disk refuses to be flushed.

    Raises:
        ReadOnly: it cannot be given to the group. JournalFailed: its name may not be on the disk. OSError: it cannot be
            created.
    """
    try:
        return make(folder, group)
    except FlushFailed as failed:
        raise JournalFailed(str(failed)) from failed


def restrict(group: str | None) -> None:
    """Let nothing that this process or one that it starts creates be readable by everyone. Call it in a command, before
    it starts the JVM, which creates files with the modes of its own."""
    os.umask(PRIVATE_UMASK if group is None else SHARED_UMASK)


def spark_settings() -> dict[str, str]:
    """Settings with which Spark's files have the modes that this process's umask allows. Hadoop has one of its own."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (umask,) = [line.split()[1] for line in lines if line.startswith("Umask:")]
    return {"spark.hadoop.fs.permissions.umask-mode": umask[-3:]}


def add_group_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option of every command that stores something."""
    parser.add_argument(
        "--group",
        type=_group,
        metavar="NAME",
        help="group of this host whose members may also read and write what is stored (default: only this user may)",
    )


def _group(name: str) -> str:
    try:
        Access.of_group(name)
    except ValueError as unknown:
        raise argparse.ArgumentTypeError(str(unknown)) from None
    return name
