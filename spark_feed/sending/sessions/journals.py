"""The source journals in a folder, one for each session. Looking never waits, and costs a listing of the folder.

A journal counts once its source job has written its first record, which names the feed, the session and the source
streams. Folders that are not journals of this feed are reported once, and passed over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tandemfeed.journal.errors import JournalError
from tandemfeed.spark_feed.journaling.committed_records import begin_record
from tandemfeed.spark_feed.journaling.records import COMMITS_NAME, NumberingPlan, SourceJournalError
from tandemfeed.spark_feed.sending.sessions.order import FoundJournal

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """What a source journal contains, by its first record."""

    feed: str
    session: int
    source_stream_ids: tuple[int, ...]

    @classmethod
    def decode(cls, record: bytes) -> Self:
        """The plan in a BEGIN record."""
        feed = NumberingPlan.decode(record).feed
        return cls(feed.name, feed.session, tuple(sorted(feed.source_stream_ids)))

    @classmethod
    def read(cls, journal: Path) -> Self | None:
        """The plan of a journal; None if the journal is still empty.

        Raises:
            SourceJournalError, JournalError, OSError.
        """
        record = begin_record(journal)
        return None if record is None else cls.decode(record)


class SessionJournals:
    """Looks for the journals of a feed.

    Args:
        folder: with a source journal in each folder; it need not exist yet.
        feed: the feed as which its source numbers.
        position_name: the file of a journal that has the position of this feed's gateway.
    """

    def __init__(self, folder: Path, feed: str, source_stream_ids: Sequence[int], position_name: str) -> None:
        self.folder = folder
        self._feed, self._stream_ids = feed, tuple(sorted(source_stream_ids))
        self._position_name = position_name
        self._known: dict[tuple[str, int], int] = {}  # by name and inode, the session; 0: not of this feed
        self._told: dict[str, str] = {}  # the last warning about each folder

    def look(self) -> list[FoundJournal]:
        """All journals of the feed that are there now."""
        found: dict[tuple[str, int], int] = {}
        for name, inode in self._folders():
            session = self._known.get((name, inode))
            if session is None and (session := self._session_of(name)) is None:
                continue
            found[name, inode] = session
        self._known = found
        return [
            FoundJournal(session, self.folder / name, self._is_begun(name))
            for (name, _), session in found.items()
            if session
        ]

    def _folders(self) -> list[tuple[str, int]]:
        try:
            with os.scandir(self.folder) as entries:
                return sorted(
                    (entry.name, entry.inode()) for entry in entries if entry.is_dir() and entry.name[0] != "."
                )
        except FileNotFoundError:
            return []
        except OSError as failed:
            self._warn_once("", f"cannot read {self.folder}: {failed}")
            return []

    def _session_of(self, name: str) -> int | None:
        """The session of a journal; 0 if it is not of this feed; None if it must be read again at the next look."""
        journal = self.folder / name
        if not (journal / COMMITS_NAME).is_dir():
            return None
        try:
            plan = JournalPlan.read(journal)
        except (SourceJournalError, JournalError, OSError) as failed:
            self._warn_once(name, f"cannot read {journal}, so it is passed over: {failed}")
            return None
        if plan is None:
            return None
        if (plan.feed, plan.source_stream_ids) == (self._feed, self._stream_ids):
            return plan.session
        self._warn_once(
            name,
            f"{journal} contains feed {plan.feed} with source streams {list(plan.source_stream_ids)}; expected "
            f"{self._feed} with {list(self._stream_ids)}: it is passed over",
        )
        return 0

    def _warn_once(self, name: str, text: str) -> None:
        if self._told.get(name) != text:
            self._told[name] = text
            LOG.warning("%s", text)

    def _is_begun(self, name: str) -> bool:
        try:
            return os.stat(self.folder / name / self._position_name).st_size > 0
        except OSError:
            return False
