"""Converts a user's file to a recording. The suffix of the file name decides how the file is read."""

from __future__ import annotations

from pathlib import Path

from tandemfeed.spark_feed.recordings.ingest_columns import IngestOptions, read_columns_file
from tandemfeed.spark_feed.recordings.ingest_dbn import read_dbn_file
from tandemfeed.spark_feed.recordings.recording import ROWS_PER_FILE, Manifest, RecordingError, write_recording


def ingest(path: Path, out: Path, options: IngestOptions, rows_per_file: int = ROWS_PER_FILE) -> Manifest:
    """Read a Parquet, CSV or DBN file and write every row of it, in order, to a recording.

    Raises:
        RecordingError: names file, row and column, and says what to do.
    """
    if not path.is_file():
        raise RecordingError(f"{path}: no such file")
    name = path.name.lower()
    if name.endswith((".dbn", ".dbn.zst")):
        ingested = read_dbn_file(path, options)
    elif name.endswith((".csv", ".txt", ".parquet", ".pq")):
        ingested = read_columns_file(path, options)
    else:
        raise RecordingError(f"{path}: unknown file type; expected .parquet, .csv, .dbn or .dbn.zst")
    return write_recording(
        out,
        [ingested.table],
        rows_per_file=rows_per_file,
        origin=path.name,
        price_conversion=ingested.price_conversion,
        size_exponent=ingested.size_exponent,
    )
