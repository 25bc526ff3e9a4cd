"""The findings of a verification, a type for each kind. As text: file, offset, index and what is wrong.

`offset` is in the uncompressed block file; `index` is of the record at, or next after, that offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tandemfeed.journal.roll_cycle import format_index
from tandemfeed.journal.source_sequence import Stream


@dataclass(frozen=True, slots=True)
class Finding:
    """Base class of findings."""

    path: Path
    offset: int
    index: int | None

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        raise NotImplementedError

    def __str__(self) -> str:
        at = "" if self.index is None else f" index {format_index(self.index)}"
        return f"{self.path.name} offset {self.offset}{at}: {self.what}"


@dataclass(frozen=True, slots=True)
class FileUnreadable(Finding):
    """The file is unreadable: damaged header, truncated, not decompressible, or of another journal."""

    reason: str

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return f"the file cannot be read: {self.reason.removeprefix(f'{self.path}: ')}"


@dataclass(frozen=True, slots=True)
class FileMissing(Finding):
    """The journal continues in a file that is missing."""

    missing: str

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return f"the journal continues in {self.missing}, which is missing"


@dataclass(frozen=True, slots=True)
class BytesDamaged(Finding):
    """Bytes that are not a whole segment; `end` is where the next whole segment begins, None if there is none."""

    end: int | None
    lost_count: int | None

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        to = "no whole segment after it" if self.end is None else f"the next whole segment is at offset {self.end}"
        if self.lost_count is None:
            lost = "unknown number of records lost"
        else:
            lost = f"{self.lost_count} record{'' if self.lost_count == 1 else 's'} lost"
        return f"damaged, {lost}, {to}"


@dataclass(frozen=True, slots=True)
class SegmentNotOpened(Finding):
    """An encrypted segment that cannot be decrypted with the journal's key."""

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return "the encrypted segment cannot be decrypted with the journal's key"


@dataclass(frozen=True, slots=True)
class LengthsDiffer(Finding):
    """The lengths of a segment's records do not add up to its length."""

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return "the lengths of the records do not add up to the segment's length"


@dataclass(frozen=True, slots=True)
class SequenceJumps(Finding):
    """A segment or a file does not continue with the expected index."""

    due_index: int

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return f"continues with this index; expected {format_index(self.due_index)}"


@dataclass(frozen=True, slots=True)
class TimeGoesBack(Finding):
    """A segment is older than the one before it."""

    at_ns: int
    before_ns: int

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return f"appended at {self.at_ns} ns, {self.before_ns - self.at_ns} ns earlier than the segment before it"


@dataclass(frozen=True, slots=True)
class EndMarkMissing(Finding):
    """A file has no end mark, although a later file exists."""

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return "no end mark, although a later file exists; the next appender to open the journal adds it"


@dataclass(frozen=True, slots=True)
class IndexEntryWrong(Finding):
    """A sparse index entry does not name the first segment of its stretch, which misleads lookups."""

    entry: int
    reason: str

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return f"entry {self.entry} of the sparse index {self.reason}"


@dataclass(frozen=True, slots=True)
class CheckpointWrong(Finding):
    """A checkpoint contradicts the data."""

    reason: str

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return f"checkpoint: {self.reason}"


@dataclass(frozen=True, slots=True)
class TailWrong(Finding):
    """The summary at a file's end contradicts the data."""

    reason: str

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return f"tail: {self.reason}"


@dataclass(frozen=True, slots=True)
class ControlWrong(Finding):
    """The control file contradicts the block files, and there is no appender that could be changing it."""

    reason: str

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return self.reason


@dataclass(frozen=True, slots=True)
class SourceGap(Finding):
    """Sequence numbers of a source stream are missing: `due` to before `found`."""

    stream: Stream
    due: int
    found: int

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        missing = self.found - self.due
        numbers = f"{self.due}" if missing == 1 else f"{self.due} to {self.found - 1} ({missing})"
        return f"source stream {self.stream!r} continues with {self.found}; missing: {numbers}"


@dataclass(frozen=True, slots=True)
class SourceGoesBack(Finding):
    """A sequence number of a source stream is repeated or late."""

    stream: Stream
    due: int
    found: int

    @property
    def what(self) -> str:
        """What is wrong, as text."""
        return f"source stream {self.stream!r} goes back to {self.found}; expected {self.due}"
