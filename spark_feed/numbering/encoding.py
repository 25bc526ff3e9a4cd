"""Turns canonical ticks (Arrow) into framed source messages, whole columns at a time. Runs in Spark's executors.

Pure: rows in, rows out; it assigns no numbers. Invariant: a row's frame and source stream depend only on that row, the
source format and the split rule.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.source_layout import SourceFormat, SourceMessageType
from tandemfeed.spark_feed.numbering.packing import Frames
from tandemfeed.spark_feed.numbering.split import SplitRule, assign_streams
from tandemfeed.spark_feed.recordings.recording import NULL_PRICE

Table: TypeAlias = Any  # pyarrow has no type annotations

ENCODED_SCHEMA = pa.schema(
    [
        pa.field("record_index", pa.int64(), nullable=False),
        pa.field("source_stream_id", pa.int32(), nullable=False),
        pa.field("event_at_ns", pa.int64(), nullable=False),
        pa.field("frame", pa.binary(), nullable=False),
    ]
)
ENCODED_DDL = "record_index bigint, source_stream_id int, event_at_ns bigint, frame binary"  # the same for Spark


class EncodingError(Exception):
    """A row cannot be encoded in the source format; the text names the record and the column."""


class TickEncoder:
    """Encodes batches of canonical rows.

    Args:
        source_format: its message names are the kinds of the recording, its field names the columns.
        rule, source_stream_ids: how rows are assigned to source streams.
    """

    def __init__(self, source_format: SourceFormat, rule: SplitRule, source_stream_ids: tuple[int, ...]) -> None:
        self._format = source_format
        self._rule = rule
        self._stream_ids = np.array(source_stream_ids, np.int32)

    def encode(self, rows: Table) -> Table:
        """Rows of `recording.SCHEMA` as rows of `ENCODED_SCHEMA`, in the same order.

        Raises:
            EncodingError: for an unknown kind, or a value outside the range of its field.
        """
        index = _integers(rows.column("record_index"))
        symbols, codes = _symbols(rows.column("symbol"))
        places = assign_streams(self._rule, symbols, codes, index, len(self._stream_ids))
        kinds, kind_codes = _symbols(rows.column("kind"))
        members: list[tuple[SourceMessageType, NDArray[np.int64]]] = []
        sizes = np.zeros(len(index), np.int64)
        for code, kind in enumerate(kinds):
            members.append((self._message_type(kind.decode()), np.flatnonzero(kind_codes == code)))
            sizes[members[-1][1]] = members[-1][0].frame_size
        offsets = np.zeros(len(index) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        padded = np.array(symbols, "S8")[codes]
        for message, places_of_kind in members:
            whole = len(members) == 1
            chosen = rows if whole else rows.take(pa.array(places_of_kind))
            framed = self._frame(message, chosen, padded[places_of_kind])
            raw = framed.view(np.uint8).reshape(len(framed), message.frame_size)
            if whole:
                data[:] = raw.reshape(-1)
            else:
                data[offsets[places_of_kind][:, None] + np.arange(message.frame_size)] = raw
        frame = pa.Array.from_buffers(
            pa.binary(), len(index), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        )
        columns = [pa.array(index), pa.array(self._stream_ids[places]), rows.column("event_at_ns"), frame]
        return pa.table(columns, schema=ENCODED_SCHEMA)

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
                values = _integers(rows.column(name), null)
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


def frames_of(encoded: Table) -> Frames:
    """Encoded rows as arrays in record order; sorts them if necessary."""
    index = _integers(encoded.column("record_index"))
    if np.any(index[1:] < index[:-1]):
        encoded = encoded.take(pa.array(np.argsort(index, kind="stable")))
        index = _integers(encoded.column("record_index"))
    frame = encoded.column("frame").combine_chunks()
    if isinstance(frame, pa.ChunkedArray):
        frame = frame.chunk(0) if frame.num_chunks else pa.array([], pa.binary())
    width = np.int64 if pa.types.is_large_binary(frame.type) else np.int32
    _, offset_buffer, data_buffer = frame.buffers()
    offsets = np.zeros(1, np.int64)
    data = np.zeros(0, np.uint8)
    if len(frame):
        offsets = np.frombuffer(offset_buffer, width)[frame.offset : frame.offset + len(frame) + 1].astype(np.int64)
        data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    return Frames(
        record_index=index,
        stream_id=_integers(encoded.column("source_stream_id")),
        event_at_ns=_integers(encoded.column("event_at_ns")),
        offsets=offsets - offsets[0],
        data=data,
    )


def _integers(column: Any, null: int = 0) -> NDArray[np.int64]:
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(null, column.type))
    return np.asarray(column.to_numpy(), np.int64)


def _symbols(column: Any) -> tuple[list[bytes], NDArray[np.int64]]:
    """The distinct values of a text column, and each row's index into them."""
    encoded = column.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
    texts = [text.encode() for text in encoded.dictionary.to_pylist()]
    return texts, _integers(encoded.indices)


def _characters(column: Any) -> NDArray[np.bytes_]:
    texts, codes = _symbols(pc.fill_null(column, "N"))
    return np.array(texts or [b"N"], "S1")[codes]


assert np.iinfo(np.int64).max == NULL_PRICE  # the format's null and the recording's are the same bits
