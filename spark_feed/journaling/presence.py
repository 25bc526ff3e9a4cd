"""Notices that the folder of an open journal was removed, replaced or hidden by another file system.

Appends and flushes of the open files succeed all the same, and everything in them is gone with the last process that
has them open. So a writer checks before it acknowledges records.
"""

from __future__ import annotations

import os
from pathlib import Path

from tandemfeed.journal import JournalError
from tandemfeed.journal.format.layout import CONTROL_NAME


class Presence:
    """Whether a journal is still where it was opened.

    Args:
        folder: of the journal, which is open.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._control = folder, os.fspath(folder / CONTROL_NAME)
        self._identity = self._find()

    def require(self) -> None:
        """Call it after the flush, and before anything is acknowledged.

        Raises:
            JournalError: the journal is not there any more.
        """
        if self._identity is None or self._find() != self._identity:
            raise JournalError(
                f"{self._folder} was removed or replaced while it was open, so nothing in it counts any more: restore "
                "the folder, or give another one, and start this process again"
            )

    def _find(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._control)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino
