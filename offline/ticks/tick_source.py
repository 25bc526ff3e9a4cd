"""`format("tandemfeed.ticks")`: captures and files of a source format; with `spark.readStream`, of a growing folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from tandemfeed.offline.ticks.recordings import FILES, FOLDERS, UNITS, Recording, files_in, recordings
from tandemfeed.offline.ticks.tick_quarantine import TickQuarantine
from tandemfeed.offline.ticks.tick_table import TickTable, tick_table
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.options import chosen, count, require_known, required
from tandemfeed.spark_feed.spark.table.columns import check_columns, chosen_columns

FILES_PER_BATCH = 1_000
SKIP, FAIL = "skip", "fail"  # the option `damaged`
TAKEN = "taken"  # the key of an offset
OPTIONS = (
    *("format", "message", "table", "model", "reader", "recording", "pathGlobFilter", "session", "lines", "symbol"),
    *("timeUnit", "damaged", "quarantine", "columns", "times", "maxFilesPerTrigger"),
)
Offset = Mapping[str, Any]


class TickSource(DataSource):
    """Its options name the documents, the message and the reader (docs/spark.md)."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "tandemfeed.ticks"

    def schema(self) -> Any:
        """The columns that the options choose."""
        require_known(self.options, OPTIONS)
        return chosen_columns(_schema(tick_table(self.options)), self.options.get("columns", ""))

    def reader(self, schema: Any) -> DataSourceReader:
        """A reader of these columns."""
        return TickReader(self.options, schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """A reader of these columns from the files that come."""
        return TickStreamReader(self.options, schema)


class _Reading:
    """What a task does; it goes to the executors."""

    def __init__(self, options: Any, schema: Any) -> None:
        self._table: TickTable = tick_table(options)
        check_columns(schema, _schema(self._table))
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._quarantine = Path(options["quarantine"]).absolute() if options.get("quarantine") else None
        self._fails = chosen(options, "damaged", (SKIP, FAIL)) == FAIL

    def read(self, recording: Recording, *, is_stream: bool) -> Iterator[Any]:
        """The messages of a recording.

        Args:
            is_stream: a recording that cannot be read at all is damaged, but the query continues.
        """
        found = TickQuarantine(recording=recording.name)
        try:
            yield from self._table.batches(recording, self._schema, found)
        except TableError as unreadable:
            if not is_stream or self._fails:
                raise
            found.damage.append(str(unreadable))
        found.finish()
        found.write(self._quarantine)
        if self._fails and found.rows:
            raise TableError(
                f"{recording.name}: some of it makes no row: {dict(found.counts)}; see option 'quarantine'"
            )


class TickReader(DataSourceReader):
    """Lists the files in the driver, reads them in the executors."""

    def __init__(self, options: Any, schema: Any) -> None:
        path = Path(required(options, "path"))
        files = files_in(path, options.get("pathGlobFilter", "*"))
        self._recordings = recordings(files, chosen(options, "recording", UNITS, FOLDERS))
        self._reading = _Reading(options, schema)

    def partitions(self) -> list[Recording]:
        """A task for each recording."""
        return self._recordings

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The messages of a recording."""
        if isinstance(partition, Recording):  # Spark makes another partition of an empty list
            yield from self._reading.read(partition, is_stream=False)


class TickStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes each file once; an offset is the set of the files that were taken.

    A file is a recording: a micro-batch cannot continue what another task has read.
    """

    def __init__(self, options: Any, schema: Any) -> None:
        chosen(options, "recording", (FILES,))
        self._path, self._pattern = Path(required(options, "path")), options.get("pathGlobFilter", "*")
        self._files_max = count(options, "maxFilesPerTrigger", FILES_PER_BATCH)
        self._target: set[str] | None = None
        self._reading = _Reading(options, schema)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """The query ends with the files that are there now."""
        self._target = set(self._files())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxFilesPerTrigger`."""
        return ReadMaxFiles(self._files_max)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """No file was taken."""
        return {TAKEN: []}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The files that the next micro-batch completes; the oldest come first."""
        taken = set(start[TAKEN])
        new = [name for name in self._files() if name not in taken and (self._target is None or name in self._target)]
        new.sort(key=lambda name: ((self._path / name).stat().st_mtime_ns, name))
        files_max = limit.max_files if isinstance(limit, ReadMaxFiles) else len(new)
        return {TAKEN: sorted(taken | set(new[:files_max]))}

    def partitions(self, start: Offset, end: Offset) -> list[Recording]:
        """A task for each file."""
        files = [self._path / name for name in sorted(set(end[TAKEN]) - set(start[TAKEN]))]
        return recordings(files, FILES)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The messages of a file."""
        assert isinstance(partition, Recording)
        yield from self._reading.read(partition, is_stream=True)

    def _files(self) -> list[str]:
        return [str(each.relative_to(self._path)) for each in files_in(self._path, self._pattern)]


def _schema(table: TickTable) -> Any:
    return from_arrow_schema(table.arrow_schema())
