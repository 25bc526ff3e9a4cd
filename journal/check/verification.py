"""Checks a whole journal: each file by itself, each against the next, all against the control file.

Yields findings, prints and changes nothing, and can run while appenders do: it checks all files that existed when it
began, including later appends to the newest of them. Without the key of an encrypted journal it checks everything but
the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tandemfeed.journal.check.block_check import BlockCheck
from tandemfeed.journal.check.findings import (
    ControlWrong,
    EndMarkMissing,
    FileMissing,
    FileUnreadable,
    Finding,
    SegmentNotOpened,
    SequenceJumps,
    SourceGap,
    SourceGoesBack,
)
from tandemfeed.journal.check.inspection import EndMark, OpenEnd, SegmentRows, records_of
from tandemfeed.journal.check.journal_files import JournalFiles
from tandemfeed.journal.check.source_sequence import ContinuityCheck, NumbersMissing, SequenceRule
from tandemfeed.journal.errors import JournalError
from tandemfeed.journal.format.block import Block, BlockName
from tandemfeed.journal.format.layout import DATA_OFFSET, IS_CLEAN, PART_BITS
from tandemfeed.journal.format.sealing import require_key
from tandemfeed.journal.read.continuity import PART_MASK, name_of
from tandemfeed.journal.typed_records.history import MalformedHistory, split_history


@dataclass(frozen=True, slots=True)
class _Previous:
    """The previous block and its check."""

    name: BlockName
    check: BlockCheck


class Verification:
    """A check of one journal.

    Args:
        files: of the journal.
        key: of an encrypted journal; without it, records are not decrypted.
        rule: where records have the sequence numbers of their sources, which must then increase by one.

    Attributes:
        segment_count, record_count: whole ones.
        continuity: of source sequence numbers.

    Raises:
        WrongKey: the key is not the journal's.
    """

    def __init__(self, files: JournalFiles, *, key: bytes | None = None, rule: SequenceRule | None = None) -> None:
        if key is not None or rule is not None:
            require_key(key, files.settings.key_check, files.folder)
        self.files = files
        self.names = files.names()
        self.segment_count = self.record_count = 0
        self.continuity = ContinuityCheck()
        self._key, self._rule = key, rule
        self._previous: _Previous | None = None

    def findings(self) -> Iterator[Finding]:
        """All findings."""
        for name in self.names:
            yield from self.check_file(name)
        yield from self.check_end()

    def check_file(self, name: BlockName) -> Iterator[Finding]:
        """Check a file, and whether it continues the one checked before. Call it once per file, in order."""
        words = self.files.words()
        try:
            block = self.files.open(name)
        except JournalError as reason:
            self._previous = None
            yield FileUnreadable(name.path, 0, None, str(reason))
            return
        if block is None:  # released meanwhile, and so are all older ones
            self._previous = None
            return
        if self._previous is not None:
            yield from self._check_link(self._previous, block)
        last_at_ns = self._previous.check.last_at_ns if self._previous is not None else 0
        check = BlockCheck(
            block,
            lambda sequence: self.files.index_of(block, sequence),
            self.files.written_end(block, words),
            words.next_sequence if block.ordinal == words.ordinal else None,
            last_at_ns,
            self._check_records,
        )
        yield from check.findings()
        if isinstance(check.end, OpenEnd) and block.ordinal < words.ordinal:
            yield EndMarkMissing(name.path, check.end.offset, self.files.index_of(block, check.due))
        self.segment_count += check.segment_count
        self.record_count += check.record_count
        self._previous = _Previous(name, check)

    def check_end(self) -> Iterator[Finding]:
        """Check the newest file against the control file, and the link in its end mark."""
        if self._previous is None:
            return
        previous, names = self._previous, self.files.names()
        end, path = previous.check.end, self.files.control.path
        if isinstance(end, EndMark):
            if end.link not in {name.ordinal for name in names} and not self.files.appenders():
                yield self._missing(previous, end.link)
            return
        is_clean, words = self.files.control.word(IS_CLEAN) == 1, self.files.words()
        if self.files.appenders() or not is_clean or not isinstance(end, OpenEnd):
            return  # the next appender finds the end itself
        if words.ordinal != previous.name.ordinal:
            missing = name_of(words.ordinal)
            yield ControlWrong(path, 0, None, f"the newest file is {previous.name.path.name}; expected {missing}")
        elif (words.end, words.next_sequence) != (end.offset, previous.check.due):
            yield ControlWrong(
                *(path, 0, None),
                f"{previous.name.path.name} ends at offset {words.end} before sequence {words.next_sequence}; "
                f"expected offset {end.offset} before sequence {previous.check.due}",
            )

    def _check_link(self, previous: _Previous, block: Block) -> Iterator[Finding]:
        """Check that a block continues the previous one."""
        header, end = block.header, previous.check.end
        is_same = previous.name.cycle == header.cycle
        due_part = (previous.name.ordinal & PART_MASK) + 1 if is_same else 0
        due_ordinal = end.link if isinstance(end, EndMark) else header.cycle << PART_BITS | due_part
        if self.files.settings.face == "queue" and due_ordinal < header.ordinal:
            return  # a queue recycles blocks in the middle once they have no active items
        if due_ordinal != header.ordinal:
            yield self._missing(previous, due_ordinal)
            return
        due = previous.check.due if is_same else 0
        if header.first_sequence != due:
            due_index = self.files.index_of(block, due)
            yield SequenceJumps(block.path, DATA_OFFSET, header.first_index, due_index)

    def _missing(self, previous: _Previous, ordinal: int) -> FileMissing:
        check = previous.check
        assert check.end is not None
        index = self.files.index_of(check.block, check.due)
        return FileMissing(previous.name.path, check.end.offset, index, name_of(ordinal))

    def _check_records(self, block: Block, rows: SegmentRows) -> Iterator[Finding]:
        """Check that encrypted segments can be decrypted, and that sources' sequence numbers are continuous."""
        if self._rule is None and self._key is None:
            return
        for segment in rows.views():
            records = records_of(block, segment, self._key)
            index = self.files.index_of(block, segment.first_sequence)
            if records is None:
                if segment.is_sealed:
                    yield SegmentNotOpened(block.path, segment.offset, index)
            elif self._rule is not None:
                for place, record in enumerate(records):
                    finding = self._follow(block, segment.offset, index + place, record)
                    if finding is not None:
                        yield finding

    def _follow(self, block: Block, offset: int, index: int, record: memoryview) -> Finding | None:
        assert self._rule is not None
        try:
            _, body = split_history(record)
        except MalformedHistory:
            body = record
        found = self._rule.find(body)
        outcome = None if found is None else self.continuity.add(*found)
        if outcome is None:
            return None
        kind = SourceGap if isinstance(outcome, NumbersMissing) else SourceGoesBack
        return kind(block.path, offset, index, outcome.stream, outcome.due, outcome.found)
