"""Turns canonical ticks (Arrow) into framed source messages, whole columns at a time. Runs in Spark's executors.

Pure: rows in, blocks out; it assigns no numbers. A block has the messages of one source stream, so the shuffle moves a
few large rows instead of one per message. Invariant: a row's frame and source stream depend only on that row, the
source format and the split rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.source_layout import SourceField, SourceFormat, SourceMessageType
from tandemfeed.spark_feed.numbering.rows.columns import codes_of, integers_of
from tandemfeed.spark_feed.numbering.rows.kernels import divide_rows, frame_rows
from tandemfeed.spark_feed.numbering.rows.packing import EMPTY, Block
from tandemfeed.spark_feed.numbering.rows.split import SplitRule, assign_streams
from tandemfeed.spark_feed.recordings.recording import NULL_PRICE, RecordingError

Table: TypeAlias = Any  # pyarrow has no type annotations

# A block as a row; `stream` is the place of its source stream in the feed's list, which is also its partition.
BLOCK_SCHEMA = pa.schema(
    [
        pa.field("stream", pa.int32(), nullable=False),
        pa.field("first_record_index", pa.int64(), nullable=False),
        pa.field("end_record_index", pa.int64(), nullable=False),
        *(pa.field(name, pa.binary(), nullable=False) for name in ("record_index", "event_at_ns", "sizes", "data")),
    ]
)


class EncodingError(RecordingError):
    """A row cannot be encoded in the source format; the text names the record and the column."""


class TickEncoder:
    """Encodes batches of canonical rows.

    Args:
        source_format: its message names are the kinds of the recording, its field names the columns.
        rule, stream_count: how rows are assigned to source streams.
    """

    def __init__(self, source_format: SourceFormat, rule: SplitRule, stream_count: int) -> None:
        self._format = source_format
        self._rule = rule
        self.stream_count = stream_count
        self._messages = tuple(source_format.messages.values())
        self._place_of = {message.name.encode(): place for place, message in enumerate(self._messages)}
        self._frame_sizes = np.array([message.frame_size for message in self._messages], np.int64)
        self._templates = _templates(self._messages)

    def encode(self, rows: Table, is_good: NDArray[np.bool_] | None = None) -> list[Block]:
        """Consecutive rows of `recording.SCHEMA` as one block for each source stream.

        Args:
            is_good: the rows that become messages; None: all of them. The blocks' range has the others too.

        Raises:
            EncodingError: a record is missing, its kind is unknown, or a value is outside the range of its field.
        """
        index = integers_of(rows.column("record_index"))
        _check_consecutive(index)
        first_index, end_index = (int(index[0]), int(index[-1]) + 1) if index.size else (0, 0)
        if is_good is not None and not is_good.all():
            rows, index = rows.filter(pa.array(is_good)), index[is_good]
        symbols, codes = codes_of(rows.column("symbol"))
        streams = assign_streams(self._rule, symbols, codes, index, self.stream_count)
        messages = self._messages_of(rows)
        columns, counts = _Columns(rows, messages), np.bincount(messages, minlength=len(self._messages)).tolist()
        steps = [columns.steps(place, each) if counts[place] else [] for place, each in enumerate(self._messages)]
        row_bounds, data_bounds = np.empty((2, self.stream_count + 1), np.int64)
        divide_rows(streams, messages, self._frame_sizes, row_bounds, data_bounds)
        order, sizes = np.empty(index.size, np.int64), np.empty(index.size, np.uint32)
        data = np.empty(int(data_bounds[-1]), np.uint8)
        frame_rows(
            streams, messages, codes, _texts(symbols, self._messages), columns.values(), row_bounds, data_bounds,
            self._frame_sizes, np.array([step for each in steps for step in each], np.int64).reshape(-1, 4),
            np.cumsum([0, *map(len, steps)]), self._templates, order, sizes, data,
        )  # fmt: skip
        index_of, event_of = index[order], integers_of(rows.column("event_at_ns"))[order]
        parts = zip(pairwise(row_bounds.tolist()), pairwise(data_bounds.tolist()), strict=True)
        return [
            Block(first_index, end_index, index_of[first:end], event_of[first:end], sizes[first:end], data[start:stop])
            for (first, end), (start, stop) in parts
        ]

    def _messages_of(self, rows: Table) -> NDArray[np.int64]:
        """The place of each row's message in the source format."""
        kinds, codes = codes_of(rows.column("kind"))
        messages = np.array([*(self._place_of.get(kind, -1) for kind in kinds), -1], np.int64)[codes]
        unknown = np.flatnonzero(messages < 0)
        if unknown.size:
            kind, known = rows.column("kind")[int(unknown[0])].as_py(), ", ".join(self._format.messages)
            raise EncodingError(f"{self._format.document}: no message named {kind!r}; the messages are {known}")
        return messages


class _Columns:
    """The columns of rows that messages are made of, as integers."""

    def __init__(self, rows: Table, messages: NDArray[np.int64]) -> None:
        self._rows, self._messages = rows, messages
        self._places: dict[tuple[str, int], int] = {}  # by name and by what a null becomes
        self._columns: list[NDArray[np.int64]] = []

    def values(self) -> NDArray[np.int64]:
        """The columns of all steps, shape (columns, rows)."""
        return np.array(self._columns, np.int64).reshape(len(self._columns), len(self._messages))

    def steps(self, place: int, message: SourceMessageType) -> list[tuple[int, int, int, bool]]:
        """How `frame_rows` fills the frame of a message, which is at this place in the source format.

        Raises:
            EncodingError: a value is outside the range of its field.
        """
        steps = []
        for name, field in message.fields.items():
            offset = message.framing.header_size + field.offset
            if name == "symbol":
                steps.append((-1, offset, field.length, False))
            elif name in self._rows.column_names:  # otherwise it is padding
                column = self._column(name, field)
                if not field.is_text and field.kind.size < 8:
                    self._check_range(place, message, name, column)
                steps.append((column, offset, 1 if field.is_text else field.kind.size, field.is_big_endian))
        return steps

    def _column(self, name: str, field: SourceField) -> int:
        key = name, 0 if field.is_text or field.null is None else int(field.null)
        if key not in self._places:
            column = self._rows.column(name)
            self._places[key] = len(self._columns)
            self._columns.append(_characters(column) if field.is_text else integers_of(column, key[1]))
        return self._places[key]

    def _check_range(self, place: int, message: SourceMessageType, name: str, column: int) -> None:
        """Check values of less than 64 bits; 64-bit ids are the two's complement of unsigned ones, so all are valid."""
        values, kind = self._columns[column], message.fields[name].kind
        low, high = int(kind.minimum), int(kind.maximum)
        if not values.size or (values.min() >= low and values.max() <= high):
            return
        wrong = np.flatnonzero(((values < low) | (values > high)) & (self._messages == place))
        if wrong.size:
            record = self._rows.column("record_index")[int(wrong[0])].as_py()
            raise EncodingError(
                f"record {record}: {message.name}.{name} is {values[wrong[0]]}; it must be {low} to {high}"
            )


def _texts(symbols: list[bytes], messages: Sequence[SourceMessageType]) -> NDArray[np.uint8]:
    """The symbols as rows of bytes, as long as the longest field for a symbol."""
    length = max((message.fields["symbol"].length for message in messages if "symbol" in message.fields), default=1)
    return np.array([*symbols, b""], f"S{length}").view(np.uint8).reshape(-1, length)


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


def _characters(column: Any) -> NDArray[np.int64]:
    texts, codes = codes_of(column)  # the code of a null is -1
    return np.array([*(text[0] if text else 0 for text in texts), ord("N")], np.int64)[codes]


assert np.iinfo(np.int64).max == NULL_PRICE  # the format's null and the recording's are the same bits
