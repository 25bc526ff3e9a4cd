"""Errors of a journal. Each message says what to do."""

from __future__ import annotations


class JournalError(Exception):
    """Base class of all errors of this package."""


class JournalLocked(JournalError):
    """Another process holds a lock of this journal."""


class ForeignFile(JournalError):
    """A file in the journal's folder is not a block file, or belongs to another journal."""


class NewerFormat(JournalError):
    """A file has another format version: read it with the release that wrote it, or a later one."""


class BlockCorrupt(JournalError):
    """A file's header is damaged, so its contents cannot be used."""


class DiskFull(JournalError):
    """The disk has no space for another block. No record is lost; appending succeeds again once there is space."""


class JournalFailed(JournalError):
    """The disk refused to flush the journal, so records appended since the last `sync` may be lost in a power failure.

    No process can append or sync until the journal is opened again, which writes these records again.
    """


class RecordTooLong(JournalError):
    """The record or batch is larger than the largest block."""


class NoSuchRecord(JournalError):
    """There is no record at this index: it was never written, is damaged, or was released by retention."""


class SettingsDiffer(JournalError):
    """The journal was created with other settings."""


class WrongKey(JournalError):
    """The key is wrong, or missing for an encrypted journal, or given for one that is not encrypted."""


class NetworkFileSystem(JournalError):
    """The folder is on a network file system, where mapped memory is not shared between hosts."""


class ReadOnly(JournalError):
    """The folder is not writable."""


class NotReplicated(JournalError):
    """Followers did not acknowledge in time; the record is in this journal nevertheless.

    Attributes:
        index: of the record.
    """

    def __init__(self, text: str, index: int = -1) -> None:
        super().__init__(text)
        self.index = index


class Diverged(JournalError):
    """A follower's records differ from its leader's at the same index: one of the two journals must be recreated.

    Attributes:
        index: of the first segment that differs; -1 if not known.
    """

    def __init__(self, text: str, index: int = -1) -> None:
        super().__init__(text)
        self.index = index


class JournalClosed(JournalError):
    """The journal was closed, or opened before this process was forked: open it again."""
