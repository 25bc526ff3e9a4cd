"""Turns canonical ticks (Arrow) into framed source messages, whole columns at a time. Runs in Spark's executors.

Pure: rows in, blocks out; it assigns no numbers. A block has the messages of one source stream, so the shuffle moves a
few large rows instead of one per message. Invariant: a row's frame and source stream depend only on that row, the
source format and the split rule.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.source_layout import SourceFormat, SourceMessageType
from tandemfeed.spark_feed.numbering.columns import codes_of, integers_of
from tandemfeed.spark_feed.numbering.kernels import place_frames
from tandemfeed.spark_feed.numbering.packing import EMPTY, Block
from tandemfeed.spark_feed.numbering.split import SplitRule, assign_streams
from tandemfeed.spark_feed.recordings.recording import NULL_PRICE, RecordingError

Table: TypeAlias = Any  # pyarrow has no type annotations

# A block as a row; `stream` is the place of its source stream in the feed's list, which is also its partition.
BLOCK_SCHEMA = pa.schema(
    [
        pa.field("stream", pa.int32(), nullable=False),
        pa.field("first_record_index", pa.int64(), nullable=False),
        pa.field("end_record_index", pa.int64(), nullable=False),
        *(pa.field(name, pa.binary(), nullable=False) for name in ("record_index", "event_at_ns", "sizes", "data")),
        pa.field("problem", pa.string()),  # why the rows could not be encoded; the block is then empty
    ]
)
BLOCK_DDL = (  # the same for Spark
    "stream int, first_record_index bigint, end_record_index bigint, record_index binary, event_at_ns binary, "
    "sizes binary, data binary, problem string"
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
        order = np.argsort(streams, kind="stable")
        sizes, data, starts = self._frames(rows, np.array([*symbols, b""], np.bytes_)[codes], order)
        index_of, event_of = index[order], integers_of(rows.column("event_at_ns"))[order]
        cuts = np.searchsorted(streams[order], np.arange(self.stream_count + 1)).tolist()
        return [
            Block(
                first_index,
                end_index,
                index_of[first:end],
                event_of[first:end],
                sizes[first:end],
                data[starts[first] : starts[end]],
            )
            for first, end in pairwise(cuts)
        ]

    def _frames(
        self, rows: Table, symbols: NDArray[np.bytes_], order: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.int64]]:
        """The rows' frames in an order: their sizes, their bytes, and where each starts in them (and the last ends)."""
        kinds, codes = codes_of(rows.column("kind"))
        messages = {code: self._message_type(kinds[code].decode()) for code in np.unique(codes).tolist()}
        sizes_of = np.zeros(len(kinds), np.uint32)
        sizes_of[list(messages)] = [message.frame_size for message in messages.values()]
        sizes = sizes_of[codes[order]]
        bounds = np.zeros(sizes.size + 1, np.int64)
        np.cumsum(sizes, out=bounds[1:])
        starts = np.empty(sizes.size, np.int64)
        starts[order] = bounds[:-1]
        data = np.empty(int(bounds[-1]), np.uint8)
        for code, message in messages.items():
            members = np.flatnonzero(codes == code)
            chosen = rows.select([name for name in rows.column_names if name in {*message.fields, "record_index"}])
            if len(messages) > 1:
                chosen = chosen.take(pa.array(members))
            framed = self._frame(message, chosen, symbols[members])
            place_frames(framed.view(np.uint8).reshape(-1, message.frame_size), starts[members], data)
        return sizes, data, bounds

    def _message_type(self, kind: str) -> SourceMessageType:
        message = self._format.messages.get(kind)
        if message is None:
            known = ", ".join(self._format.messages)
            raise EncodingError(f"{self._format.document}: no message named {kind!r}; the messages are {known}")
        return message

    def _frame(self, message: SourceMessageType, rows: Table, symbols: NDArray[np.bytes_]) -> NDArray[np.void]:
        columns: dict[str, NDArray[Any]] = {}
        for name, field in message.fields.items():
            if name == "symbol":
                columns[name] = symbols
            elif name not in rows.column_names:
                continue  # padding
            elif field.kind.name == "char":
                columns[name] = _characters(rows.column(name))
            else:
                null = field.null if field.null is not None else 0
                values = integers_of(rows.column(name), null)
                # 64-bit ids are the two's complement of unsigned ones, so every bit pattern is in range.
                if field.kind.size < 8 and values.size:
                    self._check_range(message, name, field.kind.minimum, field.kind.maximum, values, rows)
                columns[name] = values
        return message.encode(columns, rows.num_rows)

    def _check_range(
        self, message: SourceMessageType, name: str, low: int, high: int, values: NDArray[np.int64], rows: Table
    ) -> None:
        wrong = np.flatnonzero((values < low) | (values > high))
        if wrong.size:
            record = rows.column("record_index")[int(wrong[0])].as_py()
            raise EncodingError(
                f"record {record}: {message.name}.{name} is {values[wrong[0]]}; it must be {low} to {high}"
            )


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
    return pa.RecordBatch.from_arrays(
        [pa.array([stream], pa.int32()), *firsts, *columns, pa.nulls(1, pa.string())], schema=BLOCK_SCHEMA
    )


def problem_row(stream: int, problem: str) -> Table:
    """The row that reports a problem to the owner of a source stream."""
    none = {"first_record_index": 0, "end_record_index": 0}
    empty = dict.fromkeys(("record_index", "event_at_ns", "sizes", "data"), b"")
    return pa.RecordBatch.from_pylist([{"stream": stream, **none, **empty, "problem": problem}], schema=BLOCK_SCHEMA)


def _binary(column: NDArray[Any]) -> Any:
    """A column's bytes as the only value of an array."""
    offsets = pa.py_buffer(np.array([0, column.nbytes], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(np.ascontiguousarray(column))])


def empty_blocks(first_record_index: int, end_record_index: int, stream_count: int) -> list[Block]:
    """For each source stream, a block of records that make no message."""
    return [EMPTY._replace(first_record_index=first_record_index, end_record_index=end_record_index)] * stream_count


def blocks_in(rows: Table) -> list[Block]:
    """The blocks of rows of one source stream.

    Raises:
        EncodingError: a row reports a problem.
    """
    problems = rows.column("problem").drop_null()
    if len(problems):
        raise EncodingError(problems[0].as_py())
    columns = zip(*(rows.column(name) for name in BLOCK_SCHEMA.names[1:-1]), strict=True)
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


def _characters(column: Any) -> NDArray[np.bytes_]:
    texts, codes = codes_of(column)  # the code of a null is -1
    return np.array([*texts, b"N"], "S1")[codes]


assert np.iinfo(np.int64).max == NULL_PRICE  # the format's null and the recording's are the same bits
