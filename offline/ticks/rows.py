"""What makes a table of the frames that a reader finds: the interface, and what both kinds of tables share.

Nothing here loops over messages in Python, except over those with groups or variable data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.spark_feed.spark.table.message_table import as_type, spark_type

RecordBatch: TypeAlias = Any  # pyarrow has no type annotations


class RefusedMessage(NamedTuple):
    """A message that makes no row. Attributes: number: of the message in its chunk, from the chunk's first number."""

    number: int
    reason: str
    frame: bytes


class Rows(Protocol):
    """Collects the messages of one type, and makes record batches of them."""

    def take(self, chunk: FrameChunk) -> Iterator[RecordBatch]:
        """Add a chunk's messages; yields each batch that is complete."""

    def rest(self) -> RecordBatch:
        """What is left at the end."""

    def take_refused(self) -> list[RefusedMessage]:
        """Samples of the newest chunk's messages that were refused."""

    def refused_counts(self) -> dict[str, int]:
        """How many messages were refused so far, by reason."""


def shown_batch(batch: RecordBatch, schema: Any) -> RecordBatch:
    """A batch with the columns and types of a schema for Spark."""
    columns = {name.replace(".", "_"): batch.column(place) for place, name in enumerate(batch.schema.names)}
    return pa.RecordBatch.from_arrays([as_type(columns[each.name], each.type) for each in schema], schema=schema)


def shown_schema(batch: RecordBatch, times: str) -> Any:
    """The Arrow schema that a batch has in Spark: a dot in a name, which SQL would have to quote, becomes `_`.

    Args:
        times: one of `message_table.TIMES`.
    """
    return pa.schema([(each.name.replace(".", "_"), spark_type(each.type, times)) for each in batch.schema])
