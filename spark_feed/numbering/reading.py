"""Reads files of a recording in Spark's executors, in Arrow's columns from the file to the frame.

Spark's own Parquet reader would make a row of each tick and an Arrow column of the rows again, which takes more time
than everything else that the job does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from tandemfeed.spark_feed.numbering.encoding import TickEncoder, problem_row, row_of
from tandemfeed.spark_feed.recordings.recording import RecordingError

READ_COUNT = 65_536  # rows at once, whose columns fit in the processor's cache
TEXT_COLUMNS = ["kind", "symbol", "side", "action"]  # read as codes of a dictionary, as the file has them


def blocks_of_file(uri: str, encoder: TickEncoder) -> Iterator[Any]:
    """The blocks of a file's messages, as record batches of `encoding.BLOCK_SCHEMA`.

    What is wrong with the file is a row as well: Spark would run a task that raises again, and wrap its text.
    """
    try:
        filesystem, path = FileSystem.from_uri(uri)
        with filesystem.open_input_file(path) as opened, pq.ParquetFile(opened, read_dictionary=TEXT_COLUMNS) as file:
            for batch in file.iter_batches(READ_COUNT, use_threads=False):  # a task has one core
                if batch.num_rows:
                    yield from map(row_of, count(), encoder.encode(pa.Table.from_batches([batch])))
    except (RecordingError, pa.ArrowException, OSError) as error:
        yield from (problem_row(stream, f"{uri}: {error}") for stream in range(encoder.stream_count))
