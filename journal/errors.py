"""What can go wrong with a journal, each with what to do about it in its text."""

from __future__ import annotations


class JournalError(Exception):
    """Any of the below."""


class JournalLocked(JournalError):
    """Another process appends to this journal."""


class ForeignFile(JournalError):
    """A file in the journal's folder is no block file, or belongs to another journal."""


class NewerFormat(JournalError):
    """A file of another format version: read it with the release that wrote it, or a later one."""


class BlockCorrupt(JournalError):
    """A block file's header is damaged, so nothing in it can be trusted."""


class DiskFull(JournalError):
    """No room for another block; nothing appended so far is lost, and appending resumes when there is room."""


class RecordTooLong(JournalError):
    """The record, or the batch, is longer than a block can be."""


class NoSuchRecord(JournalError):
    """No record at this index: never written, damaged, or released by retention."""


class SettingsDiffer(JournalError):
    """The journal was made with other settings than it is opened with."""


class WrongKey(JournalError):
    """The journal is encrypted with another key, or with one where none was given, or not at all."""


class NetworkFileSystem(JournalError):
    """The folder is on a network file system, where mapped files of several hosts do not agree."""


class ReadOnly(JournalError):
    """The folder cannot be written."""


class NotReplicated(JournalError):
    """No follower acknowledged in time; the record is in this journal all the same.

    Attributes:
        index: of the record.
    """

    def __init__(self, text: str, index: int = -1) -> None:
        super().__init__(text)
        self.index = index


class Diverged(JournalError):
    """A follower holds other records than its leader at the same index: one of the two must be made anew.

    Attributes:
        index: of the first segment that differs; -1 if not known.
    """

    def __init__(self, text: str, index: int = -1) -> None:
        super().__init__(text)
        self.index = index


class JournalClosed(JournalError):
    """It was closed, or this process was forked from the one that opened it: open it again."""
