"""The session before this one: what adapters may still ask of it, and what it leaves to this one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Protocol

from tandemfeed.journal import Tailer
from tandemfeed.spark_feed.contributions.contributed_stream import ContributedStream
from tandemfeed.spark_feed.contributions.records import Kind, session_in
from tandemfeed.spark_feed.contributions.recovery import Carried, JournaledPacket, JournalOfOtherStream
from tandemfeed.spark_feed.journaling.records import packet_numbers, stream_folder
from tandemfeed.spark_feed.sending.sent_index import SentIndex


class OpenStream(Protocol):
    """Opens a stream of the next session, or (given it) of the former one."""

    def __call__(
        self, stream_id: int, former: FormerSession | None = None, carried: Carried | None = None, /
    ) -> ContributedStream:
        """See `ContributedStream`."""
        ...


class FormerSession:
    """A former session, read from its folder.

    Args:
        session: the one that follows.

    Attributes:
        index: where its journals have each packet.

    Raises:
        JournalOfOtherStream: the folder has no session before that one.
        JournalError, OSError: a journal cannot be read.
    """

    def __init__(self, folder: Path, source_stream_ids: Iterable[int], session: int) -> None:
        self.folder, self.session = folder, 0
        stream_ids = list(source_stream_ids)
        self.index = SentIndex(stream_ids)
        self._ended: set[int] = set()
        for stream_id in stream_ids:
            self._read(stream_id)
        if not 0 < self.session < session:
            found = f"session {self.session}" if self.session else "no session"
            raise JournalOfOtherStream(f"--former-folder {folder} has {found}; it must have one before {session}")

    def hand_over(self, stream_id: int, next_folder: Path, open_stream: OpenStream) -> ContributedStream:
        """Open the stream of the next session with what is left of this one, once, and end this one.

        Raises:
            JournalOfOtherStream: what is left has gone to another folder.
            Others: as of `ContributedStream`.
        """
        if stream_id in self._ended:
            if not stream_folder(next_folder, stream_id).exists():
                text = f"the session after the one in {self.folder} has begun in another folder than {next_folder}"
                raise JournalOfOtherStream(f"{text}: give that one as --folder, or as --former-folder")
            return open_stream(stream_id, None, None)
        with closing(open_stream(stream_id, self, None)) as former:
            stream = open_stream(stream_id, None, former.carried())
            former.end()  # a crash before this begins the next session again, which then is not new
        return stream

    def _read(self, stream_id: int) -> None:
        with Tailer(stream_folder(self.folder, stream_id)) as tailer:
            for index, record in tailer:
                if record[0] == Kind.BEGIN:
                    self.session = session_in(record)
                elif record[0] == Kind.ENDED:
                    self._ended.add(stream_id)
                elif record[0] == Kind.NUMBERED:
                    _, first, count = packet_numbers(record)
                    self.index.add_journaled(stream_id, *JournaledPacket(first, count, index))
