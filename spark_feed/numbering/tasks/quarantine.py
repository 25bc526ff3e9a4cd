"""The quarantine table: rows that make no message, with file, row and reason, as a folder of Parquet files.

A task writes a file for each file of the recording that has such rows, before it ends. A task that runs again writes
the same file again. Invariant: when a micro-batch is committed, its refused rows are in the table on the disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tandemfeed.runtime.durable import replace_file
from tandemfeed.spark_feed.numbering.rows.screening import Refused
from tandemfeed.spark_feed.sharing import make

SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # in the file, from 0
        pa.field("record_index", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("record", pa.string(), nullable=False),  # the row's values that are not null, as JSON
    ]
)


class Quarantine:
    """The refused rows of one input, until they are written.

    Args:
        file: the input's name, in the table.
        first_record_index: of its first row.
    """

    def __init__(self, file: str, first_record_index: int) -> None:
        self._file, self._first_record_index = file, first_record_index
        self._rows: list[dict[str, object]] = []

    @property
    def row_count(self) -> int:
        """The refused rows."""
        return len(self._rows)

    def add(self, rows: Any, first_row: int, refused: Iterable[Refused]) -> None:
        """Add refused rows.

        Args:
            rows: the rows that were screened.
            first_row: the place of the first one in the file.
        """
        refused = list(refused)
        values = rows.take(pa.array([each.place for each in refused], pa.int64())).to_pylist()
        for each, record in zip(refused, values, strict=True):
            row = first_row + each.place
            known = {name: value for name, value in record.items() if value is not None}
            self._rows.append(
                {
                    "file": self._file,
                    "row": row,
                    "record_index": self._first_record_index + row,
                    "reason": each.reason,
                    "record": json.dumps(known, default=str),
                }
            )

    def write(self, path: Path) -> None:
        """Write the table, if there are rows: whole or not at all, and on the disk on return.

        Raises:
            OSError, FlushFailed: commit nothing of the input.
        """
        if not self._rows:
            return
        table = pa.Table.from_pylist(self._rows, SCHEMA)
        replace_file(path, lambda file: pq.write_table(table, file), make(path.parent).file_mode)


def quarantined_count(folder: Path, end_record_index: int) -> int:
    """The rows in the table whose record is before an index."""
    count = 0
    for path in folder.glob("*.parquet"):
        records = pq.read_table(path, columns=["record_index"]).column("record_index").to_pylist()
        count += sum(record < end_record_index for record in records)
    return count
