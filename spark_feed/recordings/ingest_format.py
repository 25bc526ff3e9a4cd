"""CSV and Parquet files whose columns a source format names, as recordings of that format.

Numbers mean their value, in a file as in a price list: 12.5 becomes 1250 in a field with exponent -2. Never changes a
value silently: what the field cannot hold is an error, except that floats are rounded in fields with decimal places.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceFormat
from tandemfeed.spark_feed.recordings.file_columns import FileColumns, IngestOptions, read_file
from tandemfeed.spark_feed.recordings.format_columns import columns_of, recording_schema
from tandemfeed.spark_feed.recordings.ingest_columns import Ingested
from tandemfeed.spark_feed.recordings.prices import BadNumber, Scale, signed, to_integers
from tandemfeed.spark_feed.recordings.recording import RecordingError

TIME, KIND = "event_at_ns", "kind"
NANOSECONDS_SUFFIX = "_ns"


def read_format_file(path: Path, document: Path, options: IngestOptions) -> Ingested:
    """Read a CSV (with a header line) or Parquet file by a source format.

    Args:
        document: the source format.

    Raises:
        RecordingError: names file, row and column, and says what to do; DocumentError, OSError: of the document.
    """
    source_format = load_source_format(document)
    schema = recording_schema(source_format)
    raw = read_file(path)
    wanted = [name for name in schema.names if name != "record_index"]
    for field, column in options.columns.items():
        if field not in wanted:
            raise RecordingError(
                f"--column {field}={column}: the source format has no field {field!r}; its fields are "
                f"{', '.join(wanted)}"
            )
        if column not in raw.column_names:
            raise RecordingError(f"{path}: no column {column!r} for {field}; the columns are {_names(raw)}")
    mapping = {name: options.columns.get(name, name) for name in wanted}
    mapping = {name: column for name, column in mapping.items() if column in raw.column_names}
    if TIME not in mapping:
        raise RecordingError(
            f"{path}: no column found for {TIME}, the time of the event (the columns are {_names(raw)}): name it with "
            f"--column {TIME}=NAME"
        )
    return _FormatReader(path, raw, mapping, options, source_format).read(schema)


def _names(raw: Any) -> str:
    return ", ".join(raw.column_names)


class _FormatReader(FileColumns):
    def __init__(
        self, path: Path, raw: Any, mapping: dict[str, str], options: IngestOptions, source_format: SourceFormat
    ) -> None:
        super().__init__(path, raw, mapping, options)
        self._format = source_format
        self._count: int = raw.num_rows

    def read(self, schema: Any) -> Ingested:
        kinds = self._kinds()
        columns = {"kind": kinds, TIME: pa.array(self.times(TIME))}
        for message in self._format.messages.values():
            members = np.asarray(pc.equal(kinds, message.name))
            if not members.any():
                continue
            for name, field in columns_of(message).items():
                if name != TIME:
                    found = self._values(name, field, members)
                    columns[name] = _merged(columns[name], found, members) if name in columns else found
        kept = [field.with_nullable(True) for field in schema if field.name != "record_index"]
        arrays = [columns.get(field.name, pa.nulls(self._count, field.type)) for field in kept]
        return Ingested([pa.table(arrays, schema=pa.schema(kept))], "by the source format", 0, schema)

    def _kinds(self) -> Any:
        """The message of each row."""
        names = list(self._format.messages)
        if self.options.kind is None and KIND in self.mapping:
            kinds = self.column(KIND).cast(pa.string()).combine_chunks()
            wrong = np.flatnonzero(~np.asarray(pc.is_in(kinds, pa.array(names))))
            if wrong.size:
                text = f"{kinds[int(wrong[0])].as_py()!r} is not a message of the source format: {', '.join(names)}"
                raise self.error(int(wrong[0]), KIND, text)
            return kinds
        kind = self.options.kind or (names[0] if len(names) == 1 else None)
        if kind not in names:
            given = "the rows' message is not stated" if kind is None else f"no message is named {kind!r}"
            raise RecordingError(
                f"{self.path}: {given}: give --kind {' or '.join(names)}, or a column of these names with --column "
                f"{KIND}=NAME"
            )
        return pa.array([kind] * self._count, pa.string())

    def _values(self, name: str, field: SourceField, members: NDArray[np.bool_]) -> Any:
        """The column of a field, null in the rows of other messages."""
        if name not in self.mapping and name == "symbol" and self.options.symbol is not None:
            return pa.array([self.options.symbol] * self._count, pa.string())
        if name not in self.mapping:
            if field.null is None:
                raise RecordingError(
                    f"{self.path}: no column for {name} (the columns are {_names(self.raw)}), and the source format "
                    f"has no null for it: name the column with --column {name}=NAME"
                )
            return pa.nulls(self._count, _stored_type(field))
        column = pc.if_else(pa.array(members), self.column(name), None)
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        missing = np.asarray(pc.is_null(column))
        if field.null is None and (missing & members).any():
            row = int(np.flatnonzero(missing & members)[0])
            raise self.error(row, name, "there is no value, and the source format has no null for it")
        if field.is_text:
            return self._texts(name, field, column)
        if field.kind.is_float:
            return self._floats(name, column)
        if (field.is_time or name.endswith(NANOSECONDS_SUFFIX)) and not pa.types.is_integer(column.type):
            return self._other_times(name, column, missing)
        return self._integers(name, field, column, missing)

    def _texts(self, name: str, field: SourceField, column: Any) -> Any:
        texts = column.cast(pa.string())
        lengths = pc.binary_length(texts)
        if (pc.max(lengths).as_py() or 0) > field.length:
            row = pc.index(pc.greater(lengths, field.length), pa.scalar(True)).as_py()
            text = f"{texts[row].as_py()!r} has {lengths[row].as_py()} bytes; the field has {field.length}"
            raise self.error(row, name, text)
        return texts

    def _floats(self, name: str, column: Any) -> Any:
        try:
            return column.cast(pa.float64())
        except pa.ArrowInvalid as error:
            raise RecordingError(f"{self.path}: column {self.mapping[name]!r}: {error}") from error

    def _other_times(self, name: str, column: Any, missing: NDArray[np.bool_]) -> Any:
        """Times that may be missing, which `times` refuses."""
        present = FileColumns(self.path, self.raw.filter(pa.array(~missing)), self.mapping, self.options)
        values = np.zeros(self._count, np.int64)
        if not missing.all():
            values[~missing] = present.times(name)
        return pa.array(values, mask=missing)

    def _integers(self, name: str, field: SourceField, column: Any, missing: NDArray[np.bool_]) -> Any:
        scale = Scale(-field.exponent, int(field.kind.minimum), int(field.kind.maximum), rounds=field.exponent < 0)
        try:
            values, _ = to_integers(column, 0, scale)
        except BadNumber as bad:
            raise self.error(bad.row, name, f"{bad.value!r} {bad.reason}") from None
        if field.null is not None:
            as_null = np.flatnonzero((values == signed(int(field.null))) & ~missing)
            if as_null.size:
                value = column[int(as_null[0])].as_py()
                raise self.error(int(as_null[0]), name, f"{value!r} means no value in the source format")
        return pa.array(values, mask=missing)


def _merged(before: Any, found: Any, members: NDArray[np.bool_]) -> Any:
    return pc.if_else(pa.array(members), found, before)


def _stored_type(field: SourceField) -> Any:
    if field.is_text:
        return pa.string()
    return pa.float64() if field.kind.is_float else pa.int64()
