"""Reads a slice of an output journal into Arrow batches, in an executor's task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tandemfeed.feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    HEARTBEAT_BIT,
    OUTPUT_HEADER_SIZE,
    OUTPUT_MAGIC,
    PROVISIONAL_BIT,
)
from tandemfeed.journal import Batch, NoSuchRecord, Tailer
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.journals.journal_scan import HEADERS, JournalSlice
from tandemfeed.spark_feed.spark.table.conditions import Condition, bounds_of
from tandemfeed.spark_feed.spark.table.message_table import NUMBERS, MessageTable
from tandemfeed.spark_feed.spark.table.packet_batch import ChosenPackets, PacketBatch

READ_COUNT = 4_096  # packets: some 65,000 messages, whose columns fit in the processor's cache


def read_slice(
    journal: Path, part: JournalSlice, table: MessageTable, schema: Any, conditions: Sequence[Condition]
) -> Iterator[Any]:
    """The messages of a slice that meet the conditions, as record batches of a Spark schema.

    Raises:
        TableError: retention has released the records meanwhile, or a packet is malformed.
    """
    bounds = bounds_of(conditions, "message_seq")
    cheap_first = sorted(conditions, key=lambda each: each.column not in NUMBERS)  # before frames are copied
    with Tailer(journal) as tailer:
        try:
            tailer.to_index(part.first_index)
        except NoSuchRecord as gone:
            raise TableError(f"{gone}: retention has released it since the query began; run the query again") from None
        while (batch := tailer.read_batch(READ_COUNT, mixed=True)) is not None and batch.first_index < part.end_index:
            batch = batch.until(part.end_index)
            found = PacketBatch(batch, _chosen_packets(batch, part, bounds), table, *bounds)
            for each in cheap_first:
                found.keep(each.holds(found.values(each.column)))
            if found.message_count:
                yield found.record_batch(schema)


def _chosen_packets(batch: Batch, part: JournalSlice, bounds: tuple[int, int]) -> ChosenPackets:
    """The slice's packets in a batch of records."""
    headers = batch.heads(OUTPUT_HEADER_SIZE).view(HEADERS).reshape(-1)
    low_seq, end_seq = bounds
    is_chosen = headers["magic"] == OUTPUT_MAGIC
    is_chosen &= headers["flags"] & (HEARTBEAT_BIT | ANNOUNCEMENT_BIT) == 0
    is_chosen &= (headers["channel_id"] == part.channel_id) & (headers["session"] == part.session)
    is_chosen &= headers["message_count"] > 0
    is_chosen &= headers["first_message_seq"] < end_seq
    is_chosen &= headers["first_message_seq"] + headers["message_count"] > low_seq
    epochs = headers["epoch"].astype(np.int64)
    for place in np.flatnonzero(is_chosen & (headers["flags"] & PROVISIONAL_BIT != 0)).tolist():
        first_input_seq = int(headers["first_input_seq"][place])
        epochs[place] = part.committed_epoch(batch.first_index + place, first_input_seq)
        is_chosen[place] = epochs[place] > 0
    places = np.flatnonzero(is_chosen)
    constants = {"channel_id": part.channel_id, "session": part.session}
    limits = part.limits(batch.first_index + places)
    return ChosenPackets(places, headers[places], limits, epochs[places], constants)
