"""Turns recorded rows (Arrow) into framed source messages, whole columns at a time. Runs in Spark's executors.

Pure: rows in, blocks out; it assigns no numbers. A block has the messages of one source stream, so the shuffle moves a
few large rows instead of one per message. Invariant: a row's frame and source stream depend only on that row, the
source format and the split rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.source_layout import SourceField, SourceFormat, SourceMessageType
from tandemfeed.spark_feed.numbering.rows.column_split import Split, streams_of_rows
from tandemfeed.spark_feed.numbering.rows.columns import RecordedRows, Table
from tandemfeed.spark_feed.numbering.rows.kernels import divide_rows, frame_rows
from tandemfeed.spark_feed.numbering.rows.packing import EMPTY, Block
from tandemfeed.spark_feed.recordings.format_columns import columns_of
from tandemfeed.spark_feed.recordings.recording import NO_TEXT, NULL_PRICE, RecordingError

# A block as a row; `stream` is the place of its source stream in the feed's list, which is also its partition.
BLOCK_SCHEMA = pa.schema(
    [
        pa.field("stream", pa.int32(), nullable=False),
        pa.field("first_record_index", pa.int64(), nullable=False),
        pa.field("end_record_index", pa.int64(), nullable=False),
        *(pa.field(name, pa.binary(), nullable=False) for name in ("record_index", "event_at_ns", "sizes", "data")),
    ]
)


TEXT = 2  # how `frame_rows` writes a text


class EncodingError(RecordingError):
    """A row cannot be encoded in the source format; the text names the record and the column."""


class TickEncoder:
    """Encodes batches of recorded rows.

    Args:
        source_format: its message names are the kinds of the recording, its field names the columns.
        split, stream_count: how rows are assigned to source streams.
    """

    def __init__(self, source_format: SourceFormat, split: Split, stream_count: int) -> None:
        self._format = source_format
        self._split = split
        self.stream_count = stream_count
        self._messages = tuple(source_format.messages.values())
        self._place_of = {message.name.encode(): place for place, message in enumerate(self._messages)}
        self._frame_sizes = np.array([message.frame_size for message in self._messages], np.int64)
        self._templates = _templates(self._messages)

    def encode(self, rows: Table | RecordedRows, is_good: NDArray[np.bool_] | None = None) -> list[Block]:
        """Consecutive rows of a recording as one block for each source stream.

        Args:
            is_good: the rows that become messages; None: all of them. The blocks' range has the others too.

        Raises:
            EncodingError: a record is missing, its kind is unknown, or a field cannot hold a value.
        """
        recorded = rows if isinstance(rows, RecordedRows) else RecordedRows(rows)
        index = recorded.integers("record_index")
        _check_consecutive(index)
        first_index, end_index = (int(index[0]), int(index[-1]) + 1) if index.size else (0, 0)
        if is_good is not None:
            recorded = recorded.only(is_good)
            index = recorded.integers("record_index")
        streams = streams_of_rows(self._split, recorded, index, self.stream_count)
        messages = self._messages_of(recorded)
        columns, counts = _Columns(recorded, messages), np.bincount(messages, minlength=len(self._messages)).tolist()
        steps = [columns.steps(place, each) if counts[place] else [] for place, each in enumerate(self._messages)]
        row_bounds, data_bounds = np.empty((2, self.stream_count + 1), np.int64)
        divide_rows(streams, messages, self._frame_sizes, row_bounds, data_bounds)
        order, sizes = np.empty(index.size, np.int64), np.empty(index.size, np.uint32)
        data = np.empty(int(data_bounds[-1]), np.uint8)
        frame_rows(
            streams, messages, columns.texts(), columns.addresses(), row_bounds, data_bounds, self._frame_sizes,
            np.array([step for each in steps for step in each], np.int64).reshape(-1, 5),
            np.cumsum([0, *map(len, steps)]), self._templates, order, sizes, data,
        )  # fmt: skip
        index_of, event_of = index[order], recorded.integers("event_at_ns")[order]
        parts = zip(pairwise(row_bounds.tolist()), pairwise(data_bounds.tolist()), strict=True)
        return [
            Block(first_index, end_index, index_of[first:end], event_of[first:end], sizes[first:end], data[start:stop])
            for (first, end), (start, stop) in parts
        ]

    def _messages_of(self, recorded: RecordedRows) -> NDArray[np.int64]:
        """The place of each row's message in the source format."""
        kinds = recorded.coded("kind")
        messages = np.array([*(self._place_of.get(kind, -1) for kind in kinds.texts), -1], np.int64)[kinds.codes]
        if messages.size and messages.min() < 0:
            kind, known = recorded.array("kind")[int(np.argmin(messages))].as_py(), ", ".join(self._format.messages)
            raise EncodingError(f"{self._format.document}: no message named {kind!r}; the messages are {known}")
        return messages


class _Columns:
    """What messages are made of: columns of integers, and texts."""

    def __init__(self, recorded: RecordedRows, messages: NDArray[np.int64]) -> None:
        self._recorded, self._messages = recorded, messages
        self._places: dict[tuple[str, float], int] = {}  # by name and by what a null becomes
        self._columns: list[NDArray[np.int64]] = []
        self._text_places: dict[tuple[str, int], int] = {}  # by name and length
        self._texts: list[NDArray[np.uint8]] = []
        self._text_size = 0

    def addresses(self) -> NDArray[np.int64]:
        """Of the columns of all steps."""
        return np.array([column.ctypes.data for column in self._columns], np.int64)

    def texts(self) -> NDArray[np.uint8]:
        """The texts of all steps, one after the other."""
        return np.concatenate([np.empty(0, np.uint8), *self._texts])

    def steps(self, place: int, message: SourceMessageType) -> list[tuple[int, int, int, int, int]]:
        """How `frame_rows` fills the frame of a message, which is at this place in the source format.

        Raises:
            EncodingError: a field cannot hold a value, or has no column.
        """
        steps = []
        for name, field in columns_of(message).items():
            if name not in self._recorded.names:
                raise EncodingError(f"the recording has no column {name!r}, from which {message.name}.{name} is made")
            offset = message.framing.header_size + field.offset
            if field.is_text:
                self._check_lengths(place, message, field)
                steps.append((self._text_codes(name), offset, field.length, TEXT, self._text_place(field)))
                continue
            column = self._column(name, field)
            if field.kind.is_integer and field.kind.size < 8:
                self._check_range(place, message, name, column)
            steps.append((column, offset, field.kind.size, int(field.is_big_endian), 0))
        return steps

    def _column(self, name: str, field: SourceField) -> int:
        null = field.null or 0
        key = f"{name} {field.kind.name}" if field.kind.is_float else name, null
        if key not in self._places:
            values = self._bits(name, field, null) if field.kind.is_float else self._recorded.integers(name, int(null))
            self._places[key] = len(self._columns)
            self._columns.append(np.ascontiguousarray(values, np.int64))
        return self._places[key]

    def _bits(self, name: str, field: SourceField, null: float) -> NDArray[np.int64]:
        """A column of floats as integers of the same bits."""
        floats = self._recorded.floats(name, null)
        return floats.view(np.int64) if field.kind.size == 8 else floats.astype(np.float32).view(np.int32).astype(int)

    def _text_codes(self, name: str) -> int:
        key = name, -1
        if key not in self._places:
            self._places[key] = len(self._columns)
            self._columns.append(self._recorded.coded(name).codes)
        return self._places[key]

    def _text_place(self, field: SourceField) -> int:
        """Where the texts of a column begin, as this field has them."""
        key = field.name, field.length
        if key not in self._text_places:
            null = NO_TEXT.get(field.name, b"") if field.null is None else bytes([int(field.null)])
            padded = self._recorded.coded(field.name).padded(field.length, null)
            self._text_places[key] = self._text_size
            self._texts.append(padded.reshape(-1))
            self._text_size += padded.size
        return self._text_places[key]

    def _check_lengths(self, place: int, message: SourceMessageType, field: SourceField) -> None:
        coded = self._recorded.coded(field.name)
        if coded.lengths.size and coded.lengths.max() > field.length:
            is_long = np.append(coded.lengths > field.length, False)[coded.codes]
            self._refuse(place, message, field.name, is_long, f"it must have at most {field.length} bytes")

    def _check_range(self, place: int, message: SourceMessageType, name: str, column: int) -> None:
        """Check values of less than 64 bits; 64-bit ids are the two's complement of unsigned ones, so all are valid."""
        values, kind = self._columns[column], message.fields[name].kind
        low, high = int(kind.minimum), int(kind.maximum)
        if values.size and (values.min() < low or values.max() > high):
            self._refuse(place, message, name, (values < low) | (values > high), f"it must be {low} to {high}")

    def _refuse(
        self, place: int, message: SourceMessageType, name: str, is_wrong: NDArray[np.bool_], expected: str
    ) -> None:
        wrong = np.flatnonzero(is_wrong & (self._messages == place))
        if wrong.size:
            row = int(wrong[0])
            record, value = (self._recorded.array(each)[row].as_py() for each in ("record_index", name))
            raise EncodingError(f"record {record}: {message.name}.{name} is {value}; {expected}")


def _templates(messages: Sequence[SourceMessageType]) -> NDArray[np.uint8]:
    """A frame of each message without values."""
    templates = np.zeros((len(messages), max((each.frame_size for each in messages), default=0)), np.uint8)
    for template, message in zip(templates, messages, strict=True):
        template[: message.frame_size] = message.encode({}, 1).view(np.uint8)
    return templates


def _check_consecutive(index: NDArray[np.int64]) -> None:
    wrong = np.flatnonzero(np.diff(index) != 1)
    if wrong.size:
        place = int(wrong[0])
        raise EncodingError(
            f"found record {index[place + 1]}, expected record {index[place] + 1}: a file of the recording has been "
            "changed"
        )


def row_of(stream: int, block: Block) -> Table:
    """A block of a source stream as a row of `BLOCK_SCHEMA`. Its columns are not copied."""
    columns = [_binary(column) for column in block[2:]]
    firsts = [pa.array([value], pa.int64()) for value in block[:2]]
    return pa.RecordBatch.from_arrays([pa.array([stream], pa.int32()), *firsts, *columns], schema=BLOCK_SCHEMA)


def _binary(column: NDArray[Any]) -> Any:
    """A column's bytes as the only value of an array."""
    offsets = pa.py_buffer(np.array([0, column.nbytes], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(np.ascontiguousarray(column))])


def empty_blocks(first_record_index: int, end_record_index: int, stream_count: int) -> list[Block]:
    """For each source stream, a block of records that make no message."""
    return [EMPTY._replace(first_record_index=first_record_index, end_record_index=end_record_index)] * stream_count


def blocks_in(rows: Table) -> list[Block]:
    """The blocks that are rows of `BLOCK_SCHEMA`."""
    columns = zip(*(rows.column(name) for name in BLOCK_SCHEMA.names[1:]), strict=True)
    return [
        Block(
            first.as_py(),
            end.as_py(),
            np.frombuffer(index.as_buffer(), np.int64),
            np.frombuffer(event.as_buffer(), np.int64),
            np.frombuffer(sizes.as_buffer(), np.uint32),
            np.frombuffer(data.as_buffer(), np.uint8),
        )
        for first, end, index, event, sizes, data in columns
    ]


assert np.iinfo(np.int64).max == NULL_PRICE  # the format's null and the recording's are the same bits
