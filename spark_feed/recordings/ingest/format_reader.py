"""CSV and Parquet files whose columns a source format names, as recordings of that format.

Numbers mean their value, in a file as in a price list: 12.5 becomes 1250 in a field with exponent -2. Never changes a
value silently: what the field cannot hold is an error, except that floats are rounded in fields with decimal places.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.source_layout import SourceField, SourceFormat
from tandemfeed.spark_feed.recordings.format_columns import columns_of, recording_schema
from tandemfeed.spark_feed.recordings.ingest.column_file import ColumnFile
from tandemfeed.spark_feed.recordings.ingest.file_columns import BadRow, FileColumns, IngestOptions
from tandemfeed.spark_feed.recordings.ingest.file_reader import FileReader
from tandemfeed.spark_feed.recordings.ingest.times import TimeColumn
from tandemfeed.spark_feed.recordings.prices import Scale, signed, to_integers
from tandemfeed.spark_feed.recordings.recording import RecordingError
from tandemfeed.spark_feed.recordings.values import BadValue, cast

TIME, KIND = "event_at_ns", "kind"
NANOSECONDS_SUFFIX = "_ns"


class FormatReader(FileReader):
    """Reads messages of a source format from a CSV (with a header line) or Parquet file.

    Raises:
        RecordingError: a column is missing, or rows cannot make the format's messages; says what to do.
    """

    price_conversion = "by the source format"

    def __init__(self, file: ColumnFile, options: IngestOptions, source_format: SourceFormat) -> None:
        self._format, self._schema = source_format, recording_schema(source_format)
        super().__init__(file, _mapping(file, options, self._schema.names), options)
        self._kind = self._kind_of_all()
        self._event_times = TimeColumn(options.time_unit)
        self._other_times = {
            (message.name, name): TimeColumn(options.time_unit)
            for message in source_format.messages.values()
            for name, field in columns_of(message).items()
            if name in self.mapping and self._is_other_time(name, field)
        }

    @property
    def surveyed(self) -> list[str]:
        """The times that are not integers of nanoseconds, and the messages that they belong to."""
        events = [TIME] if self._event_times.needs_survey(self.types[TIME]) else []
        others = [name for _, name in self._surveyed_times()]
        return events + others + ([KIND] if others and not self._kind else [])

    def look_at(self, rows: FileColumns) -> None:
        """Learn the units of times."""
        found = []
        if self._event_times.needs_survey(self.types[TIME]):
            found.append((self._event_times, _highest(rows, TIME, self._event_times, rows.column(TIME))))
        for message, name in self._surveyed_times():
            times = self._other_times[message, name]
            column = pc.if_else(pc.equal(self._kinds(rows), message), rows.column(name), None)
            found.append((times, _highest(rows, name, times, column)))
        for times, highest in found:
            times.learn(highest)

    def table(self, rows: FileColumns, size_exponent: int) -> Any:
        """Rows as a table of a recording."""
        assert not size_exponent, "the source format has the exponents"
        kinds = self._kinds(rows)
        columns = {KIND: kinds, TIME: pa.array(_nanoseconds(rows, TIME, self._event_times, rows.column(TIME)))}
        for message in self._format.messages.values():
            members = np.asarray(pc.equal(kinds, message.name))
            if not members.any():
                continue
            for name, field in columns_of(message).items():
                if name != TIME:
                    found = self._values(rows, message.name, name, field, members)
                    columns[name] = _merged(columns[name], found, members) if name in columns else found
        kept = [field.with_nullable(True) for field in self._schema if field.name != "record_index"]
        arrays = [columns.get(field.name, pa.nulls(rows.count, field.type)) for field in kept]
        return pa.table(arrays, schema=pa.schema(kept))

    def _surveyed_times(self) -> list[tuple[str, str]]:
        return [key for key, times in self._other_times.items() if times.needs_survey(self.types[key[1]])]

    def _is_other_time(self, name: str, field: SourceField) -> bool:
        """True for a field whose column has times, not integers; it may lack values."""
        if name == TIME or field.is_text or field.kind.is_float or pa.types.is_integer(self.types[name]):
            return False
        return field.is_time or name.endswith(NANOSECONDS_SUFFIX)

    def _kind_of_all(self) -> str:
        """The message of all rows; empty: the column `kind` names that of each."""
        names = list(self._format.messages)
        if self.options.kind is None and KIND in self.mapping:
            return ""
        kind = self.options.kind or (names[0] if len(names) == 1 else "")
        if kind not in names:
            given = f"no message is named {kind!r}" if kind else "the rows' message is not stated"
            raise RecordingError(
                f"{self.file.path}: {given}: give --kind {' or '.join(names)}, or a column of these names with "
                f"--column {KIND}=NAME"
            )
        return kind

    def _kinds(self, rows: FileColumns) -> Any:
        """The message of each row."""
        if self._kind:
            return pa.array([self._kind] * rows.count, pa.string())
        kinds, names = _cast(rows, KIND, rows.column(KIND), pa.string(), "is not a text"), list(self._format.messages)
        wrong = np.flatnonzero(~np.asarray(pc.is_in(kinds, pa.array(names))))
        if wrong.size:
            row = int(wrong[0])
            text = f"{kinds[row].as_py()!r} is not a message of the source format: {', '.join(names)}"
            raise rows.error(row, KIND, text)
        return kinds

    def _values(
        self, rows: FileColumns, message: str, name: str, field: SourceField, members: NDArray[np.bool_]
    ) -> Any:
        """The column of a field, null in the rows of other messages."""
        if name not in self.mapping:
            return self._without_column(rows, name, field, members)
        column = pc.if_else(pa.array(members), rows.column(name), None)
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
        missing = np.asarray(pc.is_null(column))
        if field.null is None and (missing & members).any():
            row = int(np.flatnonzero(missing & members)[0])
            raise rows.error(row, name, "there is no value, and the source format has no null for it")
        if field.is_text:
            return _texts(rows, name, field, column)
        if field.kind.is_float:
            return _cast(rows, name, column, pa.float64(), "is not a number")
        if (times := self._other_times.get((message, name))) is not None:
            return pa.array(_optional_times(rows, name, times, column, missing), mask=missing)
        return pa.array(_integers(rows, name, field, column, missing), mask=missing)

    def _without_column(self, rows: FileColumns, name: str, field: SourceField, members: NDArray[np.bool_]) -> Any:
        if name == "symbol" and self.options.symbol is not None:
            return pa.array([self.options.symbol] * rows.count, pa.string())
        if field.null is None:
            raise BadRow(
                int(np.flatnonzero(members)[0]),
                f"{self.file.path}: no column for {name} (the columns are {_names(self.file)}), and the source format "
                f"has no null for it: name the column with --column {name}=NAME",
            )
        return pa.nulls(rows.count, _stored_type(field))


def _mapping(file: ColumnFile, options: IngestOptions, names: list[str]) -> dict[str, str]:
    """The column of each field that is read.

    Args:
        names: the columns of the recording.
    """
    wanted, present = [name for name in names if name != "record_index"], file.schema.names
    for field, column in options.columns.items():
        if field not in wanted:
            raise RecordingError(
                f"--column {field}={column}: the source format has no field {field!r}; its fields are "
                f"{', '.join(wanted)}"
            )
        if column not in present:
            raise RecordingError(f"{file.path}: no column {column!r} for {field}; the columns are {_names(file)}")
    mapping = {name: options.columns.get(name, name) for name in wanted}
    mapping = {name: column for name, column in mapping.items() if column in present}
    if TIME not in mapping:
        raise RecordingError(
            f"{file.path}: no column found for {TIME}, the time of the event (the columns are {_names(file)}): name it "
            f"with --column {TIME}=NAME"
        )
    return mapping


def _names(file: ColumnFile) -> str:
    return ", ".join(file.schema.names)


def _highest(rows: FileColumns, name: str, times: TimeColumn, column: Any) -> int:
    try:
        return times.highest(column)
    except BadValue as bad:
        raise rows.bad(bad, name) from None


def _nanoseconds(rows: FileColumns, name: str, times: TimeColumn, column: Any) -> NDArray[np.int64]:
    try:
        return times.nanoseconds(column)
    except BadValue as bad:
        raise rows.bad(bad, name) from None


def _optional_times(
    rows: FileColumns, name: str, times: TimeColumn, column: Any, missing: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Times of which some may be missing; these are 0."""
    values, present = np.zeros(rows.count, np.int64), np.flatnonzero(~missing)
    if len(present):
        try:
            values[present] = times.nanoseconds(column.drop_null())
        except BadValue as bad:
            raise rows.error(int(present[bad.row]), name, str(bad)) from None
    return values


def _texts(rows: FileColumns, name: str, field: SourceField, column: Any) -> Any:
    texts = _cast(rows, name, column, pa.string(), "is not a text")
    lengths = pc.binary_length(texts)
    if (pc.max(lengths).as_py() or 0) > field.length:
        row = pc.index(pc.greater(lengths, field.length), pa.scalar(True)).as_py()
        text = f"{texts[row].as_py()!r} has {lengths[row].as_py()} bytes; the field has {field.length}"
        raise rows.error(row, name, text)
    return texts


def _integers(
    rows: FileColumns, name: str, field: SourceField, column: Any, missing: NDArray[np.bool_]
) -> NDArray[np.int64]:
    scale = Scale(-field.exponent, int(field.kind.minimum), int(field.kind.maximum), rounds=field.exponent < 0)
    try:
        values = to_integers(column, 0, scale)
    except BadValue as bad:
        raise rows.bad(bad, name) from None
    if field.null is not None:
        as_null = np.flatnonzero((values == signed(int(field.null))) & ~missing)
        if as_null.size:
            row = int(as_null[0])
            raise rows.error(row, name, f"{column[row].as_py()!r} means no value in the source format")
    return values


def _cast(rows: FileColumns, name: str, column: Any, kind: Any, reason: str) -> Any:
    try:
        return cast(column, kind, reason)
    except BadValue as bad:
        raise rows.bad(bad, name) from None


def _merged(before: Any, found: Any, members: NDArray[np.bool_]) -> Any:
    return pc.if_else(pa.array(members), found, before)


def _stored_type(field: SourceField) -> Any:
    if field.is_text:
        return pa.string()
    return pa.float64() if field.kind.is_float else pa.int64()
