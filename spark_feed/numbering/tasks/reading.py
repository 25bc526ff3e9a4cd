"""Reads files of a recording in Spark's executors, in Arrow's columns from the file to the frame.

Spark's own Parquet reader would make a row of each tick and an Arrow column of the rows again, which takes more time
than everything else that the job does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.spark_feed.numbering.rows.encoding import TickEncoder, empty_blocks
from tandemfeed.spark_feed.numbering.rows.packing import Block
from tandemfeed.spark_feed.numbering.rows.screening import Refused, Rules, Screen, schema_change
from tandemfeed.spark_feed.numbering.rows.split import SplitRule
from tandemfeed.spark_feed.numbering.tasks.quarantine import Quarantine
from tandemfeed.spark_feed.recordings.recording import RecordingError, part_number

READ_COUNT = 65_536  # rows at once, whose columns fit in the processor's cache
TEXT_COLUMNS = ["kind", "symbol", "side", "action"]  # read as codes of a dictionary, as the file has them


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads files of a recording; goes to the executors.

    Attributes:
        stream_count: of the feed.
        rows_per_file: of the recording.
        quarantine: the folder of the quarantine table.
    """

    source_format: SourceFormat
    split: SplitRule
    stream_count: int
    rules: Rules
    rows_per_file: int
    quarantine: Path

    def blocks(self, uri: str) -> Iterator[list[Block]]:
        """The messages of a file, in parts: a block for each source stream.

        Rows that make no message go to the quarantine table.

        Raises:
            RecordingError: the file cannot be read, or a record is missing.
        """
        try:
            yield from self._blocks(uri)
        except (RecordingError, pa.ArrowException, OSError) as error:
            raise RecordingError(f"{uri}: {error}") from error

    def _blocks(self, uri: str) -> Iterator[list[Block]]:
        filesystem, path = FileSystem.from_uri(uri)
        name = PurePosixPath(path).name
        first_record_index = part_number(name) * self.rows_per_file
        quarantine = Quarantine(name, first_record_index)
        with filesystem.open_input_file(path) as opened, pq.ParquetFile(opened, read_dictionary=TEXT_COLUMNS) as file:
            change = schema_change(file.schema_arrow)
            encoder, screen = (
                TickEncoder(self.source_format, self.split, self.stream_count),
                Screen(self.source_format, self.rules),
            )
            row = 0
            for batch in file.iter_batches(READ_COUNT, use_threads=False):  # a task has one core
                rows = pa.Table.from_batches([batch])
                if change:
                    refused = [Refused(place, change) for place in range(rows.num_rows)]
                    first = first_record_index + row
                    blocks = empty_blocks(first, first + rows.num_rows, self.stream_count)
                else:
                    refused = screen.refused(rows)
                    is_good = np.ones(rows.num_rows, np.bool_)
                    is_good[[each.place for each in refused]] = False
                    blocks = encoder.encode(rows, is_good)
                if refused:
                    quarantine.add(rows, row, refused)
                row += rows.num_rows
                if rows.num_rows:
                    yield blocks
        quarantine.write(self.quarantine / name)
