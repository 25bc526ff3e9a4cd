"""The last message of each type and key of one channel and session, at a position. Pure.

It takes packets as the output journal has them (`kernel.take`) and gives output packets of one message each, in stream
order. It keeps the messages themselves, so retention of the journal takes nothing from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.records.last_values import kernel
from tandemfeed.feedcore.documents.message_model import MessageModel
from tandemfeed.feedcore.documents.symbol_words import symbol_columns
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OUTPUT_FRAME_SIZE,
    OUTPUT_LAYOUT,
    OUTPUT_MAGIC,
    OUTPUT_VERSION,
    RETRANSMISSION_BIT,
    RUN,
)
from tandemfeed.feedcore.wire.position import FIRST_SEQ

ENTRIES_BEGUN, ENTRIES_MAX = 4_096, 1 << 20  # of types and keys
VALUES_BEGUN, VALUES_MAX = 1 << 20, 256 << 20  # bytes
STREAMS = TEMPLATES = 1 << 16


class TableFull(Exception):
    """The channel has more types and keys, or longer messages, than a table may keep."""


class Damaged(Exception):
    """A packet's frames do not fit its size."""


@dataclass(frozen=True, slots=True)
class Values:
    """What a table had at its position. Attributes: epoch: of the last packet; 0: there was none."""

    session: int
    epoch: int
    next_input_seq: int
    next_message_seq: int
    next_source_seqs: dict[int, int]
    channel_id: int
    adapter_id: int
    entries: NDArray[np.int64]
    values: NDArray[np.uint8]

    def packets(self, feed_id: int) -> Iterator[bytes]:
        """An output packet for each message, in stream order."""
        names = ("OF_EPOCH", "MESSAGE", "INPUT", "SENT_AT", "STREAM", "SOURCE", "PLACE", "LENGTH")
        columns = [self.entries[:, getattr(kernel, name)].tolist() for name in names]
        head = OUTPUT_MAGIC, OUTPUT_VERSION, RETRANSMISSION_BIT, feed_id, self.channel_id, self.adapter_id
        pack, data = OUTPUT_LAYOUT.struct.pack, self.values.data
        for epoch, message, input_seq, sent_at, stream, source, place, length in zip(*columns, strict=True):
            yield b"".join(
                (
                    pack(*head, self.session, epoch, 0, 0, 1, 1, 0, message, input_seq, sent_at, 0),
                    RUN.pack(stream, 1, 1, 0, source),
                    OUTPUT_FRAME.pack(length, 0),
                    data[place + OUTPUT_FRAME_SIZE : place + length],
                )
            )


class LastValueTable:
    """For one thread at a time.

    Args:
        key: the field that is the key; of messages without it, the last of each type is kept.
    """

    def __init__(self, channel_id: int, model: MessageModel, key: str) -> None:
        self._columns = _key_columns(model, key)
        self._schema_id = model.schema.schema_id
        self._channel_id = channel_id
        self.begin(0)

    def begin(self, session: int) -> None:
        """Forget everything, and begin a session."""
        self._state = np.zeros(kernel.STATE_SIZE, np.int64)
        self._state[kernel.CHANNEL], self._state[kernel.SESSION] = self._channel_id, session
        self._state[kernel.NEXT_INPUT] = self._state[kernel.NEXT_MESSAGE] = FIRST_SEQ
        self._sources = np.zeros(STREAMS, np.int64)
        self._entries = np.zeros((ENTRIES_BEGUN, kernel.ENTRY_WIDTH), np.int64)
        self._slots = np.full(4 * ENTRIES_BEGUN, kernel.FREE, np.int64)
        self._values = np.zeros(VALUES_BEGUN, np.uint8)

    @property
    def session(self) -> int:
        """The session that the table is of."""
        return int(self._state[kernel.SESSION])

    @property
    def next_input_seq(self) -> int:
        """The position: the table has what precedes it."""
        return int(self._state[kernel.NEXT_INPUT])

    def take(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], until_input: int
    ) -> tuple[int, int]:
        """Take what follows the position, from packets that begin before `until_input`.

        Args:
            data: has the records; those of other channels and sessions are skipped, as are all but numbered packets.

        Returns:
            Why it ended, and the record before which it did: `kernel.DONE`, `kernel.UNTIL_REACHED`, or `kernel.GAP`,
            if that record begins after the position.

        Raises:
            TableFull, Damaged.
        """
        self._state[kernel.RECORD], why = 0, kernel.FULL
        while why == kernel.FULL:
            arrays = self._columns, self._state, self._sources, self._slots, self._entries
            room = self._values.ctypes.data, len(self._values)
            why = kernel.take(data.ctypes.data, starts, sizes, until_input, self._schema_id, *arrays, *room)
            if why == kernel.FULL:
                self._grow()
        if why == kernel.DAMAGED:
            raise Damaged
        return why, int(self._state[kernel.RECORD])

    def take_packets(self, packets: Sequence[bytes]) -> None:
        """Take packets, as `take`."""
        sizes = np.array([len(packet) for packet in packets], np.int64)
        data = np.frombuffer(b"".join(packets), np.uint8)
        self.take(data, np.cumsum(sizes) - sizes, sizes, kernel.UNBOUNDED)

    def copy(self) -> Values:
        """What the table has now."""
        state, count = self._state, int(self._state[kernel.COUNT])
        entries = self._entries[:count]
        streams = np.flatnonzero(self._sources)
        return Values(
            session=int(state[kernel.SESSION]),
            epoch=int(state[kernel.EPOCH]),
            next_input_seq=int(state[kernel.NEXT_INPUT]),
            next_message_seq=int(state[kernel.NEXT_MESSAGE]),
            next_source_seqs=dict(zip(streams.tolist(), self._sources[streams].tolist(), strict=True)),
            channel_id=int(state[kernel.CHANNEL]),
            adapter_id=int(state[kernel.ADAPTER]),
            entries=entries[np.argsort(entries[:, kernel.MESSAGE])],
            values=self._values[: int(state[kernel.VALUES_END])].copy(),
        )

    def _grow(self) -> None:
        """Make all arrays twice as large."""
        if len(self._entries) >= ENTRIES_MAX or len(self._values) >= VALUES_MAX:
            raise TableFull
        self._entries, self._values = _twice(self._entries), _twice(self._values)
        self._slots = np.full(2 * len(self._slots), kernel.FREE, np.int64)
        kernel.refill(self._slots, self._entries, self._state[kernel.COUNT])


def _twice(array: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate((array, np.zeros_like(array)))


def _key_columns(model: MessageModel, key: str) -> NDArray[np.int64]:
    """The offset and the size of each template's key."""
    found = np.full((2, TEMPLATES), kernel.UNKNOWN_TEMPLATE, np.int64)
    keyed = symbol_columns(model, key)
    for template in model.schema.by_template:
        column = keyed.get(template)
        found[:, template] = (0, 0) if column is None else (column.offset, column.size)
    return found
