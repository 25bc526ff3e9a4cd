"""`spark.read.format("tandemfeed.journal")`: an adapter's output journal as a table of the messages of one type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from tandemfeed.spark_feed.spark.journals.journal_reading import read_slice
from tandemfeed.spark_feed.spark.journals.journal_scan import JournalSlice, plan_slices
from tandemfeed.spark_feed.spark.options import chosen, require_known, required
from tandemfeed.spark_feed.spark.table.columns import check_columns, chosen_columns
from tandemfeed.spark_feed.spark.table.conditions import Condition, take_filters
from tandemfeed.spark_feed.spark.table.message_table import TIMES, MessageTable, message_table

DAMAGED = ("fail", "skip")  # the option `damaged`
OPTIONS = ("model", "message", "columns", "times", "damaged")


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
        table, damaged = self._table(), chosen(self.options, "damaged", DAMAGED)
        check_columns(schema, table.schema)
        return JournalReader(Path(required(self.options, "path")), table, schema, may_skip_damage=damaged == "skip")

    def _table(self) -> MessageTable:
        require_known(self.options, OPTIONS)
        model = Path(required(self.options, "model"))
        times = chosen(self.options, "times", TIMES)
        return message_table(model.read_bytes(), str(model), self.options.get("message", ""), times)


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
