"""Reads files of a recording in Spark's executors, in Arrow's columns from the file to the frame.

Spark's own Parquet reader would make a row of each tick and an Arrow column of the rows again, which takes more time
than everything else that the job does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.spark_feed.numbering.rows.column_split import Split, SplitError
from tandemfeed.spark_feed.numbering.rows.columns import RecordedRows
from tandemfeed.spark_feed.numbering.rows.encoding import TickEncoder, empty_blocks
from tandemfeed.spark_feed.numbering.rows.packing import Block
from tandemfeed.spark_feed.numbering.rows.screening import Refused, Rules, Screen, schema_change
from tandemfeed.spark_feed.numbering.tasks.quarantine import Quarantine
from tandemfeed.spark_feed.recordings.format_columns import recording_schema
from tandemfeed.spark_feed.recordings.recording import RecordingError, part_number

READ_COUNT = 65_536  # rows at once, whose columns fit in the processor's cache


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads files of a recording; goes to the executors.

    Attributes:
        stream_count: of the feed.
        rows_per_file: of the recording.
        quarantine: the folder of the quarantine table.
    """

    source_format: SourceFormat
    split: Split
    stream_count: int
    rules: Rules
    rows_per_file: int
    quarantine: Path

    def blocks(self, *uris: str) -> Iterator[list[Block]]:
        """The messages of files, in parts: a block for each source stream.

        Rows that make no message go to the quarantine table.

        Raises:
            RecordingError: a file cannot be read, or a record is missing.
        """
        reading = _Reading(self)
        for uri in uris:
            try:
                yield from reading.blocks(uri)
            except (RecordingError, SplitError, pa.ArrowException, OSError) as error:
                raise RecordingError(f"{uri}: {error}") from error


class _Reading:
    """What a reader needs for all its files."""

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader
        self._encoder = TickEncoder(reader.source_format, reader.split, reader.stream_count)
        self._schema = recording_schema(reader.source_format)
        self._texts = [field.name for field in self._schema if pa.types.is_string(field.type)]
        self._columns = [*dict.fromkeys([*self._schema.names, *reader.split.columns, *reader.rules.columns])]
        self._known: Any = None  # the schema of the last file that is a part of the recording

    def blocks(self, uri: str) -> Iterator[list[Block]]:
        reader = self._reader
        filesystem, path = FileSystem.from_uri(uri)
        name = PurePosixPath(path).name
        first_record_index = part_number(name) * reader.rows_per_file
        quarantine, row = Quarantine(name, first_record_index), 0
        # Texts are read as codes of a dictionary, as the file has them.
        with filesystem.open_input_file(path) as opened, pq.ParquetFile(opened, read_dictionary=self._texts) as file:
            change, screen = self._change(file.schema_arrow), Screen(reader.source_format, reader.rules)
            columns = None if change else self._columns
            for batch in file.iter_batches(READ_COUNT, columns=columns, use_threads=False):  # a task has one core
                if not batch.num_rows:
                    continue
                if change:
                    refused = [Refused(place, change) for place in range(batch.num_rows)]
                    first = first_record_index + row
                    blocks = empty_blocks(first, first + batch.num_rows, reader.stream_count)
                else:
                    rows = RecordedRows(batch)
                    refused = screen.refused(rows)
                    is_good = np.ones(rows.count, np.bool_)
                    is_good[[each.place for each in refused]] = False
                    blocks = self._encoder.encode(rows, is_good)
                if refused:
                    quarantine.add(batch, row, refused)
                row += batch.num_rows
                yield blocks
        quarantine.write(reader.quarantine / name)

    def _change(self, found: Any) -> str:
        """Why a file is not a part of the recording; empty if it is."""
        if self._known is None or not self._known.equals(found):
            if change := schema_change(found, self._schema):
                return change
            if missing := next((name for name in self._columns if name not in found.names), ""):
                return f"schema change: the file has no column {missing!r}"
            self._known = found
        return ""
