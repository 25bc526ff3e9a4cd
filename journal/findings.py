"""What can be wrong with a journal, each a type; as text: what, in which file, where, at which index.

`offset` is in the block file, as it is when not compressed; `index` is of the record at, or next behind, that place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from journal.roll_cycle import format_index
from journal.source_sequence import Stream


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    path: Path
    offset: int
    index: int | None

    @property
    def what(self) -> str:
        """In words."""
        raise NotImplementedError

    def __str__(self) -> str:
        at = "" if self.index is None else f" index {format_index(self.index)}"
        return f"{self.path.name} offset {self.offset}{at}: {self.what}"


@dataclass(frozen=True, slots=True)
class FileUnreadable(Finding):
    """Header damaged, cut short, does not decompress, another journal's: nothing in it can be read."""

    reason: str

    @property
    def what(self) -> str:
        """In words."""
        return f"the file cannot be read: {self.reason.removeprefix(f'{self.path}: ')}"


@dataclass(frozen=True, slots=True)
class FileMissing(Finding):
    """The journal goes on in a file that is not there."""

    missing: str

    @property
    def what(self) -> str:
        """In words."""
        return f"the journal goes on in {self.missing}, which is not there"


@dataclass(frozen=True, slots=True)
class BytesDamaged(Finding):
    """Bytes that are no whole segment; `end` is where the next one begins, None if none does."""

    end: int | None
    lost_count: int | None

    @property
    def what(self) -> str:
        """In words."""
        to = "nothing whole behind it" if self.end is None else f"whole again from offset {self.end}"
        if self.lost_count is None:
            lost = "how many records it took is not known"
        else:
            lost = f"{self.lost_count} record{'' if self.lost_count == 1 else 's'} lost"
        return f"damaged, {lost}, {to}"


@dataclass(frozen=True, slots=True)
class SegmentNotOpened(Finding):
    """An encrypted segment that its key does not open."""

    @property
    def what(self) -> str:
        """In words."""
        return "the encrypted segment was changed: its key does not open it"


@dataclass(frozen=True, slots=True)
class LengthsDiffer(Finding):
    """The lengths of a segment's records do not add up to its own."""

    @property
    def what(self) -> str:
        """In words."""
        return "the lengths of the records do not add up to the segment's"


@dataclass(frozen=True, slots=True)
class SequenceJumps(Finding):
    """A segment, or a file, does not go on with the index that was due."""

    due_index: int

    @property
    def what(self) -> str:
        """In words."""
        return f"goes on with this index where {format_index(self.due_index)} was due"


@dataclass(frozen=True, slots=True)
class TimeGoesBack(Finding):
    """A segment is older than the one before it."""

    at_ns: int
    before_ns: int

    @property
    def what(self) -> str:
        """In words."""
        return f"appended at {self.at_ns} ns, {self.before_ns - self.at_ns} ns before the segment in front of it"


@dataclass(frozen=True, slots=True)
class EndMarkMissing(Finding):
    """The journal went on in a later file, and this one does not say so."""

    @property
    def what(self) -> str:
        """In words."""
        return "no end mark, though the journal goes on in a later file; the next appender to open it puts that right"


@dataclass(frozen=True, slots=True)
class IndexEntryWrong(Finding):
    """An entry of the sparse index is not the first segment of its stretch; looking up goes astray."""

    entry: int
    reason: str

    @property
    def what(self) -> str:
        """In words."""
        return f"entry {self.entry} of the sparse index {self.reason}"


@dataclass(frozen=True, slots=True)
class CheckpointWrong(Finding):
    """A checkpoint does not agree with the data."""

    reason: str

    @property
    def what(self) -> str:
        """In words."""
        return f"checkpoint: {self.reason}"


@dataclass(frozen=True, slots=True)
class TailWrong(Finding):
    """The summary at a file's end does not agree with the data."""

    reason: str

    @property
    def what(self) -> str:
        """In words."""
        return f"tail: {self.reason}"


@dataclass(frozen=True, slots=True)
class ControlWrong(Finding):
    """The control file does not agree with the files, and no appender lives who could be in the middle of it."""

    reason: str

    @property
    def what(self) -> str:
        """In words."""
        return self.reason


@dataclass(frozen=True, slots=True)
class SourceGap(Finding):
    """Sequence numbers of a source stream are missing: `due` to before `found`."""

    stream: Stream
    due: int
    found: int

    @property
    def what(self) -> str:
        """In words."""
        missing = self.found - self.due
        numbers = f"{self.due}" if missing == 1 else f"{self.due} to {self.found - 1} ({missing})"
        return f"source stream {self.stream!r} goes on with {self.found}; missing: {numbers}"


@dataclass(frozen=True, slots=True)
class SourceGoesBack(Finding):
    """A source stream's sequence number was there before, or comes late."""

    stream: Stream
    due: int
    found: int

    @property
    def what(self) -> str:
        """In words."""
        return f"source stream {self.stream!r} goes back to {self.found}; due: {self.due}"
