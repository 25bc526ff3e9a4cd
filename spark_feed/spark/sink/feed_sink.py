"""`df.writeStream.format("tandemfeed")`: the rows of a query become a feed's source messages, in a source journal.

Tasks convert, screen and encode rows into blocks; the driver's commit numbers, packs and appends them, once for each
batch id of Spark. Never: a task that touches the journal, so a task may run any number of times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.spark_feed.feed_plan import FeedPlan, read_feed_plan
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.pending_batch import drop_pending, load_pending, store_pending
from tandemfeed.spark_feed.journaling.records import NumberingPlan
from tandemfeed.spark_feed.numbering.rows.column_split import Split, SplitError, parse_split
from tandemfeed.spark_feed.numbering.rows.encoding import TickEncoder
from tandemfeed.spark_feed.numbering.rows.packing import Block
from tandemfeed.spark_feed.numbering.rows.screening import Refused, Rules, Screen
from tandemfeed.spark_feed.numbering.split_words import LETTER, SYMBOL
from tandemfeed.spark_feed.numbering.tasks.quarantine import Quarantine
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.options import count, require_known, required
from tandemfeed.spark_feed.spark.sink.feed_rows import FeedRows
from tandemfeed.spark_feed.spark.sink.query_checkpoint import flush_planned, query_of

PACKET_MESSAGES = 16
OPTIONS = (
    *("journal", "sourceFormat", "feedDescription", "session", "message", "split", "splitColumn"),
    *("packetMessagesMax", "symbols", "quarantine", "group"),
)
ONE_PACKET_RANGE = 1 << 62  # packets end with their batch, not at record indexes


@dataclass(slots=True)
class EncodedRows(WriterCommitMessage):
    """What a task made of its rows.

    Attributes:
        parts: for each batch of rows, a block for each source stream; records count from 0.
        refused: rows that make no message.
    """

    row_count: int = 0
    parts: list[list[Block]] = field(default_factory=list)
    refused: list[tuple[Any, list[Refused], int]] = field(default_factory=list)  # rows, which, place of the first


@dataclass(frozen=True)
class FeedWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one query.

    Attributes:
        checkpoint: the folder of the query's checkpoint.
        query: identifies it.
        group: with which the journal is shared.
    """

    schema: Any
    source_format: SourceFormat
    format_digest: str
    feed: FeedPlan
    journal: Path
    quarantine: Path
    split: Split
    packet_messages_max: int
    kind: str
    rules: Rules
    checkpoint: Path
    query: str
    group: str | None = None

    def rows(self) -> FeedRows:
        """Converts the query's rows."""
        also = (*self.split.columns, *self.rules.columns)
        return FeedRows(self.source_format, to_arrow_schema(self.schema, timezone="UTC"), self.kind, also)

    def write(self, iterator: Iterator[Any]) -> EncodedRows:
        """Encode a task's rows."""
        rows_of = self.rows()
        encoder = TickEncoder(self.source_format, self.split, len(self.feed.source_stream_ids))
        screen, done = Screen(self.source_format, self.rules), EncodedRows()
        for batch in iterator:
            if not batch.num_rows:
                continue
            rows, refused = rows_of.table(batch, done.row_count)
            known = {each.place for each in refused}
            refused = sorted([*refused, *(each for each in screen.refused(rows) if each.place not in known)])
            is_good = np.ones(rows.num_rows, np.bool_)
            is_good[[each.place for each in refused]] = False
            done.parts.append(encoder.encode(rows, is_good))
            if refused:
                done.refused.append((batch, refused, done.row_count))
            done.row_count += rows.num_rows
        return done

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Number and append a micro-batch, unless that is done."""
        parts: list[list[Block]] = []
        with SourceJournalWriter(self.journal, self._plan(), group=self.group) as writer:
            last = writer.last_commit
            if last.next_record_index and batchId <= last.batch_id:
                return
            quarantine = Quarantine(f"batch-{batchId}", last.next_record_index)
            row_count = 0
            for each in messages:
                assert isinstance(each, EncodedRows), "Spark commits only if every task has ended"
                parts += [_moved(part, last.next_record_index + row_count) for part in each.parts]
                for rows, refused, first in each.refused:
                    quarantine.add(rows, row_count + first, refused)
                row_count += each.row_count
            pending = load_pending(self.journal, batchId, len(self.feed.source_stream_ids))
            if pending is None:
                flush_planned(self.checkpoint, batchId)
                quarantine.write(self.quarantine / f"batch-{batchId}.parquet")
            parts = parts if pending is None else pending
            store_pending(self.journal, batchId, parts)
            writer.append_batch(batchId, parts)
            drop_pending(self.journal)

    def _plan(self) -> NumberingPlan:
        return NumberingPlan(
            feed=self.feed,
            split=self.split.value,
            packet_messages_max=self.packet_messages_max,
            packet_records=ONE_PACKET_RANGE,
            recording=self.query,
            format_digest=self.format_digest,
            rules=self.rules.text,
        )


def _split(options: Any, feed: FeedPlan) -> Split:
    try:
        split = parse_split(
            options.get("split", LETTER), feed.source_stream_ids, options.get("splitColumn", "") or SYMBOL
        )
    except SplitError as reason:
        raise TableError(f"option 'split': {reason}") from None
    if split.rule is None:
        raise TableError(
            "option 'split' is 'index'; a query's rows have no order of their own, so choose another split"
        )
    return split


def _check_split(split: Split, schema: Any) -> None:
    try:
        split.check(schema)
    except SplitError as reason:
        raise TableError(f"option 'split': {reason}") from None


def feed_writer(options: Any, schema: Any) -> FeedWriter:
    """The writer that the options describe (docs/spark.md).

    Raises:
        TableError: an option or a column is missing or cannot be used; DocumentError, SettingsError: of the files.
    """
    require_known(options, OPTIONS)
    path = Path(required(options, "sourceFormat"))
    source_format = load_source_format(path)
    journal = Path(required(options, "journal")).absolute()
    symbols = options.get("symbols", "")
    feed = read_feed_plan(required(options, "feedDescription")).in_session(_session(options))
    checkpoint = Path(required(options, "checkpointLocation").removeprefix("file:"))
    writer = FeedWriter(
        schema=schema,
        source_format=source_format,
        format_digest=hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        feed=feed,
        journal=journal,
        quarantine=Path(options.get("quarantine", "") or journal / "quarantine"),
        split=_split(options, feed),
        packet_messages_max=count(options, "packetMessagesMax", PACKET_MESSAGES),
        kind=options.get("message", ""),
        rules=Rules(frozenset(Path(symbols).read_bytes().split()) if symbols else frozenset()),
        checkpoint=checkpoint,
        query=query_of(checkpoint),
        group=options.get("group", "") or None,
    )
    writer.rows()  # checks the columns
    if writer.split.column != "kind" or not writer.kind:
        _check_split(writer.split, to_arrow_schema(schema, timezone="UTC"))
    return writer


def _session(options: Mapping[str, str]) -> int:
    return count(options, "session", 1) if options.get("session") else 0


def _moved(part: Sequence[Block], offset: int) -> list[Block]:
    """The blocks with record indexes that begin at an offset."""
    return [
        block._replace(
            first_record_index=block.first_record_index + offset,
            end_record_index=block.end_record_index + offset,
            record_index=block.record_index + offset,
        )
        for block in part
    ]
