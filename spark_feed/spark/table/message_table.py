"""The table of one message type: the columns that every message has, then those of the message model.

Spark has neither unsigned integers nor nanoseconds nor dictionaries, so a column has the next type that holds every
value, as in Spark's own Parquet reader; a time is in microseconds, or, if the user prefers, an integer of nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tandemfeed.feedcore.documents.message_model import MessageModel, frame_dtype, frame_size, load_message_model
from tandemfeed.feedcore.sbe.messages import MessageType
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.table.conditions import ValueKind
from tandemfeed.tables.columns import ColumnType, MessageColumns, column_types

# What each message has in addition to its fields. All are held as int64.
NUMBERS = {
    "message_seq": pa.int64(),
    "source_stream_id": pa.int32(),
    "source_seq": pa.int64(),
    "channel_id": pa.int32(),
    "session": pa.int32(),
    "epoch": pa.int64(),
    "source_sent_at": pa.timestamp("ns", "UTC"),
    "received_at": pa.timestamp("ns", "UTC"),
}
MAY_BE_ZERO = "source_sent_at"  # if the source did not say; null in the table
WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
TIMESTAMPS, NANOSECONDS = "timestamp", "nanoseconds"
TIMES = (TIMESTAMPS, NANOSECONDS)  # the option `times`


@dataclass(frozen=True)
class MessageTable:
    """The columns of a message type. It goes to the executors, which need no file of the message model.

    Args:
        model_xml: the message model.
        message_name: the message's name in it.
        times: one of TIMES.
    """

    model_xml: bytes
    message_name: str
    times: str = TIMESTAMPS

    def __getstate__(self) -> dict[str, Any]:
        return {"model_xml": self.model_xml, "message_name": self.message_name, "times": self.times}

    @cached_property
    def model(self) -> MessageModel:
        """The message model."""
        return load_message_model(self.model_xml)

    @cached_property
    def message(self) -> MessageType:
        """The message type."""
        return self.model.schema.messages[self.message_name]

    @cached_property
    def frame_size(self) -> int:
        """The bytes of a frame's fixed part."""
        return frame_size(self.message)

    @cached_property
    def schema(self) -> Any:
        """The table's columns, a Spark `StructType`."""
        return from_arrow_schema(pa.schema([*self._number_fields(), *self._message_fields()]))

    @cached_property
    def value_kinds(self) -> dict[str, ValueKind]:
        """How the values of columns that are never null can be compared."""
        time = ValueKind.TIME if self.times == TIMESTAMPS else ValueKind.NUMBER
        kinds = {name: time if pa.types.is_timestamp(kind) else ValueKind.NUMBER for name, kind in NUMBERS.items()}
        del kinds[MAY_BE_ZERO]
        if self.message.is_fixed:
            for name, each in self._shown_types.items():
                if each.column.null is None:
                    kinds[name] = _value_kind(each, time)
        return kinds

    def field_values(self, rows: NDArray[np.void], shown_name: str) -> NDArray[Any]:
        """The values of a column, as on the wire."""
        values: NDArray[Any] = rows[self._shown_types[shown_name].column.name]
        return values

    def batch(self, schema: Any, numbers: dict[str, NDArray[np.int64]], rows: Any) -> Any:
        """A record batch with the columns of a Spark schema.

        Args:
            rows: of a message of fixed size, a structured array; of others, an Arrow batch of all fields.
        """
        arrow = to_arrow_schema(schema, timezone="UTC")
        arrays = []
        for field in arrow:
            if field.name in numbers:
                array = _number_array(field.name, numbers[field.name])
            elif isinstance(rows, np.ndarray):
                array = self._shown_types[field.name].array(self.field_values(rows, field.name))
            else:
                array = rows.column(field.name)
            arrays.append(as_type(array, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=arrow)

    def rows_of(self, frames: list[memoryview]) -> Any:
        """The fields of messages with groups or variable data, one message after the other."""
        columns = MessageColumns(self.message)
        for frame in frames:
            columns.take(frame)
        batch = columns.batch()
        return batch.rename_columns([_shown(name) for name in batch.schema.names])

    def structured(self, rows: NDArray[np.uint8]) -> NDArray[np.void]:
        """Rows of bytes as a structured array."""
        return rows.reshape(-1).view(frame_dtype(self.message, self.frame_size))

    @cached_property
    def _shown_types(self) -> dict[str, ColumnType]:
        return {_shown(name): kind for name, kind in column_types(self.message).items()}

    def _number_fields(self) -> list[Any]:
        return [
            pa.field(name, spark_type(kind, self.times), nullable=name == MAY_BE_ZERO) for name, kind in NUMBERS.items()
        ]

    def _message_fields(self) -> list[Any]:
        if self.message.is_fixed:
            none = self.structured(np.empty((0, self.frame_size), np.uint8))
            types = {name: kind.array(self.field_values(none, name)).type for name, kind in self._shown_types.items()}
        else:
            batch = self.rows_of([])
            types = dict(zip(batch.schema.names, batch.schema.types, strict=True))
        nullable = {name for name, kind in self._shown_types.items() if kind.column.null is None}
        return [
            pa.field(name, spark_type(kind, self.times), nullable=name not in nullable) for name, kind in types.items()
        ]


def message_table(model_xml: bytes, document: str, message_name: str, times: str) -> MessageTable:
    """The table of a message type.

    Args:
        message_name: empty if the model has only one.

    Raises:
        TableError: the model has no such message, or several and none is named.
        DocumentError: the model cannot be used.
    """
    names = list(load_message_model(model_xml, document).schema.messages)
    if not message_name and len(names) == 1:
        message_name = names[0]
    if message_name not in names:
        found = f"option 'message' is {message_name!r}" if message_name else "option 'message' is missing"
        raise TableError(f"{found}; a table has messages of one type: choose one of {', '.join(names)}")
    return MessageTable(model_xml, message_name, times)


def spark_type(kind: Any, times: str) -> Any:
    """The Arrow type of a column in Spark."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC") if times == TIMESTAMPS else pa.int64()
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(spark_type(kind.value_type, times))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(spark_type(field.type, times)) for field in kind])
    return WIDER.get(kind, kind)


def _shown(name: str) -> str:
    """A field's column name: without dots, which SQL would have to quote, and different from the numbers' names."""
    plain = name.replace(".", "_")
    return f"{plain}_" if plain in NUMBERS else plain


def _value_kind(each: ColumnType, time: ValueKind) -> ValueKind:
    column = each.column
    if column.kind.name == "char":
        return ValueKind.TEXT
    if column.length > 1 or column.exponent or column.kind.numpy_code.startswith("f") or each.unit == "D":
        return ValueKind.OTHER
    return time if each.unit is not None else ValueKind.NUMBER


def _number_array(name: str, values: NDArray[np.int64]) -> Any:
    array = pa.array(values, mask=values == 0 if name == MAY_BE_ZERO else None)
    return array.cast(NUMBERS[name])


def as_type(array: Any, kind: Any) -> Any:
    """An array as another type of the same values."""
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_timestamp(array.type) and pa.types.is_timestamp(kind):
        return array.cast(kind, safe=False)  # towards the past: nothing happened before it did
    return array.cast(kind)
