"""A storage engine for messages: memory-mapped block files record everything, in one order, for any number of readers.

It has three faces: `Journal` (append and tail, like Chronicle Queue), `PersistentQueue` (items are pending, delivered
or cancelled) and `TransactionalStore` (atomic changes to several queues). The package imports nothing else of this
project and can be used alone. docs/journal.md is the manual; docs/journal-format.md defines the format byte by byte.
"""

from tandemfeed.journal.batch import Batch
from tandemfeed.journal.errors import (
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
from tandemfeed.journal.keeper import Retention, Upkeep
from tandemfeed.journal.named_position import NamedPosition
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
