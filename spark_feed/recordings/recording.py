"""A recording: a folder of Parquet files with canonical ticks, which the source job replays file by file.

Each file is one micro-batch, so all files but the last have the same number of rows. Rows carry `record_index`, gapless
from 0 over the whole recording, so that a reader can prove that no row is missing or out of order. Spark's file source
takes files in order of modification time. The writer therefore sets those times, one step apart, and
`restore_file_order` sets them again on a copy that lost them.

Prices are i64 with exponent -9; `NULL_PRICE` means no price. Unsigned 64-bit ids are stored as their two's complement,
because Parquet readers disagree about unsigned types.

Invariants: `record_index` of row r in file f is f * rows_per_file + r; a recording with a manifest is whole, and on the
disk.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tandemfeed.journal.format.access import Access
from tandemfeed.runtime.durable import flush_file, rename_unsynced, replace_file
from tandemfeed.spark_feed.sharing import make
from tandemfeed.transport.ending import completed_despite_signal, remove_folder, undone_by_signal

NULL_PRICE = (1 << 63) - 1
PRICE_DIGITS = 9
SYMBOL_SIZE_MAX = 64  # of a key of a converter; the source format may allow fewer
KINDS = ("trade", "quote", "order")
MANIFEST_NAME = "_recording.json"  # Spark ignores names that begin with an underscore
ROWS_PER_FILE = 10_000
FIRST_FILE_TIME_NS = 1_000_000_000 * 1_000_000_000  # any fixed time; only the order counts
FILE_TIME_STEP_NS = 10_000_000
# Columns that ascend are stored as differences. Numbers have no dictionaries, and files are compressed with LZ4: Arrow
# reads them in a third less time than with Zstandard and dictionaries, and they are about as large.
ENCODINGS = dict.fromkeys(["record_index", "event_at_ns"], "DELTA_BINARY_PACKED")

CORE_FIELDS = (  # of every recording
    pa.field("record_index", pa.int64(), nullable=False),
    pa.field("kind", pa.string(), nullable=False),  # the name of a message of the source format
    pa.field("event_at_ns", pa.int64(), nullable=False),
)
SCHEMA = pa.schema(  # of ticks; `format_columns.recording_schema` has that of any source format
    [
        pa.field("record_index", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("symbol", pa.string(), nullable=False),
        pa.field("event_at_ns", pa.int64(), nullable=False),
        pa.field("price", pa.int64()),  # trade, order
        pa.field("size", pa.int64()),  # trade, order
        pa.field("side", pa.string()),  # trade, order: B bid, A ask, N none
        pa.field("flags", pa.int16()),  # trade, order
        pa.field("bid_price", pa.int64()),  # quote
        pa.field("ask_price", pa.int64()),
        pa.field("bid_size", pa.int64()),
        pa.field("ask_size", pa.int64()),
        pa.field("received_at_ns", pa.int64()),  # order
        pa.field("order_id", pa.int64()),
        pa.field("sequence", pa.int64()),
        pa.field("received_delta_ns", pa.int32()),
        pa.field("action", pa.string()),
        pa.field("venue_channel", pa.int16()),
    ]
)

# What no value means in a column of ticks, if the source format has no null for it. In other columns it is an error.
NO_NUMBER = dict.fromkeys(
    [
        *("size", "flags", "bid_size", "ask_size", "received_at_ns", "order_id", "sequence", "received_delta_ns"),
        "venue_channel",
    ],
    0,
)
NO_TEXT = {"side": b"N", "action": b"N"}


class RecordingError(Exception):
    """A recording, or the input of one, cannot be used; the text says where and what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes the contents of a recording.

    Attributes:
        price_conversion: how prices were converted to integers, in words.
        size_exponent: sizes are stored in units of 10 to this power.
    """

    record_count: int
    file_count: int
    rows_per_file: int
    symbol_count: int
    first_event_at_ns: int
    last_event_at_ns: int
    origin: str
    price_conversion: str
    size_exponent: int = 0

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a finished recording.

        Raises:
            RecordingError: if the folder does not contain one.
        """
        path = folder / MANIFEST_NAME
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise RecordingError(
                f"{folder} is not a finished recording (it has no {MANIFEST_NAME}); make one with "
                "`tandemfeed ticks generate` or `tandemfeed ticks ingest`"
            ) from None
        except (ValueError, TypeError) as error:
            raise RecordingError(f"{path} is damaged ({error}); make the recording again") from error


def part_number(name: str) -> int:
    """The number of a file of a recording.

    Raises:
        RecordingError: no file of a recording has this name.
    """
    found = re.fullmatch(r"part-(\d{8})\.parquet", name)
    if found is None:
        raise RecordingError(f"{name} is not the name of a file of a recording; expected part-NNNNNNNN.parquet")
    return int(found[1])


def part_path(folder: Path, number: int) -> Path:
    """The path of file `number` of a recording."""
    return folder / f"part-{number:08d}.parquet"


def write_recording(
    folder: Path,
    tables: Iterable[pa.Table],
    *,
    rows_per_file: int = ROWS_PER_FILE,
    origin: str,
    price_conversion: str,
    size_exponent: int = 0,
    schema: pa.Schema = SCHEMA,
    group: str | None = None,
) -> Manifest:
    """Write tables (columns of the schema without record_index, in order) as a recording.

    What is written does not depend on how the rows are divided among tables, and little more than a file's rows is in
    memory. If a table raises, or the disk refuses, nothing is left. On return, all of it is on the disk.

    Args:
        group: with which the recording is shared; None: as its folder, or the one in which that is created.

    Raises:
        RecordingError: if the folder is not empty, or the tables have no rows.
        OSError, FlushFailed: of the disk.
    """
    require_new(folder)
    was_there = folder.is_dir()
    access = make(folder, group)
    with undone_by_signal(partial(remove_folder, folder, is_kept=was_there)):
        try:
            parts = _Parts(folder, access)
            manifest = _write_parts(parts, tables, rows_per_file, origin, price_conversion, size_exponent, schema)
            parts.flush()
            with completed_despite_signal():
                text = json.dumps(asdict(manifest), indent=1) + "\n"
                replace_file(folder / MANIFEST_NAME, text.encode(), access.file_mode)
        except BaseException:
            _clear(folder)
            if not was_there:
                folder.rmdir()
            raise
    return manifest


def require_new(folder: Path) -> None:
    """Require that a recording can be written to a folder: that there is none, or an empty one.

    Raises:
        RecordingError: the folder is not empty.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    holds = "is not empty"
    if not (folder / MANIFEST_NAME).exists() and any(folder.glob("part-*.parquet")):
        holds = "has an unfinished recording, of a command that was killed"
    raise RecordingError(f"{folder} {holds}; give a new folder, or remove the old recording first")


def _clear(folder: Path) -> None:
    (folder / MANIFEST_NAME).unlink(missing_ok=True)  # the first, so that the rest never looks whole
    for left in folder.iterdir():
        left.unlink()


class _Parts:
    """The files of a recording that is being written."""

    def __init__(self, folder: Path, access: Access) -> None:
        self.folder, self._access = folder, access
        self.count = 0

    def write(self, table: pa.Table) -> None:
        """Write the next file: as a whole, but not flushed."""
        path = part_path(self.folder, self.count)
        unfinished = path.with_name(f"_{path.name}")  # invisible to a Spark that is already watching
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, self._access.file_mode))
        self._access.give(unfinished)
        texts = [field.name for field in table.schema if not pa.types.is_primitive(field.type)]
        pq.write_table(table, unfinished, compression="lz4", use_dictionary=texts, column_encoding=ENCODINGS)
        _set_file_time(unfinished, self.count)
        rename_unsynced(unfinished, path)
        self.count += 1

    def flush(self) -> None:
        """Flush all of them. At the end, because the disk has most of them then."""
        for number in range(self.count):
            flush_file(part_path(self.folder, number))


def _write_parts(
    parts: _Parts,
    tables: Iterable[pa.Table],
    rows_per_file: int,
    origin: str,
    price_conversion: str,
    size_exponent: int,
    schema: pa.Schema,
) -> Manifest:
    symbols: set[str] = set()
    record_count = 0
    first_event = last_event = 0
    for table in _rechunk(tables, rows_per_file):
        index = pa.array(np.arange(record_count, record_count + table.num_rows))
        full = table.add_column(0, schema.field("record_index"), index).select(schema.names).cast(schema)
        parts.write(full)
        events = full.column("event_at_ns")
        first_event = first_event if record_count else events[0].as_py()
        last_event = events[-1].as_py()
        if "symbol" in schema.names:
            symbols.update(full.column("symbol").unique().to_pylist())
        record_count += table.num_rows
    if not record_count:
        raise RecordingError(f"{origin} contains no records; nothing was written to {parts.folder}")
    return Manifest(
        record_count=record_count,
        file_count=parts.count,
        rows_per_file=rows_per_file,
        symbol_count=len(symbols),
        first_event_at_ns=first_event,
        last_event_at_ns=last_event,
        origin=origin,
        price_conversion=price_conversion,
        size_exponent=size_exponent,
    )


def complete(columns: dict[str, pa.Array], row_count: int) -> pa.Table:
    """A table with every column of a recording except record_index; columns that are not given become null."""
    fields = [field for field in SCHEMA if field.name != "record_index"]
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(row_count, field.type)
        for field in fields
    ]
    return pa.table(arrays, schema=pa.schema([field.with_nullable(True) for field in fields]))


def restore_file_order(folder: Path) -> bool:
    """Make modification times ascend with the file numbers, in case a copy lost them; True if times were set."""
    parts = sorted(folder.glob("part-*.parquet"))
    times = [part.stat().st_mtime_ns for part in parts]
    if all(before < after for before, after in itertools.pairwise(times)):
        return False
    for number, part in enumerate(parts):
        _set_file_time(part, number)
    return True


def _set_file_time(path: Path, number: int) -> None:
    at_ns = FIRST_FILE_TIME_NS + number * FILE_TIME_STEP_NS
    os.utime(path, ns=(at_ns, at_ns))


def _rechunk(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of this size. Arrow's writer puts pages where chunks end, so each has one chunk."""
    waiting: pa.Table | None = None
    for table in tables:
        waiting = table if waiting is None else pa.concat_tables([waiting, table])
        while waiting.num_rows >= rows:
            yield waiting.slice(0, rows).combine_chunks()
            waiting = waiting.slice(rows)
    if waiting is not None and waiting.num_rows:
        yield waiting.combine_chunks()
