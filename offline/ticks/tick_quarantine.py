"""What a recording contains that makes no row: counted, and written to a table if the query names a folder for it.

Invariant: whatever is wrong with messages or datagrams ends no query; only a recording that cannot be read at all does.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tandemfeed.adapter.convert_command.input.inputs import Findings
from tandemfeed.offline.ticks.rows import RefusedMessage
from tandemfeed.runtime.durable import replace_file
from tandemfeed.spark_feed.sharing import make

LOG = logging.getLogger(__name__)
ROWS_MAX = 100_000  # with a place of their own; more are only counted
SCHEMA = pa.schema(
    [
        pa.field("recording", pa.string(), nullable=False),
        pa.field("place", pa.string(), nullable=False),  # empty: places that are not listed
        pa.field("reason", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("record", pa.string(), nullable=False),  # hexadecimal digits
    ]
)


@dataclass(slots=True)
class TickQuarantine(Findings):
    """What a reader and the rows refuse of one recording.

    Attributes:
        recording: its name.
        rows: of the table; what is missing, conflicting, cut or damaged is added at the end.
        listed: how often each reason is in `rows`.
        message_counts: how many messages were refused, by reason.
    """

    recording: str = ""
    rows: list[dict[str, object]] = field(default_factory=list)
    listed: Counter[str] = field(default_factory=Counter)
    message_counts: dict[str, int] = field(default_factory=dict)

    def refuse(self, place: str, reason: str) -> None:
        """Count a datagram that does not follow the format."""
        self.refused[reason] += 1
        self._list(place, reason, "")

    def add_messages(self, refused: Iterable[RefusedMessage]) -> None:
        """List refused messages of the newest chunk."""
        for each in refused:
            self._list(f"message {self.origin(each.number)}", each.reason, each.frame.hex())

    def finish(self) -> None:
        """The recording was read: list what has no place of its own, what is missing and what is damaged."""
        for reason, count in {**self.refused, **self.message_counts}.items():
            if rest := count - self.listed[reason]:
                self.rows.append(self._row("", reason, rest, ""))
        for stream, first, end in self.missing:
            self.rows.append(self._row(f"stream {stream}: {first} to {end - 1}", "missing", end - first, ""))
        for stream, first, end in self.conflicts:
            self.rows.append(self._row(f"stream {stream}: {first} to {end - 1}", "conflicting", end - first, ""))
        for reason, count in (("cut", self.cut_count), ("not compared", self.forgotten_count)):
            if count:
                self.rows.append(self._row("", reason, count, ""))
        for text in self.damage:
            self.rows.append(self._row(text, "damaged", 1, ""))

    @property
    def counts(self) -> Counter[str]:
        """How often each reason is in the table."""
        counts = Counter[str]()
        for row in self.rows:
            counts[str(row["reason"])] += int(str(row["count"]))
        return counts

    def write(self, folder: Path | None) -> None:
        """Write the table, if there are rows: whole or not at all, and on the disk on return. A task that runs again
        writes the same file.

        Raises:
            OSError, FlushFailed
        """
        if not self.rows:
            return
        LOG.warning("%s: some of it makes no row: %s", self.recording, dict(self.counts))
        if folder is None:
            return
        mode = make(folder).file_mode
        name = f"{hashlib.sha256(self.recording.encode()).hexdigest()[:16]}.parquet"
        table = pa.Table.from_pylist(self.rows, SCHEMA)
        replace_file(folder / name, lambda file: pq.write_table(table, file), mode)

    def _list(self, place: str, reason: str, record: str) -> None:
        if len(self.rows) < ROWS_MAX:
            self.rows.append(self._row(place, reason, 1, record))
            self.listed[reason] += 1

    def _row(self, place: str, reason: str, count: int, record: str) -> dict[str, object]:
        return {"recording": self.recording, "place": place, "reason": reason, "count": count, "record": record}
