"""A storage engine for messages: memory-mapped block files record everything, in one order, for any number of readers.

It has three faces: `Journal` (append and tail, like Chronicle Queue), `PersistentQueue` (items are pending, delivered
or cancelled) and `TransactionalStore` (atomic changes to several queues). The package imports nothing else of this
project and can be used alone. docs/journal.md is the manual; docs/journal-format.md defines the format byte by byte.

What needs numba is imported when it is first used: a program that only handles the errors starts half a second sooner.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tandemfeed.journal.errors import (
    BlockCorrupt,
    DiskFull,
    Diverged,
    ForeignFile,
    JournalClosed,
    JournalError,
    JournalFailed,
    JournalLocked,
    NetworkFileSystem,
    NewerFormat,
    NoSuchRecord,
    NotReplicated,
    ReadOnly,
    RecordTooLong,
    SettingsDiffer,
    WrongKey,
)
from tandemfeed.journal.format.named_position import NamedPosition

if TYPE_CHECKING:
    from tandemfeed.journal.append.keeper import Upkeep
    from tandemfeed.journal.append.retention import Retention
    from tandemfeed.journal.read.batch import Batch
    from tandemfeed.journal.store import Journal
    from tandemfeed.journal.tailer import Tailer

__all__ = [
    "Batch",
    "BlockCorrupt",
    "DiskFull",
    "Diverged",
    "ForeignFile",
    "Journal",
    "JournalClosed",
    "JournalError",
    "JournalFailed",
    "JournalLocked",
    "NamedPosition",
    "NetworkFileSystem",
    "NewerFormat",
    "NoSuchRecord",
    "NotReplicated",
    "ReadOnly",
    "RecordTooLong",
    "Retention",
    "SettingsDiffer",
    "Tailer",
    "Upkeep",
    "WrongKey",
]
_MODULES = {
    "Batch": "read.batch",
    "Journal": "store",
    "Retention": "append.retention",
    "Tailer": "tailer",
    "Upkeep": "append.keeper",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
