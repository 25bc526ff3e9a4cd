"""The events about what a subscription keeps on the disk, which never stops its stream."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

from tandemfeed.runtime.durable import FlushFailed

REMEDIES = {
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some of the user's quota on its disk",
    errno.EACCES: "let this user write there, or set XDG_STATE_HOME to a folder where it may",
    errno.EPERM: "let this user write there, or set XDG_STATE_HOME to a folder where it may",
    errno.EROFS: "set XDG_STATE_HOME to a folder on a disk that can be written",
}


@dataclass(frozen=True, slots=True)
class NotStored:
    """A file cannot be written; the stream continues, and writing is tried again. Reported once until it succeeds.

    Attributes:
        reason: a sentence: what could not be written, why, what follows, and what to do.
    """

    path: str
    reason: str

    @classmethod
    def because(cls, path: Path, error: OSError, consequence: str) -> Self:
        """The event for an error."""
        remedy = REMEDIES.get(error.errno or 0, "repair the disk or the folder")
        why = os.strerror(error.errno or 0) if isinstance(error, FlushFailed) else error.strerror or str(error)
        if error.filename is not None and Path(error.filename) != path:
            why += f" ({error.filename})"
        return cls(str(path), f"cannot write {path}: {why}; {consequence} meanwhile; {remedy}")


@dataclass(frozen=True, slots=True)
class StoredAgain:
    """After `NotStored`: the file could be written."""

    path: str


StorageEvent: TypeAlias = NotStored | StoredAgain
