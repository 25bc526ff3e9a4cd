"""A storage engine for messages: memory-mapped block files record everything, in one order, for any number of readers.

It has three faces: `Journal` (append and tail, like Chronicle Queue), `PersistentQueue` (items are pending, delivered
or cancelled) and `TransactionalStore` (atomic changes to several queues). The package imports nothing else of this
project and can be used alone. docs/journal.md is the manual; docs/journal-format.md defines the format byte by byte.
"""

from journal.batch import Batch
from journal.errors import (
    BlockCorrupt,
    DiskFull,
    Diverged,
    ForeignFile,
    JournalClosed,
    JournalError,
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
from journal.keeper import Retention, Upkeep
from journal.named_position import NamedPosition
from journal.store import Journal
from journal.tailer import Tailer

__all__ = [
    "Batch",
    "BlockCorrupt",
    "DiskFull",
    "Diverged",
    "ForeignFile",
    "Journal",
    "JournalClosed",
    "JournalError",
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
