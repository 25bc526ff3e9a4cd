"""`spark.read.format("tandemfeed.source-journal")`: a source journal as a table of the messages of one type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE
from tandemfeed.journal import Batch, NoSuchRecord, Tailer
from tandemfeed.spark_feed.journaling.committed_records import begin_record, last_commit
from tandemfeed.spark_feed.journaling.records import PACKET_FIELDS, PACKET_HEAD, NumberingPlan, stream_folder
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.options import chosen, require_known, required
from tandemfeed.spark_feed.spark.source_journals import frame_kernels as kernels
from tandemfeed.spark_feed.spark.source_journals.source_table import NUMBERS, SourceTable, source_table
from tandemfeed.spark_feed.spark.table.columns import check_columns, chosen_columns
from tandemfeed.spark_feed.spark.table.conditions import Condition, take_filters
from tandemfeed.spark_feed.spark.table.message_kernels import copy_frames
from tandemfeed.spark_feed.spark.table.message_table import TIMES

READ_COUNT = 4_096  # packets
SLICE_MESSAGES = 1_000_000  # a task of about a second
OPTIONS = ("sourceFormat", "message", "columns", "times")


class SourceJournalSource(DataSource):
    """Its options are the path to load, and `sourceFormat`, `message`, `columns` and `times` (docs/spark.md)."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "tandemfeed.source-journal"

    def schema(self) -> Any:
        """The columns that the options choose."""
        return chosen_columns(self._table().schema, self.options.get("columns", ""))

    def reader(self, schema: Any) -> DataSourceReader:
        """A reader of these columns."""
        table = self._table()
        check_columns(schema, table.schema)
        return SourceJournalReader(Path(required(self.options, "path")), table, schema)

    def _table(self) -> SourceTable:
        require_known(self.options, OPTIONS)
        source_format = load_source_format(Path(required(self.options, "sourceFormat")))
        return source_table(source_format, self.options.get("message", ""), chosen(self.options, "times", TIMES))


@dataclass(slots=True)
class SourceSlice(InputPartition):
    """Committed packets of a source stream, for one task; `end_seq` is after its last message."""

    source_stream_id: int
    session: int
    first_index: int
    end_index: int
    first_seq: int
    end_seq: int


class SourceJournalReader(DataSourceReader):
    """Plans in the driver, reads in the executors."""

    def __init__(self, journal: Path, table: SourceTable, schema: Any) -> None:
        self._journal, self._table, self._schema = journal, table, schema
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take the filters on numbers; the others stay with Spark."""
        self._conditions, left = take_filters(filters, self._table.value_kinds)
        return left

    def partitions(self) -> list[SourceSlice]:
        """The slices that may have messages for the filters.

        Raises:
            TableError: it is not a source journal, or has no commit yet.
        """
        begin, commit = begin_record(self._journal), last_commit(self._journal)
        if begin is None or commit is None:
            raise TableError(
                f"{self._journal} has no commit; give the folder of a source journal (`source-job --journal`)"
            )
        session = NumberingPlan.decode(begin).feed.session
        slices: list[SourceSlice] = []
        for stream_id, end in sorted(commit.streams.items()):
            slices += self._slices(stream_id, session, end.end_index)
        return [each for each in slices if self._may_match(each)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The messages of a slice."""
        if not isinstance(partition, SourceSlice):
            return  # what Spark makes of no slices
        with Tailer(stream_folder(self._journal, partition.source_stream_id)) as tailer:
            try:
                tailer.to_index(partition.first_index)
            except NoSuchRecord as gone:
                raise TableError(
                    f"{gone}: the journal was changed since the query began; run the query again"
                ) from None
            while (batch := tailer.read_batch(READ_COUNT, mixed=True)) is not None:
                if batch.first_index >= partition.end_index:
                    return
                if (found := self._record_batch(partition, batch.until(partition.end_index))).num_rows:
                    yield found

    def _slices(self, stream_id: int, session: int, end_index: int) -> list[SourceSlice]:
        found: list[SourceSlice] = []
        with Tailer(stream_folder(self._journal, stream_id)) as tailer:
            while (batch := tailer.read_batch(READ_COUNT, mixed=True)) is not None and batch.first_index < end_index:
                batch = batch.until(end_index)
                packet = batch.heads(PACKET_FIELDS.itemsize).view(PACKET_FIELDS).reshape(-1)["packet"]
                first = int(packet["first_source_seq"][0])
                end = int(packet["first_source_seq"][-1]) + int(packet["message_count"][-1])
                last = found[-1] if found else None
                if last is None or last.end_index != batch.first_index or end - last.first_seq > SLICE_MESSAGES:
                    found.append(SourceSlice(stream_id, session, batch.first_index, batch.next_index, first, end))
                else:
                    last.end_index, last.end_seq = batch.next_index, end
        return found

    def _may_match(self, part: SourceSlice) -> bool:
        ranges = {
            "session": (part.session, part.session),
            "source_stream_id": (part.source_stream_id, part.source_stream_id),
            "source_seq": (part.first_seq, part.end_seq - 1),
        }
        return all(each.may_hold(*ranges[each.column]) for each in self._conditions)

    def _record_batch(self, part: SourceSlice, batch: Batch) -> Any:
        heads = batch.heads(PACKET_FIELDS.itemsize).view(PACKET_FIELDS).reshape(-1)["packet"]
        packets = np.empty((kernels.PACKET_ROWS, len(batch)), np.int64)
        packets[kernels.START] = batch.starts + PACKET_HEAD.size + SOURCE_HEADER_SIZE
        packets[kernels.END] = batch.starts + batch.sizes
        packets[kernels.FIRST_SEQ], packets[kernels.MESSAGE_COUNT] = heads["first_source_seq"], heads["message_count"]
        found = np.empty((kernels.FOUND_ROWS, int(packets[kernels.MESSAGE_COUNT].sum())), np.int64)
        message = self._table.message
        count = kernels.find_frames(batch.data, packets, message.type_id, message.frame_size, found)
        if count < 0:
            seq = int(heads["first_source_seq"][-count - 1])
            raise TableError(
                f"the packet of message {seq} of source stream {part.source_stream_id} does not fit the source format; "
                "give the document that the journal was started with"
            )
        found = found[:, :count]
        numbers = {name: np.full(count, getattr(part, name, 0), np.int64) for name in NUMBERS}
        numbers["source_seq"] = found[kernels.SOURCE_SEQ]
        for condition in self._conditions:
            is_chosen = condition.holds(numbers[condition.column])
            numbers = {name: values[is_chosen] for name, values in numbers.items()}
            found = found[:, is_chosen]
        rows = np.empty((found.shape[1], message.frame_size), np.uint8)
        copy_frames(batch.data, np.ascontiguousarray(found[kernels.FRAME]), rows)
        return self._table.batch(self._schema, numbers, rows.reshape(-1).view(message.dtype))
