"""Rows of the messages as the venue sent them: the columns are the fields of one message type of a source format."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.convert_command.output.frame_kernels import copy_columns
from tandemfeed.feedcore.documents.primitive_types import Place
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceFormat, SourceMessageType
from tandemfeed.offline.ticks.frame_index import FrameIndex
from tandemfeed.offline.ticks.rows import OnRows, RecordBatch, RefusedMessage, shown
from tandemfeed.spark_feed.spark.source_journals.source_table import column_types

ROWS_MAX = 64 * 1_024  # of a batch
REFUSED_KEPT = 100  # of a chunk
WRONG_LENGTH = "wrong_length"
NATURAL_WIDTHS = (1, 2, 4, 8)

Bytes = NDArray[np.uint8]


class SourceRows:
    """Collects the messages of one type.

    Args:
        message: it has neither groups nor variable texts.
        shown_names: the columns that are made, by their names in Spark; None: all.
    """

    def __init__(
        self, source_format: SourceFormat, message: SourceMessageType, shown_names: Collection[str] | None = None
    ) -> None:
        self._framing, self._message = source_format.framing, message
        others = [each for each in source_format.messages.values() if each.type_id == message.type_id]
        self._other_sizes = [self._framing.header_size + each.size for each in others if each is not message]
        self._size = message.frame_size
        types = column_types(message)
        wanted = {name: kind for name, kind in types.items() if shown_names is None or shown(name) in shown_names}
        self._columns = wanted or dict([*types.items()][:1])  # without a column, a batch would have no rows
        self._rows: list[tuple[Bytes, NDArray[np.int64]]] = []
        self._refused: list[RefusedMessage] = []
        self._refused_count = 0

    def take(self, chunk: FrameChunk, on_rows: OnRows | None) -> Iterator[RecordBatch]:
        """Add a chunk's messages; yields each batch that is complete."""
        # what a short message lacks, its row takes from what follows, and `_array` leaves out
        data = np.frombuffer(chunk.frames + bytes(self._size), np.uint8)
        index = FrameIndex.of(data[: len(chunk.frames)], self._framing, chunk.message_count)
        is_wanted = (index.kinds == self._message.type_id) & ~np.isin(index.sizes, self._other_sizes)
        is_right = is_wanted & self._fits(index.sizes)
        self._refuse(chunk, index, np.flatnonzero(is_wanted & ~is_right))
        starts = index.starts[is_right]
        if len(starts):
            rows = np.empty((len(starts), self._size), np.uint8)
            copy_columns(data, starts, rows.reshape(-1), 0, len(rows), np.array([(0, self._size)]))
            self._rows.append((rows, index.sizes[is_right]))
            if on_rows is not None:
                on_rows(np.flatnonzero(is_right))
        if sum(len(each) for each, _ in self._rows) >= ROWS_MAX:
            yield self.rest()

    def rest(self) -> RecordBatch:
        """What is left at the end."""
        none = np.empty((0, self._size), np.uint8), np.empty(0, np.int64)
        parts = [none, *self._rows]
        rows, sizes = (np.concatenate(each) for each in zip(*parts, strict=True))
        self._rows.clear()
        return pa.RecordBatch.from_arrays([self._array(name, rows, sizes) for name in self._columns], [*self._columns])

    def take_refused(self) -> list[RefusedMessage]:
        """Samples of the newest chunk's messages that were refused."""
        taken, self._refused = self._refused, []
        return taken

    def refused_counts(self) -> dict[str, int]:
        """How many messages were refused so far, by reason."""
        return {WRONG_LENGTH: self._refused_count} if self._refused_count else {}

    def _fits(self, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which frames may be such a message. If the message contains its length, older versions may be shorter."""
        if self._framing.block_length is not None:
            return sizes >= self._framing.size_min
        return sizes >= self._size if self._message.longer else sizes == self._size

    def _refuse(self, chunk: FrameChunk, index: FrameIndex, places: NDArray[np.int64]) -> None:
        self._refused_count += len(places)
        for place in places[:REFUSED_KEPT].tolist():
            start, size = int(index.starts[place]), int(index.sizes[place])
            frame = chunk.frames[start : start + size]
            self._refused.append(RefusedMessage(chunk.sequence + place, WRONG_LENGTH, frame))

    def _array(self, name: str, rows: Bytes, sizes: NDArray[np.int64]) -> Any:
        field = self._message.fields[name]
        array = self._columns[name].array(field_values(field, rows, self._framing.header_size))
        if field.is_text:
            array = pc.utf8_rtrim(array.dictionary_decode(), " ")
        is_absent = self._is_absent(field, rows, sizes)
        return pc.if_else(pa.array(is_absent), pa.scalar(None, array.type), array) if is_absent.any() else array

    def _is_absent(self, field: SourceField, rows: Bytes, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which messages do not have the field, because they are of an earlier version."""
        framing = self._framing
        block = sizes - framing.header_size
        if framing.block_length is not None:
            block = np.minimum(block, self._header_number(rows, framing.block_length))
        is_absent: NDArray[np.bool_] = block < field.offset + field.size
        if framing.version is not None:
            is_absent |= self._header_number(rows, framing.version) < field.since_version
        return is_absent

    def _header_number(self, rows: Bytes, place: Place) -> NDArray[np.int64]:
        return integers(rows[:, place.offset : place.end], is_big_endian=self._framing.is_big_endian)


def field_values(field: SourceField, rows: Bytes, header_size: int) -> NDArray[Any]:
    """The values of a field in rows of equal size.

    Args:
        header_size: bytes before the offset 0 of fields.
    """
    kind, order = field.kind, ">" if field.is_big_endian else "<"
    if field.constant is not None:
        return np.full(len(rows), field.constant, kind.numpy_code)
    start = header_size + field.offset
    raw = np.ascontiguousarray(rows[:, start : start + field.size])
    if not field.is_text and kind.size not in NATURAL_WIDTHS:
        return integers(raw, is_big_endian=field.is_big_endian, is_signed=kind.minimum < 0)
    values = raw.reshape(-1).view(np.dtype(f"S{field.length}" if field.is_text else order + kind.numpy_code))
    values = values.astype(values.dtype.newbyteorder("="))
    return values.reshape(len(rows), field.length) if field.length > 1 and not field.is_text else values


def integers(raw: Bytes, *, is_big_endian: bool, is_signed: bool = False) -> NDArray[np.int64]:
    """Integers of 1 to 7 bytes; `raw` has the shape (values, bytes of a value)."""
    wide = np.zeros((len(raw), 8), np.uint8)
    wide[:, : raw.shape[1]] = raw[:, ::-1] if is_big_endian else raw
    values = wide.view("<i8").reshape(-1)
    unused = np.int64(8 * (8 - raw.shape[1]))
    return (values << unused) >> unused if is_signed else values  # shifting back copies the sign's bit
