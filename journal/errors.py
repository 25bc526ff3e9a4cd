"""What can go wrong with a journal, each with what to do about it in its text."""

from __future__ import annotations


class JournalError(Exception):
    """Any of the below."""


class JournalLocked(JournalError):
    """Another process appends to this journal."""


class ForeignFile(JournalError):
    """A file in the journal's folder is no block file."""


class NewerFormat(JournalError):
    """A block file of a later format version: read it with a later release."""


class BlockCorrupt(JournalError):
    """A block file's header is damaged, so nothing in it can be trusted."""


class DiskFull(JournalError):
    """No room for another block; nothing appended so far is lost, and appending resumes when there is room."""


class RecordTooLong(JournalError):
    """The record, or the batch, does not fit in one block."""


class NoSuchRecord(JournalError):
    """No record at this index: never written, or released by retention."""
