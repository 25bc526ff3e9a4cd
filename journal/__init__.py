"""A record-everything store: preallocated, memory-mapped block files, one appender, any number of read-only tailers.

Usable by itself: imports nothing else of this project. The format is docs/journal-format.md, byte by byte.
"""

from journal.errors import (
    BlockCorrupt,
    DiskFull,
    ForeignFile,
    JournalError,
    JournalLocked,
    NewerFormat,
    NoSuchRecord,
    RecordTooLong,
)
from journal.named_position import NamedPosition
from journal.store import Journal
from journal.tailer import Tailer

__all__ = [
    "BlockCorrupt",
    "DiskFull",
    "ForeignFile",
    "Journal",
    "JournalError",
    "JournalLocked",
    "NamedPosition",
    "NewerFormat",
    "NoSuchRecord",
    "RecordTooLong",
    "Tailer",
]
