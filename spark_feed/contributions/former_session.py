"""The session before this one: what adapters may still ask of it, and what it leaves to this one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Protocol

from tandemfeed.journal import Tailer
from tandemfeed.spark_feed.contributions.contribution_log import ContributionLog, copy_id, log_folder
from tandemfeed.spark_feed.contributions.records import Kind, session_in
from tandemfeed.spark_feed.contributions.recovery import Carried, JournaledPacket, JournalOfOtherStream
from tandemfeed.spark_feed.journaling.records import packet_numbers
from tandemfeed.spark_feed.sending.sent_index import SentIndex


class OpenLog(Protocol):
    """Opens the log of the next session, or (given it) of the former one."""

    def __call__(
        self, former: FormerSession | None = None, carried: Mapping[int, Carried] | None = None, /
    ) -> ContributionLog:
        """See `ContributionLog`."""
        ...


class FormerSession:
    """A former session, read from its folder.

    Args:
        next_folder: of the session that follows.
        session: the session that follows.

    Attributes:
        copy: the id of its log.
        index: where its log has each packet.

    Raises:
        JournalOfOtherStream: the folder has no session before that one, or what is left of it has gone to another
        folder. JournalError, OSError: its log cannot be read.
    """

    def __init__(self, folder: Path, source_stream_ids: Iterable[int], next_folder: Path, session: int) -> None:
        self.folder, self.session, self.copy = folder, 0, copy_id(folder)
        self.index = SentIndex(list(source_stream_ids))
        self._is_ended = False
        if self.copy:
            self._read()
        if not 0 < self.session < session:
            found = f"session {self.session}" if self.session else "no session"
            raise JournalOfOtherStream(f"--former-folder {folder} has {found}; it must have one before {session}")
        if self._is_ended and not copy_id(next_folder):
            text = f"the session after the one in {self.folder} has begun in another folder than {next_folder}"
            raise JournalOfOtherStream(f"{text}: give that one as --folder, or as --former-folder")

    def hand_over(self, open_log: OpenLog) -> ContributionLog:
        """Open the log of the next session with what is left of this one, once, and end this one.

        Raises:
            As of `ContributionLog`.
        """
        if self._is_ended:
            return open_log(None, None)
        with closing(open_log(self, None)) as former:
            log = open_log(None, former.carried())
            former.end()  # a crash before this begins the next session again, which then is not new
        self._is_ended = True
        return log

    def _read(self) -> None:
        with Tailer(log_folder(self.folder)) as tailer:
            for index, record in tailer:
                if record[0] == Kind.BEGIN:
                    self.session = session_in(record)
                elif record[0] == Kind.ENDED:
                    self._is_ended = True
                elif record[0] == Kind.NUMBERED:
                    stream_id, first, count = packet_numbers(record)
                    if stream_id in self.index.source_stream_ids:
                        self.index.add_journaled(stream_id, *JournaledPacket(first, count, index))
