"""`format("tandemfeed")`; with `spark.readStream`: a live, authenticated subscription as a stream of rows.

The driver's reader subscribes, and gives each task the packets between two positions, which it decodes. So executors
need no credentials, no keys and no multicast. After a restart the reader requests the same range from the adapters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tandemfeed.client_lib.items import Batch
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_HEADER_SIZE,
    PROVISIONAL_BIT,
    OutputPacket,
    encode_output_packet,
    encode_runs,
    message_frames,
)
from tandemfeed.journal import Batch as Records
from tandemfeed.spark_feed.spark.journals.journal_scan import HEADERS
from tandemfeed.spark_feed.spark.live.live_feed import LiveFeed, connected, granted
from tandemfeed.spark_feed.spark.live.positions import Position, are_between
from tandemfeed.spark_feed.spark.options import chosen, count, require_known
from tandemfeed.spark_feed.spark.sink.feed_sink import feed_writer
from tandemfeed.spark_feed.spark.table.columns import check_columns, chosen_columns
from tandemfeed.spark_feed.spark.table.message_table import TIMES, MessageTable, message_table
from tandemfeed.spark_feed.spark.table.packet_batch import NO_LIMIT, ChosenPackets, PacketBatch

ROWS_MAX = 500_000  # of a micro-batch; some 50 MB that pass through the driver
OPTIONS = (
    *("admin", "ca", "identity", "secretFile", "certificateFile", "keyFile", "tokenFile"),
    *("feed", "topics", "interface", "datagrams", "transport", "verify", "message", "columns", "times", "model"),
    *("startingOffsets", "maxRowsPerTrigger", "failOnDataLoss"),
)
Offset = Mapping[str, Any]


class LiveSource(DataSource):
    """Its options are those of a connection and a subscription, and of a table (docs/spark.md)."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "tandemfeed"

    def schema(self) -> Any:
        """The columns that the options choose. Logs in for the message model, unless option `model` names its file."""
        require_known(self.options, OPTIONS)
        model = self.options.get("model", "")
        if model:
            table = _table(self.options, Path(model).read_bytes())
        else:
            with connected(self.options) as client:
                table = _table(self.options, granted(client, self.options).message_model)
        return chosen_columns(table.schema, self.options.get("columns", ""))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """A reader of these columns."""
        return LiveReader(dict(self.options), schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A writer of these columns into a source journal."""
        return feed_writer(self.options, schema)


@dataclass(slots=True)
class PacketsPart(InputPartition):
    """The packets of a channel that have messages between two positions, for one task.

    Attributes:
        sizes, received_at_ns: of each packet in `data`.
    """

    channel_id: int
    start: Position
    end: Position
    session: int
    table: MessageTable
    data: bytes
    sizes: list[int]
    received_at_ns: list[int]


class LiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Subscribes when Spark first asks for an offset; goes to the executors without a subscription.

    Args:
        options: with names in lower case.
    """

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        self._options, self._schema = _Options(options), schema
        self._rows_max = count(self._options, "maxRowsPerTrigger", ROWS_MAX)
        self._feed: LiveFeed | None = None
        self._table: MessageTable | None = None
        self._target: dict[int, Position] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query ends where the stream is now."""
        self._target = LiveFeed.newest_positions(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxRowsPerTrigger`."""
        return ReadMaxRows(self._rows_max)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins."""
        return _as_offset(self._subscribed(None).begin)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends; `start` if there is nothing new."""
        positions = _positions(start)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else NO_LIMIT
        return _as_offset(self._subscribed(positions).next_positions(positions, rows_max, self._target))

    def partitions(self, start: Offset, end: Offset) -> list[PacketsPart]:
        """The packets of each channel and session."""
        first, last = _positions(start), _positions(end)
        feed = self._subscribed(first)
        feed.wait_until_reached(last)
        parts: list[PacketsPart] = []
        for channel_id, position in last.items():
            begin = first.get(channel_id, feed.begin[channel_id])
            batches = [entry.batch for entry in feed.channels[channel_id].entries() if entry.batch is not None]
            for session in sorted({batch.packet.session for batch in batches}):
                packets = [
                    (packet, batch.received_at_ns)
                    for batch in batches
                    if batch.packet.session == session and _may_overlap(batch, begin, position)
                    for packet in _packets_of(batch)
                ]
                if packets:
                    parts.append(self._part(channel_id, begin, position, session, packets))
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The messages of a part."""
        assert isinstance(partition, PacketsPart)
        return _read_part(partition, self._schema)

    def commit(self, end: Offset) -> None:
        """Drop what no query needs any more."""
        if self._feed is not None:
            self._feed.forget(_positions(end))

    def stop(self) -> None:
        """End the subscription."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _subscribed(self, positions: Mapping[int, Position] | None) -> LiveFeed:
        if self._feed is None:
            self._feed = LiveFeed(self._options, positions)
            self._table = _table(self._options, self._feed.message_model)
            check_columns(self._schema, self._table.schema)
        return self._feed

    def _part(
        self, channel_id: int, start: Position, end: Position, session: int, packets: list[tuple[OutputPacket, int]]
    ) -> PacketsPart:
        assert self._table is not None
        records = [encode_output_packet(packet) for packet, _ in packets]
        sizes, times = [len(record) for record in records], [at_ns for _, at_ns in packets]
        return PacketsPart(channel_id, start, end, session, self._table, b"".join(records), sizes, times)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_feed": None, "_table": None}


class _Options(dict[str, str]):
    """Options whose names ignore case, as Spark's own do, and that can go to executors."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


def _table(options: Any, model_xml: bytes) -> MessageTable:
    times = chosen(options, "times", TIMES)
    return message_table(model_xml, "the feed's message model", options.get("message", ""), times)


def _as_offset(positions: Mapping[int, Position]) -> dict[str, Any]:
    return {str(channel_id): position.as_json() for channel_id, position in sorted(positions.items())}


def _positions(offset: Offset) -> dict[int, Position]:
    return {int(channel_id): Position.from_json(value) for channel_id, value in offset.items()}


def _may_overlap(batch: Batch, start: Position, end: Position) -> bool:
    session = batch.packet.session
    spans = batch.sources()
    streams = np.array([span.source_stream_id for span in spans for _ in range(2)], np.int64)
    bounds = [seq for span in spans for seq in (span.first_source_seq, span.end_source_seq - 1)]
    return bool(are_between(start, end, session, streams, np.array(bounds, np.int64)).any())


def _packets_of(batch: Batch) -> Iterator[OutputPacket]:
    """The batch's messages as packets; one for each message if only some symbols are granted."""
    packet = batch.packet._replace(flags=batch.packet.flags & ~PROVISIONAL_BIT)
    if batch.message_count == packet.message_count:
        if packet.message_count:
            yield packet
        return
    frames = message_frames(packet._replace(message_count=batch.message_count))
    for seq, (offset, size) in zip(batch.message_seqs.tolist(), frames, strict=True):
        run = next(run for run in packet.runs if seq < run.end_message_seq)
        alone = (run._replace(first_message_seq=seq, message_count=1),)
        payload = encode_runs(alone) + packet.payload[offset : offset + size]
        yield packet._replace(first_message_seq=seq, message_count=1, runs=alone, payload=payload)


def _read_part(part: PacketsPart, schema: Any) -> Iterator[Any]:
    data, sizes = np.frombuffer(part.data, np.uint8), np.array(part.sizes, np.int64)
    records = Records(0, data, np.cumsum(sizes) - sizes, sizes, np.array(part.received_at_ns, np.int64))
    headers = records.heads(OUTPUT_HEADER_SIZE).view(HEADERS).reshape(-1)
    places, limits = np.arange(len(sizes)), np.full(len(sizes), NO_LIMIT)
    constants = {"channel_id": part.channel_id, "session": part.session}
    chosen_packets = ChosenPackets(places, headers, limits, headers["epoch"].astype(np.int64), constants)
    found = PacketBatch(records, chosen_packets, part.table)
    streams, seqs = found.number("source_stream_id"), found.number("source_seq")
    found.keep(are_between(part.start, part.end, part.session, streams, seqs))
    if found.message_count:
        yield found.record_batch(schema)
