"""`spark.read.format("tandemfeed.journal")`: an adapter's output journal as a table of the messages of one type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from tandemfeed.spark_feed.spark.conditions import Condition, take_filters
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.journal_reading import read_slice
from tandemfeed.spark_feed.spark.journal_scan import JournalSlice, plan_slices
from tandemfeed.spark_feed.spark.message_table import TIMESTAMPS, MessageTable, message_table

DAMAGED = ("fail", "skip")  # the option `damaged`


class JournalSource(DataSource):
    """Its options are the path to load, and `model`, `message`, `columns`, `times` and `damaged` (docs/spark.md)."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "tandemfeed.journal"

    def schema(self) -> Any:
        """The columns that the options choose."""
        return chosen_columns(self._table().schema, self.options.get("columns", ""))

    def reader(self, schema: Any) -> DataSourceReader:
        """A reader of these columns."""
        table, damaged = self._table(), self.options.get("damaged", DAMAGED[0])
        if damaged not in DAMAGED:
            raise TableError(f"option 'damaged' is {damaged!r}; it must be one of {', '.join(DAMAGED)}")
        check_columns(schema, table.schema)
        return JournalReader(Path(required(self.options, "path")), table, schema, may_skip_damage=damaged == "skip")

    def _table(self) -> MessageTable:
        model = Path(required(self.options, "model"))
        message, times = self.options.get("message", ""), self.options.get("times", TIMESTAMPS)
        return message_table(model.read_bytes(), str(model), message, times)


class JournalReader(DataSourceReader):
    """Plans in the driver, reads in the executors."""

    def __init__(self, journal: Path, table: MessageTable, schema: Any, *, may_skip_damage: bool) -> None:
        self._journal, self._table, self._schema = journal, table, schema
        self._may_skip_damage = may_skip_damage
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take the filters that numpy can evaluate; the others stay with Spark."""
        self._conditions, left = take_filters(filters, self._table.value_kinds)
        return left

    def partitions(self) -> list[JournalSlice]:
        """The slices that may have messages for the filters."""
        found = plan_slices(self._journal, may_skip_damage=self._may_skip_damage)
        return [each for each in found if self._may_match(each)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The messages of a slice."""
        if not isinstance(partition, JournalSlice):
            return iter(())  # what Spark makes of no slices
        return read_slice(self._journal, partition, self._table, self._schema, self._conditions)

    def _may_match(self, part: JournalSlice) -> bool:
        ranges = {
            "session": (part.session, part.session),
            "channel_id": (part.channel_id, part.channel_id),
            "message_seq": (part.low_seq, part.high_seq),
            "received_at": (part.low_time_ns, part.high_time_ns),
        }
        return all(each.may_hold(*ranges[each.column]) for each in self._conditions if each.column in ranges)


def required(options: Any, name: str) -> str:
    """An option that must be given.

    Raises:
        TableError: it is missing.
    """
    value: str = options.get(name, "")
    if not value:
        what = "the path to load" if name == "path" else f"option {name!r}"
        raise TableError(f"{what} is missing")
    return value


def chosen_columns(schema: Any, names: str) -> Any:
    """The columns that the option `columns` lists, separated by commas; empty: all.

    Raises:
        TableError: there is no such column.
    """
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        return schema
    for name in chosen:
        if name not in schema.fieldNames():
            raise TableError(f"option 'columns': no column {name!r}; the columns are {', '.join(schema.fieldNames())}")
    return type(schema)([schema[name] for name in chosen])


def check_columns(wanted: Any, schema: Any) -> None:
    """Check the columns of a user's schema.

    Raises:
        TableError: a column does not exist or has another type.
    """
    for field in wanted:
        if field.name not in schema.fieldNames():
            raise TableError(f"schema: no column {field.name!r}; the columns are {', '.join(schema.fieldNames())}")
        found = schema[field.name].dataType
        if field.dataType != found:
            raise TableError(
                f"schema: column {field.name} is {found.simpleString()}, not {field.dataType.simpleString()}"
            )
