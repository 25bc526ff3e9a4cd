"""What makes a table of the frames that a reader finds: the interface, and what both kinds of tables share.

Nothing here loops over messages in Python, except over those with groups or variable data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.spark_feed.spark.table.message_table import as_type, spark_type

VENUE_STREAM, VENUE_SEQ = "venue_stream", "venue_seq"
VENUE_FIELDS = (pa.field(VENUE_STREAM, pa.string(), nullable=False), pa.field(VENUE_SEQ, pa.int64(), nullable=False))

RecordBatch: TypeAlias = Any  # pyarrow has no type annotations
OnRows: TypeAlias = Callable[[NDArray[np.int64]], None]  # called with the places of messages in the chunk


class RefusedMessage(NamedTuple):
    """A message that makes no row. Attributes: number: of the message in its chunk, from the chunk's first number."""

    number: int
    reason: str
    frame: bytes


class Rows(Protocol):
    """Collects the messages of one type, and makes record batches of them."""

    def take(self, chunk: FrameChunk, on_rows: OnRows | None) -> Iterator[RecordBatch]:
        """Add a chunk's messages; yields each batch that is complete.

        Args:
            on_rows: called for rows that were added, before the batch that they complete; None: they are not reported.
        """

    def rest(self) -> RecordBatch:
        """What is left at the end."""

    def take_refused(self) -> list[RefusedMessage]:
        """Samples of the newest chunk's messages that were refused."""

    def refused_counts(self) -> dict[str, int]:
        """How many messages were refused so far, by reason."""


def shown_batch(batch: RecordBatch, schema: Any, venue: dict[str, Any]) -> RecordBatch:
    """A batch with the columns and types of a schema for Spark.

    Args:
        venue: other columns of the rows, by name.
    """
    columns = {shown(name): batch.column(place) for place, name in enumerate(batch.schema.names)} | venue
    return pa.RecordBatch.from_arrays([as_type(columns[each.name], each.type) for each in schema], schema=schema)


def shown_schema(batch: RecordBatch, times: str) -> Any:
    """The Arrow schema that a batch has in Spark.

    Args:
        times: one of `message_table.TIMES`.
    """
    return pa.schema([(shown(each.name), spark_type(each.type, times)) for each in batch.schema])


def shown(name: str) -> str:
    """A field's column name: without dots, which SQL would have to quote, and different from the venue's columns."""
    plain = name.replace(".", "_")
    return f"{plain}_" if plain in (VENUE_STREAM, VENUE_SEQ) else plain
