"""A follower's folder: its journal, opened exclusively, and the file that names its leader.

The leader's name is written before the journal is created, so no crash leaves a journal without it. After a write or a
flush that failed the journal is closed: opening it again makes durable what can be read of it, or fails.

Its position claims everything before it. So after a power failure, which can leave a record without those before it,
the journal is cut at the first that is missing, and the leader sends the rest again.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tandemfeed.journal.append.keeper import Upkeep
from tandemfeed.journal.errors import ForeignFile, JournalError, SettingsDiffer, WrongKey
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.format.block import blocks_in
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.filesystem import make_folder
from tandemfeed.journal.format.layout import CONTROL_NAME
from tandemfeed.journal.format.roll_cycle import RollSchedule
from tandemfeed.journal.replication.limits import TAIL_COUNT_MAX
from tandemfeed.journal.replication.segments import SegmentReader
from tandemfeed.journal.replication.wire.messages import NO_ID, Segment, SegmentDigest, Welcome
from tandemfeed.journal.store import Journal
from tandemfeed.runtime.durable import remove_file, replace_file, sync_name

LOG = logging.getLogger("tandemfeed.journal.replication")
LEADER_NAME = "leader"


class FollowerJournal:
    """A follower's journal. Not thread-safe.

    Args:
        folder: of the journal; it need not exist yet.
        key: to encrypt it with; need not be the leader's.
        durable: sync the journal before its position is reported.
        adopt: follow even with an existing journal that has no leader yet.
        upkeep: retention and so on, of the follower's journal.
        group: of a new journal; see `Journal.open`.

    Raises:
        ValueError: there is no such group.
    """

    def __init__(
        self,
        folder: Path,
        *,
        key: bytes | None,
        durable: bool,
        adopt: bool,
        upkeep: Upkeep | None,
        group: str | int | None = None,
    ) -> None:
        self._folder = folder
        self._group, self._access = group, Access.of_group(group)
        self._key = key
        self._durable = durable
        self._adopt = adopt
        self._upkeep = upkeep
        self._journal: Journal | None = None
        self._reader: SegmentReader | None = None

    def leader_id(self) -> bytes:
        """The id of the stored leader; NO_ID: none.

        Raises:
            ForeignFile: the file does not contain an id.
        """
        path = self._folder / LEADER_NAME
        try:
            return bytes.fromhex(path.read_text("ascii").strip()).ljust(len(NO_ID), b"\0")
        except FileNotFoundError:
            return NO_ID
        except ValueError:
            raise ForeignFile(f"{path} does not name a leader: restore it, or start with an empty folder") from None

    def open(self, welcome: Welcome) -> tuple[bytes, int, tuple[SegmentDigest, ...]]:
        """Open the journal with its leader's settings, unless it is open.

        Returns:
            Its id, its next index, and the digests of its last segments.

        Raises:
            SettingsDiffer, WrongKey, ForeignFile: the journal cannot follow this leader.
            JournalLocked, DiskFull, JournalFailed, OSError: temporary; try again.
        """
        if self._journal is None:
            self._journal = self._open(welcome)
            self._reader = SegmentReader(self._folder, self._key)
        assert self._reader is not None
        if self._durable:
            self._journal.sync()
        with Control(self._folder / CONTROL_NAME, writable=False) as control:
            journal_id = control.journal_id
        return journal_id.bytes, self._journal.next_index, self._reader.tail(TAIL_COUNT_MAX)

    def _open(self, welcome: Welcome) -> Journal:
        if welcome.is_encrypted and self._key is None:
            raise WrongKey(f"the leader's journal is encrypted: give {self._folder} a key of its own to follow it")
        schedule = RollSchedule.named(
            welcome.roll_cycle, epoch_offset_s=welcome.epoch_offset_s, time_zone=welcome.time_zone
        )
        make_folder(self._folder, self._access)
        block_size, cycle = welcome.block_size, welcome.oldest_index >> schedule.roll_cycle.sequence_bits
        if (self._folder / CONTROL_NAME).exists():
            block_size = self._check_settings(welcome)
        self._remember(welcome.leader_id)
        if blocks := blocks_in(self._folder):
            cycle = blocks[-1].cycle
        # The clock stands still: cycles come from the leader, so recovery must not begin one either.
        start_ns = schedule.start_ns(cycle)
        return Journal.open(
            self._folder,
            roll_cycle=welcome.roll_cycle,
            epoch_offset_s=welcome.epoch_offset_s,
            time_zone=welcome.time_zone,
            block_size=block_size,
            key=self._key,
            exclusive=True,
            group=self._group,
            upkeep=self._upkeep,
            clock_ns=lambda: start_ns,
            is_cut=True,
        )

    def _check_settings(self, welcome: Welcome) -> int:
        """The block size of the existing journal, if it may follow this leader."""
        if self.leader_id() == NO_ID and not self._adopt:
            raise ForeignFile(
                f"{self._folder} contains a journal without a leader: give another folder, or adopt it if it is a copy"
            )
        with Control(self._folder / CONTROL_NAME, writable=False) as control:
            settings = control.settings
        own = (settings.face, settings.roll_cycle, settings.epoch_offset_s, settings.time_zone)
        theirs = ("journal", welcome.roll_cycle, welcome.epoch_offset_s, welcome.time_zone)
        if own != theirs:
            raise SettingsDiffer(f"{self._folder} has settings {own}, its leader {theirs}: start with an empty folder")
        return settings.block_size

    def _remember(self, leader_id: bytes) -> None:
        if self.leader_id() == leader_id:
            sync_name(self._folder / LEADER_NAME)  # the process that wrote it may have died before it flushed the name
            return

        def write(file: BinaryIO) -> None:
            access.give(file.fileno())
            file.write(leader_id.hex().encode() + b"\n")

        has_journal = (self._folder / CONTROL_NAME).exists()
        access = Access.of_journal(self._folder) if has_journal else self._access
        replace_file(self._folder / LEADER_NAME, write)

    def append(self, index: int, segment: Segment) -> None:
        """Append a segment at exactly this index.

        Raises:
            DiskFull, RecordTooLong: not appended.
        """
        assert self._journal is not None
        found = self._journal.append_segment(
            segment.body,
            segment.count_and_flags,
            segment.record_size,
            segment.appended_at_ns,
            segment.cycle,
            segment.first_sequence,
        )
        assert found == index, f"{self._folder}: appended at {found:#x} instead of the leader's {index:#x}"

    def sync(self) -> None:
        """Flush everything appended to the disk.

        Raises:
            JournalFailed: the disk refused; call `give_up`.
        """
        assert self._journal is not None
        self._journal.sync()

    def give_up(self) -> None:
        """Close the journal after a failure: what it appended last may be only in memory, so it is not acknowledged.
        The next `open` opens it again, which recovers it."""
        try:
            self.close()
        except (JournalError, OSError):
            LOG.warning("%s: closed after a failure; opening it again", self._folder, exc_info=True)

    def look_up(self, index: int) -> SegmentDigest | None:
        """The digest of the first segment at or after an index."""
        assert self._reader is not None
        found = self._reader.segment_at(index)
        return self._reader.digest(found) if found is not None else None

    def close(self) -> None:
        """Sync and close the journal; it can be opened again.

        Raises:
            JournalFailed: not everything is on the disk; it is closed all the same.
        """
        (reader, self._reader), (journal, self._journal) = (self._reader, None), (self._journal, None)
        if reader is not None:
            reader.close()
        if journal is not None:
            journal.close()

    def promote(self) -> Journal:
        """Forget the leader, and return the journal opened for appending; everything in it is on the disk.

        Raises:
            JournalFailed, OSError: the disk refuses; try again.
        """
        with Control(self._folder / CONTROL_NAME, writable=False) as control:
            settings = control.settings
        journal = Journal.open(
            self._folder,
            roll_cycle=settings.roll_cycle,
            epoch_offset_s=settings.epoch_offset_s,
            time_zone=settings.time_zone,
            block_size=settings.block_size,
            key=self._key,
            upkeep=self._upkeep,
        )
        try:
            journal.sync()  # a follower that is not durable has not flushed what it appended
            remove_file(self._folder / LEADER_NAME)
        except BaseException:
            with suppress(JournalError):
                journal.close()
            raise
        return journal
