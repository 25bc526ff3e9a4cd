"""What a gateway has of the session that it sends. The next session has another one of these; nothing is carried over.

It reads the session's source journal for the core, indexes what is sent, and keeps the durable position, which is in
the journal's folder. Invariant: a journal has one gateway of a feed; it holds the lock of the position's file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tandemfeed.journal import Batch, NamedPosition
from tandemfeed.spark_feed.journaling.committed_records import CommittedRecords, begin_record, last_commit
from tandemfeed.spark_feed.journaling.records import POSITION_NAME, RecordKind, packets_in
from tandemfeed.spark_feed.sending.fill_service import JournalReader, PreviousSession
from tandemfeed.spark_feed.sending.pacing import Pacer
from tandemfeed.spark_feed.sending.publication import Clock, Delay, DelayedRecords, PublicationLog
from tandemfeed.spark_feed.sending.send_core import SendCore
from tandemfeed.spark_feed.sending.sent_index import SentIndex
from tandemfeed.spark_feed.sending.sessions.journals import JournalPlan
from tandemfeed.spark_feed.sharing import access_in, make
from tandemfeed.transport.process_shell import alone_with
from tandemfeed.v1 import common_pb2

LOG = logging.getLogger(__name__)
ALL_RECORDS = (1 << 63) - 1


class GatewayError(Exception):
    """The gateway cannot serve this feed from this journal; the text says why and what to do."""


def own_stream_ids(description: common_pb2.FeedDescription) -> list[int]:
    """The source streams that a source gateway sends; clients contribute the others."""
    return [each.source_stream_id for each in description.source_streams if not each.contribution_endpoint]


def position_name(description: common_pb2.FeedDescription) -> str:
    """The file in the source journal's folder with the position of a feed's gateway."""
    return f"gateway-{description.feed_id}.position" if description.delay_ns else POSITION_NAME


@contextmanager
def sole_gateway(
    journal: Path, description: common_pb2.FeedDescription, group: str | None = None
) -> Iterator[NamedPosition]:
    """Make this process the feed's only gateway of a source journal: two would double the rate and undo each other's
    position. A delayed feed's gateway reads the journal beside that of the real-time feed.

    Args:
        group: with which the journal's folder is shared if it does not exist yet.

    Returns:
        How far it has sent.

    Raises:
        OSError: another gateway sends from the journal.
    """
    if not journal.is_dir():
        LOG.warning("%s does not exist yet; waiting for the source job to create this source journal", journal)
        make(journal, group)
    path, access = journal / position_name(description), access_in(journal)
    taken = f"another gateway sends from {journal}; stop that one first"
    with closing(NamedPosition(path, access=access)) as position, alone_with(path, taken):
        yield position


class SentSession:
    """A session, which continues where an earlier gateway stopped. The caller closes it.

    Args:
        session: that the journal contains, or will contain.
        clock: measures the age of data for a delayed feed.
        group: as of `sole_gateway`.

    Attributes:
        core: says what to send, and when.
        index: of what was sent.
        reader: reads what is no longer cached.

    Raises:
        GatewayError: the journal contains something else. OSError: another gateway sends from it.
        SourceJournalError, JournalError: it cannot be read.
    """

    def __init__(
        self,
        journal: Path,
        session: int,
        description: common_pb2.FeedDescription,
        pacer: Pacer,
        clock: Clock,
        group: str | None = None,
    ) -> None:
        stream_ids = own_stream_ids(description)
        self.journal, self.session = journal, session
        self._description = description
        self.core = SendCore(description.feed_id, session, stream_ids, pacer)
        self.index = SentIndex(stream_ids)
        self.reader = JournalReader(journal, description.feed_id)
        self._is_begun = False
        self._log: PublicationLog | None = None
        with ExitStack() as opened:
            self._position = opened.enter_context(sole_gateway(journal, description, group))
            self._journal_records = opened.enter_context(CommittedRecords(journal, stream_ids))
            self._records: CommittedRecords | DelayedRecords = self._journal_records
            self._stored_position = self._position.load()
            self._recover()
            if description.delay_ns:
                delay = Delay(journal, description.delay_ns, self._stored_position or 0, clock)
                self._records = DelayedRecords(self._journal_records, opened.enter_context(closing(delay)))
            else:
                is_resumed = self._stored_position is not None
                self._log = opened.enter_context(closing(PublicationLog(journal, clock, is_resumed=is_resumed)))
            self._opened = opened.pop_all()

    def read(self) -> None:
        """Give the core the records that it needs, as far as there are any."""
        for _ in range(self.core.records_needed_count):
            entry = self._records.read()
            if entry is None:
                return
            if not self._is_begun:
                self._check_begin(entry.record)
            self.core.on_record(*entry)

    def store_position(self) -> None:
        """Store what is sent. A later gateway continues there."""
        if self._log is not None:
            self._log.note(self.core.position)
        if self.core.position != self._stored_position and self.core.position:
            self._stored_position = self.core.position
            self._position.store(self.core.position)

    def as_previous(self) -> PreviousSession:
        """What adapters may still request when the next session has begun. All of it has been sent."""
        return PreviousSession(self._description.feed_id, self.session, self.index, self.reader)

    def close(self) -> None:
        """Store the position, and release the journal. What was sent can still be read."""
        self.store_position()
        self._opened.close()

    def _recover(self) -> None:
        """Index what an earlier gateway sent, and resume after it."""
        position = self._stored_position
        if position is None:
            return
        if (record := begin_record(self.journal)) is not None:
            self._check_begin(record)
        _index_packets(self.index, self._journal_records.skip_to(position))
        self.core.resume_at(position, self.index.next_source_seqs)
        LOG.info("resumed at the stored position", extra={"next_source_seqs": self.core.next_source_seqs})

    def _check_begin(self, record: bytes) -> None:
        assert record[0] == RecordKind.BEGIN
        plan = JournalPlan.decode(record)
        found = (plan.feed, plan.session, list(plan.source_stream_ids))
        numbered_as = self._description.delayed_from or self._description.name
        expected = (numbered_as, self.session, sorted(self.index.source_stream_ids))
        if found != expected:
            raise GatewayError(
                f"{self.journal} contains (feed, session, source streams) {found}; expected {expected}: "
                "use the journal of this session, or correct --session or the cluster file"
            )
        self._is_begun = True


def read_previous(
    journal: Path, before: int, description: common_pb2.FeedDescription, clock: Clock, opened: ExitStack
) -> PreviousSession:
    """A session that another gateway, or an earlier start of this one, sent: index its whole journal.

    Args:
        before: it must be an earlier session than this one.
        opened: closes what reads the journal's age.

    Raises:
        GatewayError: the journal contains no earlier session. SourceJournalError, JournalError: it cannot be read.
    """
    plan = JournalPlan.read(journal)
    session = 0 if plan is None else plan.session
    if not 0 < session < before:
        raise GatewayError(
            f"--former-journal {journal} contains {f'session {session}' if session else 'no session'}; it must "
            f"contain a session before {before}"
        )
    stream_ids = own_stream_ids(description)
    index = SentIndex(stream_ids)
    with CommittedRecords(journal, stream_ids) as records:
        _index_packets(index, records.skip_to(ALL_RECORDS))
    reader = JournalReader(journal, description.feed_id)
    if not description.delay_ns:
        return PreviousSession(description.feed_id, session, index, reader)
    commit = last_commit(journal)
    end = 0 if commit is None else commit.next_record_index
    delay = opened.enter_context(closing(Delay(journal, description.delay_ns, clock=clock)))
    return PreviousSession(description.feed_id, session, index, reader, lambda: delay.released_position >= end)


def _index_packets(index: SentIndex, packets: Iterable[tuple[int, Batch]]) -> None:
    """Index packets that were sent before this gateway started."""
    for stream_id, batch in packets:
        found = packets_in(batch)
        for place, (first, count) in enumerate(zip(found.first_source_seq, found.message_count, strict=True)):
            index.add_journaled(stream_id, first, count, batch.first_index + place)
