"""Collects output messages by type until there are enough of a type for a row group.

A venue's messages of different types alternate, so consecutive ones of a type are few; written as they come, they
would make a row group each. Memory is bounded: a type is written when it has `ROWS_MAX` rows or `GROUP_BYTES_MAX`
bytes, and the largest type when all types together have `TOTAL_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.convert_command.output.frame_kernels import copy_columns, encode_texts, index_frames
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE, MessageModel
from tandemfeed.feedcore.sbe.messages import MessageType
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME_SIZE
from tandemfeed.tables.columns import FixedColumns, MessageColumns, Texts

ROWS_MAX = 128 * 1_024  # of a row group: small enough to be read alone, large enough to compress well
GROUP_BYTES_MAX = 64 << 20
TOTAL_BYTES_MAX = 256 << 20
TEXTS_FIRST = 512  # distinct texts of a column for which there is room at first

RecordBatch: TypeAlias = Any  # pyarrow has no type annotations


class FrameIndex(NamedTuple):
    """Where the messages of a schema are in consecutive frames; one element for each."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    templates: NDArray[np.int64]

    @classmethod
    def of(cls, frames: NDArray[np.uint8], schema_id: int) -> FrameIndex:
        """The index of these frames."""
        room = len(frames) // OUTPUT_FRAME_SIZE
        starts, sizes, templates = (np.empty(room, np.int64) for _ in range(3))
        count = index_frames(frames, schema_id, starts, sizes, templates)
        return cls(starts[:count], sizes[:count], templates[:count])


class FixedRows:
    """Messages of one type and size, as columns."""

    def __init__(self, message: MessageType, size: int) -> None:
        self._size = size
        self._room = min(ROWS_MAX, GROUP_BYTES_MAX // size)
        found = message.columns.items()
        self._places = np.array([(PREFIX_SIZE + each.offset, each.size) for _, each in found], np.int64).reshape(-1, 2)
        self._values = self._new_values()
        self._codes = {name: each.numpy_code("<") for name, each in found}
        self._columns = FixedColumns(message)
        self.count = 0

    @property
    def byte_count(self) -> int:
        """The bytes collected."""
        return self.count * self._size

    @property
    def is_full(self) -> bool:
        """True if the row group must be taken before more is added."""
        return self.count == self._room

    def take(self, frames: NDArray[np.uint8], starts: NDArray[np.int64]) -> int:
        """Add messages as far as there is room; returns how many."""
        taken = min(len(starts), self._room - self.count)
        copy_columns(frames, starts[:taken], self._values, self.count, self._room, self._places)
        self.count += taken
        return taken

    def batch(self) -> RecordBatch:
        """The collected messages as a record batch, which keeps their memory; afterwards none are collected."""
        columns: dict[str, NDArray[Any] | Texts] = {}
        at = 0
        for (name, code), (_, size) in zip(self._codes.items(), self._places.tolist(), strict=True):
            values = np.frombuffer(self._values, code, self.count, at)
            columns[name] = _texts(values, size) if values.dtype.kind == "S" else values
            at += self._room * size
        self._values, self.count = self._new_values(), 0
        return self._columns.batch_of(columns)

    def _new_values(self) -> NDArray[np.uint8]:
        return np.empty(self._room * int(self._places[:, 1].sum()), np.uint8)  # unused pages cost nothing


def _texts(values: NDArray[np.bytes_], size: int) -> Texts:
    """Texts by number."""
    codes, room = np.empty(len(values), np.int32), TEXTS_FIRST
    while True:
        firsts, slots = np.empty(room, np.int32), np.zeros(2 * room, np.int32)
        count = encode_texts(values.view(np.uint8), size, codes, firsts, slots)
        if count >= 0:
            return Texts(codes, values[firsts[:count]])
        room *= 16


class VariableRows:
    """Messages of one type with groups or variable data."""

    def __init__(self, message: MessageType) -> None:
        self._columns = MessageColumns(message)
        self.byte_count = 0

    @property
    def count(self) -> int:
        """The messages collected."""
        return self._columns.count

    @property
    def is_full(self) -> bool:
        """True if the row group must be taken before more is added."""
        return self.count >= ROWS_MAX or self.byte_count >= GROUP_BYTES_MAX

    def take(self, frames: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
        """Add messages until the group is full; returns how many."""
        view = frames.data
        for number, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            if self.is_full:
                return number
            self._columns.take(view[start : start + size])
            self.byte_count += size
        return len(starts)

    def batch(self) -> RecordBatch:
        """The collected messages as a record batch; afterwards none are collected."""
        self.byte_count = 0
        return self._columns.batch()


class RowGroups:
    """The row groups that are being collected, by message type."""

    def __init__(self, model: MessageModel) -> None:
        self._model = model
        self._rows: dict[tuple[str, int], FixedRows | VariableRows] = {}

    def take(self, frames: NDArray[np.uint8]) -> Iterator[tuple[str, RecordBatch]]:
        """Add output frames; yields (message name, row group) for each group that is complete."""
        index = FrameIndex.of(frames, self._model.schema.schema_id)
        for template in np.flatnonzero(np.bincount(index.templates)).tolist():
            message = self._model.schema.by_template.get(template)
            if message is not None:
                places = np.flatnonzero(index.templates == template)
                yield from self._add(message, frames, index.starts[places], index.sizes[places])
        while sum(rows.byte_count for rows in self._rows.values()) > TOTAL_BYTES_MAX:
            (name, _), largest = max(self._rows.items(), key=lambda item: item[1].byte_count)
            yield name, largest.batch()

    def _add(
        self, message: MessageType, frames: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> Iterator[tuple[str, RecordBatch]]:
        """Add messages of one type, in order."""
        done = 0
        while done < len(starts):
            size = int(sizes[done]) if message.is_fixed else 0
            rows = self._rows_for(message, size)
            if isinstance(rows, FixedRows):
                others = np.flatnonzero(sizes[done:] != size)  # a newer version of the schema has longer messages
                end = done + int(others[0]) if len(others) else len(starts)
                done += rows.take(frames, starts[done:end])
            else:
                done += rows.take(frames, starts[done:], sizes[done:])
            if rows.is_full:
                yield message.name, rows.batch()

    def _rows_for(self, message: MessageType, size: int) -> FixedRows | VariableRows:
        key = message.name, size
        if key not in self._rows:
            self._rows[key] = FixedRows(message, size) if size else VariableRows(message)
        return self._rows[key]

    def rest(self) -> Iterator[tuple[str, RecordBatch]]:
        """What is left at the end."""
        for (name, _), rows in self._rows.items():
            if rows.count:
                yield name, rows.batch()
