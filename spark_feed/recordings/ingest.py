"""Converts a user's file to a recording. The suffix of the file name decides how the file is read."""

from __future__ import annotations

from pathlib import Path

from tandemfeed.spark_feed.recordings.file_columns import IngestOptions
from tandemfeed.spark_feed.recordings.ingest_columns import read_columns_file
from tandemfeed.spark_feed.recordings.ingest_dbn import read_dbn_file
from tandemfeed.spark_feed.recordings.ingest_format import read_format_file
from tandemfeed.spark_feed.recordings.recording import ROWS_PER_FILE, Manifest, RecordingError, write_recording

COLUMNS_SUFFIXES = (".csv", ".txt", ".parquet", ".pq")


def ingest(
    path: Path,
    out: Path,
    options: IngestOptions,
    rows_per_file: int = ROWS_PER_FILE,
    source_format: Path | None = None,
) -> Manifest:
    """Read a Parquet, CSV or DBN file and write every row of it, in order, to a recording.

    Args:
        source_format: the document whose fields are the recording's columns; None: trades, quotes and orders.

    Raises:
        RecordingError: names file, row and column, and says what to do.
    """
    if not path.is_file():
        raise RecordingError(f"{path}: no such file")
    name = path.name.lower()
    if source_format is not None and name.endswith(COLUMNS_SUFFIXES):
        ingested = read_format_file(path, source_format, options)
    elif source_format is not None:
        raise RecordingError(f"{path}: a source format reads files with columns: {', '.join(COLUMNS_SUFFIXES)}")
    elif name.endswith((".dbn", ".dbn.zst")):
        ingested = read_dbn_file(path, options)
    elif name.endswith(COLUMNS_SUFFIXES):
        ingested = read_columns_file(path, options)
    else:
        raise RecordingError(f"{path}: unknown file type; expected .parquet, .csv, .dbn or .dbn.zst")
    return write_recording(
        out,
        ingested.tables,
        rows_per_file=rows_per_file,
        origin=path.name,
        price_conversion=ingested.price_conversion,
        size_exponent=ingested.size_exponent,
        schema=ingested.schema,
    )
