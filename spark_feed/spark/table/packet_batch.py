"""The messages of one type in output packets: found by a compiled loop, filtered in numpy, made into Arrow columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.journal import Batch
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.table import message_kernels as kernels
from tandemfeed.spark_feed.spark.table.message_table import NUMBERS, MessageTable

NO_LIMIT = (1 << 63) - 1
OF_MESSAGE = {
    "message_seq": kernels.MESSAGE_SEQ,
    "source_stream_id": kernels.STREAM,
    "source_seq": kernels.SOURCE_SEQ,
}


@dataclass(frozen=True, slots=True)
class ChosenPackets:
    """Packets among the records of a batch; each array has an element per packet.

    Attributes:
        places: of the packets in the batch.
        headers: with the fields of `journal_scan.HEADERS`.
        limits: messages with this number or a greater one were replaced by later packets.
        epochs: in which they were numbered.
        constants: the columns that have one value, by name.
    """

    places: NDArray[np.int64]
    headers: NDArray[np.void]
    limits: NDArray[np.int64]
    epochs: NDArray[np.int64]
    constants: Mapping[str, int]


class PacketBatch:
    """The messages of a type in packets of one channel.

    Args:
        low_seq, end_seq: only messages with these numbers.

    Raises:
        TableError: a packet is malformed.
    """

    def __init__(
        self, batch: Batch, chosen: ChosenPackets, table: MessageTable, low_seq: int = 0, end_seq: int = NO_LIMIT
    ) -> None:
        self._batch, self._chosen, self._table = batch, chosen, table
        self._found = self._find(low_seq, end_seq)
        self._rows: Any = None

    @property
    def message_count(self) -> int:
        """The messages."""
        return int(self._found.shape[1])

    def number(self, name: str) -> NDArray[np.int64]:
        """A number that every message has."""
        if name in OF_MESSAGE:
            return np.ascontiguousarray(self._found[OF_MESSAGE[name]])
        if name in self._chosen.constants:
            return np.full(self.message_count, self._chosen.constants[name], np.int64)
        of_packets = {
            "epoch": self._chosen.epochs,
            "source_sent_at": self._chosen.headers["source_sent_at_ns"],
            "received_at": self._batch.appended_at_ns[self._chosen.places],
        }[name]
        return np.asarray(of_packets[self._found[kernels.PACKET]], np.int64)

    def values(self, name: str) -> NDArray[Any]:
        """The values of a column of messages of fixed size, as on the wire."""
        return self.number(name) if name in NUMBERS else self._table.field_values(self.rows, name)

    @property
    def rows(self) -> Any:
        """The messages' fields: a structured array, or an Arrow batch if they have groups or variable data."""
        if self._rows is None:
            self._rows = self._fields()
        return self._rows

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        """Drop all other messages."""
        self._found = np.ascontiguousarray(self._found[:, chosen])
        if self._rows is not None:
            self._rows = self._rows[chosen] if isinstance(self._rows, np.ndarray) else self._rows.filter(chosen)

    def record_batch(self, schema: Any) -> Any:
        """The messages as a record batch with the columns of a Spark schema."""
        numbers = {name: self.number(name) for name in schema.fieldNames() if name in NUMBERS}
        return self._table.batch(schema, numbers, self.rows if len(numbers) < len(schema) else None)

    def _find(self, low_seq: int, end_seq: int) -> NDArray[np.int64]:
        chosen, headers = self._chosen, self._chosen.headers
        packets = np.empty((kernels.PACKET_ROWS, len(chosen.places)), np.int64)
        packets[kernels.START] = self._batch.starts[chosen.places]
        packets[kernels.SIZE] = self._batch.sizes[chosen.places]
        packets[kernels.RUN_COUNT] = headers["run_count"]
        packets[kernels.MESSAGE_COUNT] = headers["message_count"]
        packets[kernels.FIRST_SEQ] = headers["first_message_seq"]
        packets[kernels.LIMIT_SEQ] = chosen.limits
        found = np.empty((kernels.FOUND_ROWS, int(packets[kernels.MESSAGE_COUNT].sum())), np.int64)
        schema_id, template_id = self._table.model.schema.schema_id, self._table.message.template_id
        count = kernels.find_messages(self._batch.data, packets, schema_id, template_id, low_seq, end_seq, found)
        if count < 0:
            seq = int(headers["first_message_seq"][-count - 1])
            raise TableError(f"the packet of message {seq} of channel {chosen.constants['channel_id']} is malformed")
        return found[:, :count]

    def _fields(self) -> Any:
        table, starts, sizes = self._table, self._found[kernels.FRAME], self._found[kernels.FRAME_SIZE]
        if not table.message.is_fixed:
            view = self._batch.data.data
            pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
            return table.rows_of([view[start : start + size] for start, size in pairs])
        short = np.flatnonzero(sizes < table.frame_size)
        if len(short):
            seq, size = int(self._found[kernels.MESSAGE_SEQ, short[0]]), int(sizes[short[0]])
            raise TableError(
                f"message {seq} of channel {self._chosen.constants['channel_id']}: a {table.message.name} of {size} "
                f"bytes; this message model's has {table.frame_size}: give the older version of the model"
            )
        rows = np.empty((len(starts), table.frame_size), np.uint8)
        kernels.copy_frames(self._batch.data, starts, rows)
        return table.structured(rows)
