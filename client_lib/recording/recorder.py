"""Records what a subscription delivers, compactly, for comparison with what the source sent.

It costs a few microseconds per batch: one row, and spans of source messages, which are joined while they are
consecutive. It must never change the items. `client_lib.recording.record` contains the completed record and its
evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tandemfeed.client_lib.items import Batch, Filled, Item
from tandemfeed.client_lib.recording.record import ROW_DTYPE, SPAN_DTYPE, ChannelRecord, DeliveryRecord
from tandemfeed.feedcore.merge.effects import Takeover

ROWS_PER_CHUNK = 512  # converting this many rows to an array takes 0.2 ms; longer would delay the recorded deliveries


class _ChannelRecording:
    """The rows and spans of one channel while they are recorded."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.chunks: list[np.ndarray[tuple[int], np.dtype[np.void]]] = []
        self.closed_spans: list[tuple[int, int, int, int, int]] = []
        self.open_spans: dict[int, list[int]] = {}  # by stream: first, end, has messages, session

    def add_span(self, stream: int, first: int, end: int, is_delivered: bool, session: int) -> None:
        """Add a span; join it to the stream's last one if it continues that, so is neither late nor repeated."""
        span = self.open_spans.get(stream)
        if span is not None and span[1] == first and span[3] == session:
            span[1] = end
            span[2] |= is_delivered
            return
        if span is not None:
            self.closed_spans.append((stream, span[0], span[1], span[2], span[3]))
        self.open_spans[stream] = [first, end, is_delivered, session]

    def finish(self) -> ChannelRecord:
        """The recording so far, as arrays; recording may continue."""
        rows = np.array(self.rows, dtype=ROW_DTYPE)
        spans = self.closed_spans + [(stream, *span) for stream, span in self.open_spans.items()]
        return ChannelRecord(np.concatenate([*self.chunks, rows]), np.array(spans, dtype=SPAN_DTYPE))


class DeliveryRecorder:
    """Records a subscription's items.

    Args:
        on_batch: called with each delivered batch, including those of `Filled`, to check its content.
    """

    def __init__(self, on_batch: Callable[[Batch], None] | None = None) -> None:
        self._on_batch = on_batch
        self._recordings: dict[int, _ChannelRecording] = {}
        self._events: list[dict[str, object]] = []
        self._takeovers: list[Takeover] = []
        self.message_count = 0

    def record(self, items: Iterable[Item]) -> None:
        """Record the items of one poll."""
        for item in items:
            if isinstance(item, Batch):
                self._record_batch(item, is_fill=False)
            elif isinstance(item, Filled):
                self._record_batch(item.batch, is_fill=True)
            else:
                if isinstance(item, Takeover):
                    self._takeovers.append(item)
                self._events.append({"event": type(item).__name__, **asdict(item)})

    def finish(self) -> DeliveryRecord:
        """The record so far."""
        channels = {channel_id: recording.finish() for channel_id, recording in self._recordings.items()}
        return DeliveryRecord(channels, tuple(self._takeovers), tuple(self._events))

    def save(self, path: Path) -> None:
        """Write the record to `path` (.npz), and its events to a .json file next to it."""
        self.finish().save(path)

    def _record_batch(self, batch: Batch, *, is_fill: bool) -> None:
        packet = batch.packet
        recording = self._recordings.get(packet.channel_id)
        if recording is None:
            recording = self._recordings[packet.channel_id] = _ChannelRecording()
        count = batch.message_count
        self.message_count += count
        recording.rows.append(
            (
                batch.received_monotonic_ns,
                batch.received_at_ns,
                packet.source_sent_at_ns,
                packet.sent_at_ns,
                batch.first_message_seq,
                count,
                packet.epoch,
                packet.adapter_id,
                is_fill,
                batch.is_replayed,
            )
        )
        if len(recording.rows) >= ROWS_PER_CHUNK:
            recording.chunks.append(np.array(recording.rows, dtype=ROW_DTYPE))
            recording.rows.clear()
        for span in batch.sources():
            if not span.is_source_gap:
                stream, first, end = span.source_stream_id, span.first_source_seq, span.end_source_seq
                recording.add_span(stream, first, end, span.message_count > 0, packet.session)
        if self._on_batch is not None:
            self._on_batch(batch)
