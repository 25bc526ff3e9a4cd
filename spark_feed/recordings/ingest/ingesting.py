"""Converts a user's files to a recording. The suffix of a file's name decides how it is read.

Files are read as streams, so that neither their size nor their number matters. Each continues the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.spark_feed.recordings.format_columns import recording_schema
from tandemfeed.spark_feed.recordings.ingest.column_file import CSV_SUFFIXES, PARQUET_SUFFIXES, ColumnFile
from tandemfeed.spark_feed.recordings.ingest.dbn_reader import DbnReader
from tandemfeed.spark_feed.recordings.ingest.file_columns import IngestOptions
from tandemfeed.spark_feed.recordings.ingest.file_reader import OnRead
from tandemfeed.spark_feed.recordings.ingest.format_reader import FormatReader
from tandemfeed.spark_feed.recordings.ingest.progress import IngestProgress
from tandemfeed.spark_feed.recordings.ingest.tick_reader import TickReader
from tandemfeed.spark_feed.recordings.recording import (
    ROWS_PER_FILE,
    SCHEMA,
    Manifest,
    RecordingError,
    require_new,
    write_recording,
)

COLUMNS_SUFFIXES = (*CSV_SUFFIXES, *PARQUET_SUFFIXES)
DBN_SUFFIXES = (".dbn", ".dbn.zst")


class Reader(Protocol):
    """Reads one file; see `FileReader`."""

    @property
    def price_conversion(self) -> str: ...
    @property
    def size_exponent(self) -> int: ...
    @property
    def work_size(self) -> int: ...
    def survey(self, on_read: OnRead) -> None: ...
    def tables(self, size_exponent: int, on_read: OnRead) -> Iterator[Any]: ...


def ingest(
    paths: Sequence[Path],
    out: Path,
    options: IngestOptions,
    rows_per_file: int = ROWS_PER_FILE,
    source_format: Path | None = None,
    progress: IngestProgress | None = None,
    group: str | None = None,
) -> Manifest:
    """Read Parquet, CSV or DBN files and write every row of them, in order, to a recording.

    Args:
        paths: at least one; a folder is its files, with those of its subfolders, in the order of their paths.
        source_format: the document whose fields are the recording's columns; None: trades, quotes and orders.
        group: with which the recording is shared.

    Raises:
        RecordingError: names file, row and column, and says what to do; nothing was written.
        DocumentError, OSError: the source format cannot be used.
    """
    require_new(out)
    origin = ", ".join(path.name for path in paths)
    paths = [file for path in paths for file in _files_of(path)]
    progress = progress or IngestProgress()
    readers, schema = _readers(paths, options, source_format)
    progress.begin(sum(reader.work_size for reader in readers))
    for reader in readers:
        reader.survey(progress.on_read)
    size_exponent = min(reader.size_exponent for reader in readers)
    return write_recording(
        out,
        _tables(readers, size_exponent, progress),
        rows_per_file=rows_per_file,
        origin=origin,
        price_conversion="; ".join(dict.fromkeys(reader.price_conversion for reader in readers)),
        size_exponent=size_exponent,
        schema=schema,
        group=group,
    )


def _readers(paths: Sequence[Path], options: IngestOptions, document: Path | None) -> tuple[Sequence[Reader], Any]:
    """A reader for each file, and the columns of the recording."""
    for path in paths:
        _check(path, document)
    if document is not None:
        source_format = load_source_format(document)
        schema = recording_schema(source_format)
        return [FormatReader(ColumnFile(path), options, source_format) for path in paths], schema
    dbn_count = sum(_has(path, DBN_SUFFIXES) for path in paths)
    if dbn_count not in (0, len(paths)):
        raise RecordingError("DBN files cannot be in one recording with files of other types; ingest them apart")
    if dbn_count:
        return [DbnReader(path, options) for path in paths], SCHEMA
    return [TickReader(ColumnFile(path), options) for path in paths], SCHEMA


def _files_of(path: Path) -> list[Path]:
    """A file, or the files of a folder. What begins with a dot or an underscore is not data, as in Spark.

    Raises:
        RecordingError: the folder has none that can be read.
    """
    if not path.is_dir():
        return [path]
    found = [
        each
        for each in sorted(path.rglob("*"))
        if each.is_file()
        and _has(each, (*COLUMNS_SUFFIXES, *DBN_SUFFIXES))
        and not any(part.startswith((".", "_")) for part in each.relative_to(path).parts)
    ]
    if not found:
        suffixes = ", ".join((*COLUMNS_SUFFIXES, *DBN_SUFFIXES))
        raise RecordingError(f"{path}: the folder has no file of a known type; expected {suffixes}")
    return found


def _check(path: Path, document: Path | None) -> None:
    if not path.is_file():
        raise RecordingError(f"{path}: no such file")
    if _has(path, COLUMNS_SUFFIXES) or (document is None and _has(path, DBN_SUFFIXES)):
        return
    if document is not None:
        raise RecordingError(f"{path}: a source format reads files with columns: {', '.join(COLUMNS_SUFFIXES)}")
    raise RecordingError(f"{path}: unknown file type; expected {', '.join((*COLUMNS_SUFFIXES, *DBN_SUFFIXES))}")


def _has(path: Path, suffixes: tuple[str, ...]) -> bool:
    return path.name.lower().endswith(suffixes)


def _tables(readers: Sequence[Reader], size_exponent: int, progress: IngestProgress) -> Iterator[Any]:
    for reader in readers:
        for table in reader.tables(size_exponent, progress.on_read):
            progress.on_records(table.num_rows)
            yield table
