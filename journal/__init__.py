"""A storage engine for messages: mapped block files that record everything, in one order, for any number of readers.

Three faces over one format: `Journal` (append and tail, as Chronicle Queue does), `PersistentQueue` (items pending,
delivered, cancelled) and `TransactionalStore` (several queues changed at once). Usable by itself: imports nothing else
of this project. docs/journal.md is the manual, docs/journal-format.md the format, byte by byte.
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
