"""The table of one message type of a source format: the source identity, then the fields of the message.

Padding (fields whose names begin with `pad`) is left out. A field whose name ends with `_ns` is a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tandemfeed.feedcore.documents.source_layout import FRAMING_DEFAULT, SourceFormat, SourceMessageType
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.table.conditions import ValueKind
from tandemfeed.spark_feed.spark.table.message_table import TIMESTAMPS, as_type, spark_type
from tandemfeed.tables.columns import DEFAULT_CHARSET, ColumnType

NUMBERS = {"source_stream_id": pa.int32(), "source_seq": pa.int64(), "session": pa.int32()}
PADDING, NANOSECONDS_SUFFIX, TIME_SIZE = "pad", "_ns", 8


@dataclass(frozen=True)
class SourceTable:
    """The columns of a message type. It goes to the executors.

    Args:
        times: one of `message_table.TIMES`.
    """

    message: SourceMessageType
    times: str = TIMESTAMPS

    def __getstate__(self) -> dict[str, Any]:
        return {"message": self.message, "times": self.times}

    @cached_property
    def schema(self) -> Any:
        """The table's columns, a Spark `StructType`."""
        none = np.empty(0, self.message.dtype)
        fields = [pa.field(name, kind, nullable=False) for name, kind in NUMBERS.items()]
        for name, kind in self._columns.items():
            shown = spark_type(self._array(name, none).type, self.times)
            fields.append(pa.field(name, shown, nullable=kind.column.null is not None))
        return from_arrow_schema(pa.schema(fields))

    @cached_property
    def value_kinds(self) -> dict[str, ValueKind]:
        """How the values of columns that are never null can be compared."""
        return dict.fromkeys(NUMBERS, ValueKind.NUMBER)

    def batch(self, schema: Any, numbers: dict[str, NDArray[np.int64]], rows: NDArray[np.void]) -> Any:
        """A record batch with the columns of a Spark schema."""
        arrow = to_arrow_schema(schema, timezone="UTC")
        arrays = []
        for field in arrow:
            is_number = field.name in NUMBERS
            array = pa.array(numbers[field.name]) if is_number else self._array(field.name, rows)
            arrays.append(as_type(array, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=arrow)

    @cached_property
    def _columns(self) -> dict[str, ColumnType]:
        return column_types(self.message)

    def _array(self, name: str, rows: NDArray[np.void]) -> Any:
        values = rows[name]
        return self._columns[name].array(values.astype(values.dtype.newbyteorder("=")))


def column_types(message: SourceMessageType) -> dict[str, ColumnType]:
    """The columns of a message type, by name."""
    found = {}
    for name, field in message.fields.items():
        if not name.startswith(PADDING):
            is_time = name.endswith(NANOSECONDS_SUFFIX) and field.kind.size == TIME_SIZE and not field.is_text
            found[name] = ColumnType(field, DEFAULT_CHARSET, "ns" if is_time else None)
    return found


def source_table(source_format: SourceFormat, message_name: str, times: str) -> SourceTable:
    """The table of a message type.

    Args:
        message_name: empty if the format has only one.

    Raises:
        TableError: the format has no such message, several and none is named, or messages that a source journal cannot
            have.
    """
    names = list(source_format.messages)
    if not message_name and len(names) == 1:
        message_name = names[0]
    if message_name not in names:
        found = f"option 'message' is {message_name!r}" if message_name else "option 'message' is missing"
        raise TableError(f"{found}; a table has messages of one type: choose one of {', '.join(names)}")
    message = source_format.messages[message_name]
    if message.framing != FRAMING_DEFAULT or message.parts:
        raise TableError(
            f"{message_name} is not a fixed message in the feed source's own framing, as journals have them"
        )
    return SourceTable(message, times)
