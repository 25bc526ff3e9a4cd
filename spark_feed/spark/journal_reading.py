"""Reads a slice of an output journal into Arrow batches, in an executor's task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    HEARTBEAT_BIT,
    OUTPUT_HEADER_SIZE,
    OUTPUT_MAGIC,
    PROVISIONAL_BIT,
)
from tandemfeed.journal import Batch, NoSuchRecord, Tailer
from tandemfeed.spark_feed.spark import message_kernels as kernels
from tandemfeed.spark_feed.spark.conditions import Condition, bounds_of
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.journal_scan import HEADERS, JournalSlice
from tandemfeed.spark_feed.spark.message_table import NUMBERS, MessageTable

READ_COUNT = 4_096  # packets: some 65,000 messages, whose columns fit in the processor's cache


def read_slice(
    journal: Path, part: JournalSlice, table: MessageTable, schema: Any, conditions: Sequence[Condition]
) -> Iterator[Any]:
    """The messages of a slice that meet the conditions, as record batches of a Spark schema.

    Raises:
        TableError: retention has released the records meanwhile, or a packet is malformed.
    """
    with Tailer(journal) as tailer:
        try:
            tailer.to_index(part.first_index)
        except NoSuchRecord as gone:
            raise TableError(f"{gone}: retention has released it since the query began; run the query again") from None
        while (batch := tailer.read_batch(READ_COUNT, mixed=True)) is not None and batch.first_index < part.end_index:
            found = _SliceBatch(batch.until(part.end_index), part, table, conditions)
            if found.message_count:
                yield found.record_batch(schema)


class _SliceBatch:
    """The messages of a batch of journal records that belong to a slice and meet the conditions."""

    def __init__(self, batch: Batch, part: JournalSlice, table: MessageTable, conditions: Sequence[Condition]) -> None:
        self._batch, self._part, self._table = batch, part, table
        self._headers = batch.heads(OUTPUT_HEADER_SIZE).view(HEADERS).reshape(-1)
        self._epochs = self._headers["epoch"].astype(np.int64)
        self._low_seq, self._end_seq = bounds_of(conditions, "message_seq")
        self._packets = self._chosen_packets()
        self._found = self._find()
        self._rows: Any = None
        of_fields = [each for each in conditions if each.column not in NUMBERS]
        for each in conditions:
            if each not in of_fields:
                self._keep(each.holds(self._number(each.column)))
        self._rows = self._fields()
        for each in of_fields:
            self._keep(each.holds(table.field_values(self._rows, each.column)))

    @property
    def message_count(self) -> int:
        """The messages."""
        return int(self._found.shape[1])

    def record_batch(self, schema: Any) -> Any:
        """The messages as a record batch."""
        numbers = {name: self._number(name) for name in schema.fieldNames() if name in NUMBERS}
        return self._table.batch(schema, numbers, self._rows)

    def _chosen_packets(self) -> NDArray[np.int64]:
        """The places of the slice's packets in the batch."""
        part, headers = self._part, self._headers
        is_chosen = headers["magic"] == OUTPUT_MAGIC
        is_chosen &= headers["flags"] & (HEARTBEAT_BIT | ANNOUNCEMENT_BIT) == 0
        is_chosen &= (headers["channel_id"] == part.channel_id) & (headers["session"] == part.session)
        is_chosen &= headers["message_count"] > 0
        is_chosen &= headers["first_message_seq"] < self._end_seq
        is_chosen &= headers["first_message_seq"] + headers["message_count"] > self._low_seq
        for place in np.flatnonzero(is_chosen & (headers["flags"] & PROVISIONAL_BIT != 0)).tolist():
            is_chosen[place] = self._is_committed(place)
        return np.flatnonzero(is_chosen)

    def _is_committed(self, place: int) -> bool:
        index, first = self._batch.first_index + place, int(self._headers["first_input_seq"][place])
        for commit in self._part.commits:
            if commit.begin_index <= index < commit.end_index and first >= commit.first_input_seq:
                self._epochs[place] = commit.epoch
                return True
        return False

    def _find(self) -> NDArray[np.int64]:
        chosen, headers = self._packets, self._headers[self._packets]
        packets = np.empty((kernels.PACKET_ROWS, len(chosen)), np.int64)
        packets[kernels.START], packets[kernels.SIZE] = self._batch.starts[chosen], self._batch.sizes[chosen]
        packets[kernels.RUN_COUNT] = headers["run_count"]
        packets[kernels.MESSAGE_COUNT] = headers["message_count"]
        packets[kernels.FIRST_SEQ] = headers["first_message_seq"]
        packets[kernels.LIMIT_SEQ] = self._part.limits(self._batch.first_index + chosen)
        found = np.empty((kernels.FOUND_ROWS, int(packets[kernels.MESSAGE_COUNT].sum())), np.int64)
        message, schema = self._table.message, self._table.model.schema
        count = kernels.find_messages(
            self._batch.data, packets, schema.schema_id, message.template_id, self._low_seq, self._end_seq, found
        )
        if count < 0:
            index = self._batch.first_index + int(chosen[-count - 1])
            raise TableError(f"the packet at index {index:#018x} is malformed: `tandemfeed journal verify` the journal")
        return found[:, :count]

    def _number(self, name: str) -> NDArray[np.int64]:
        """A number that every message has."""
        packets = self._packets[self._found[kernels.PACKET]]
        if name in _OF_MESSAGE:
            return np.ascontiguousarray(self._found[_OF_MESSAGE[name]])
        if name in _OF_PACKET:
            return np.asarray(_OF_PACKET[name](self)[packets], np.int64)
        return np.full(self.message_count, getattr(self._part, name), np.int64)

    def _fields(self) -> Any:
        """The messages' fields: a structured array, or an Arrow batch if they have groups or variable data."""
        table, starts, sizes = self._table, self._found[kernels.FRAME], self._found[kernels.FRAME_SIZE]
        if not table.message.is_fixed:
            view = self._batch.data.data
            pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
            return table.rows_of([view[start : start + size] for start, size in pairs])
        short = np.flatnonzero(sizes < table.frame_size)
        if len(short):
            seq, size = int(self._found[kernels.MESSAGE_SEQ, short[0]]), int(sizes[short[0]])
            raise TableError(
                f"message {seq} of channel {self._part.channel_id}: a {table.message.name} of {size} bytes; this "
                f"message model's has {table.frame_size}: give the older version of the model, which wrote it"
            )
        rows = np.empty((len(starts), table.frame_size), np.uint8)
        kernels.copy_frames(self._batch.data, starts, rows)
        return table.structured(rows)

    def _keep(self, chosen: NDArray[np.bool_]) -> None:
        """Drop all other messages."""
        self._found = np.ascontiguousarray(self._found[:, chosen])
        if self._rows is not None:
            self._rows = self._rows[chosen]


_OF_MESSAGE = {
    "message_seq": kernels.MESSAGE_SEQ,
    "source_stream_id": kernels.STREAM,
    "source_seq": kernels.SOURCE_SEQ,
}
_OF_PACKET: dict[str, Callable[[_SliceBatch], NDArray[Any]]] = {
    "epoch": lambda found: found._epochs,
    "source_sent_at": lambda found: found._headers["source_sent_at_ns"],
    "received_at": lambda found: found._batch.appended_at_ns,
}
