"""Who may read and write a journal's files: its owner alone, or also a group.

A journal's files have the mode and group of its control file, and its folders those of its folder. So a user who
may change these decides for every file made later. Files that exist are never changed.
"""

from __future__ import annotations

import grp
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tandemfeed.journal.errors import ReadOnly
from tandemfeed.journal.format.layout import CONTROL_NAME
from tandemfeed.runtime.durable import PRIVATE_FILE, PRIVATE_FOLDER

GROUP_FILE, GROUP_FOLDER = 0o660, 0o2770  # set-group-ID: what is made in the folder has the folder's group


@dataclass(frozen=True, slots=True)
class Access:
    """Modes of files and folders, and their group and owner; None: the process's own."""

    file_mode: int = PRIVATE_FILE
    folder_mode: int = PRIVATE_FOLDER
    group_id: int | None = None
    owner_id: int | None = None

    @classmethod
    def of_group(cls, group: str | int | None) -> Self:
        """The access of a new journal: its owner, and the members of a group, which may append to it too.

        Args:
            group: name or id, which may be text, as on a command line; None: only the owner.

        Raises:
            ValueError: this host does not know the group.
        """
        if group is None:
            return cls()
        if isinstance(group, int):
            return cls(GROUP_FILE, GROUP_FOLDER, group)
        try:
            return cls(GROUP_FILE, GROUP_FOLDER, grp.getgrnam(group).gr_gid)
        except (KeyError, TypeError):
            if isinstance(group, str) and group.isascii() and group.isdecimal():
                return cls(GROUP_FILE, GROUP_FOLDER, int(group))
            raise ValueError(f"group is {group!r}; it must be the name or id of a group of this host") from None

    @classmethod
    def of_journal(cls, folder: Path, decisive: str = CONTROL_NAME) -> Self:
        """The access of an existing journal.

        Args:
            decisive: name of the file whose mode and group others are given.
        """
        control, at = (folder / decisive).stat(), folder.stat()
        return cls(stat.S_IMODE(control.st_mode) & 0o666, stat.S_IMODE(at.st_mode), control.st_gid, control.st_uid)

    def give(self, file: int | Path, *, is_folder: bool = False) -> None:
        """Give a new file or folder this access, whatever the umask is.

        Args:
            file: its descriptor or path.

        Raises:
            ReadOnly: the process's user is not in the group.
        """
        status, mode = os.stat(file), self.folder_mode if is_folder else self.file_mode
        try:
            if self.group_id is not None and status.st_gid != self.group_id and mode & stat.S_IRWXG:
                os.chown(file, -1, self.group_id)
            if self.owner_id is not None and status.st_uid != self.owner_id and os.geteuid() == 0:
                os.chown(file, self.owner_id, -1)  # what root makes in a user's journal is the user's
            if stat.S_IMODE(status.st_mode) != mode:
                os.chmod(file, mode)
        except PermissionError as refused:
            path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file
            raise ReadOnly(
                f"{path}: cannot be given to group {self.group_id} ({(refused.strerror or 'refused').lower()}); the "
                "user of this process must own the file and be in the group"
            ) from None


PRIVATE = Access()
