"""A completed record of deliveries, and its evaluation. Pure except for `save` and `load`.

The counts of delivered, duplicated, out-of-order and missing messages are in source messages, because their identity
survives takeovers. A source message that yields no message counts as delivered.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.merge.effects import Takeover
from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.runtime.durable import remove_drafts, remove_file, replace_file

ROW_DTYPE = np.dtype(
    [
        ("received_monotonic_ns", "<i8"),
        ("received_at_ns", "<i8"),
        ("source_sent_at_ns", "<i8"),
        ("adapter_sent_at_ns", "<i8"),
        ("first_message_seq", "<u8"),
        ("message_count", "<u4"),
        ("epoch", "<u4"),
        ("adapter_id", "<u2"),
        ("is_fill", "?"),
        ("is_replayed", "?"),
    ]
)
SPAN_DTYPE = np.dtype(
    [("source_stream_id", "<u2"), ("first", "<u8"), ("end", "<u8"), ("has_messages", "?"), ("session", "<u4")]
)
Rows: TypeAlias = NDArray[np.void]
MS = 1_000_000
MISSING_RANGES_MAX = 16


@dataclass(frozen=True, slots=True)
class ChannelRecord:
    """One channel.

    Attributes:
        rows: shape (batches,), ROW_DTYPE, in delivery order.
        spans: shape (spans,), SPAN_DTYPE; for each source stream in delivery order, with consecutive spans joined.
            `has_messages` is false for source messages that yielded no message.
    """

    rows: Rows
    spans: Rows


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One source stream, in source messages.

    Attributes:
        delivered: distinct messages delivered.
        duplicated: repeated deliveries.
        out_of_order: messages first delivered after a later message.
        missing: messages expected but not delivered.
        missing_ranges: the first few gaps, as (first, last).
    """

    delivered: int
    duplicated: int
    out_of_order: int
    missing: int
    missing_ranges: tuple[tuple[int, int], ...]

    def plus(self, other: StreamFigures) -> StreamFigures:
        """The sums for two sessions."""
        return StreamFigures(
            self.delivered + other.delivered,
            self.duplicated + other.duplicated,
            self.out_of_order + other.out_of_order,
            self.missing + other.missing,
            (*self.missing_ranges, *other.missing_ranges)[:MISSING_RANGES_MAX],
        )


@dataclass(frozen=True, slots=True)
class TakeoverFigures:
    """One takeover.

    Attributes:
        stall_ms: the longest time between consecutive deliveries around the takeover.
        at_ns: when the new epoch was first received (monotonic clock).
    """

    channel_id: int
    epoch: int
    adapter_id: int
    at_ns: int
    stall_ms: float


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """The time from sending by the source to delivery, in microseconds, per message; includes replayed messages."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class DeliveryFigures:
    """The result. `delivered_messages` and `filled_messages` count application messages, the others source messages."""

    delivered: int
    duplicated: int
    out_of_order: int
    missing: int
    delivered_messages: int
    filled_messages: int
    streams: Mapping[int, StreamFigures]
    takeovers: tuple[TakeoverFigures, ...]
    latency_us: LatencyFigures | None
    longest_stall_ms: float

    def as_json(self) -> dict[str, Any]:
        """Plain values for a JSON report."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """The complete record. `events`: the in-band events as plain values, in order."""

    channels: Mapping[int, ChannelRecord]
    takeovers: tuple[Takeover, ...]
    events: tuple[dict[str, Any], ...]

    def figures(
        self,
        expected: Mapping[int, int] | None = None,
        *,
        window_ms: float = 1_000,
        expected_later: Sequence[Mapping[int, int]] = (),
    ) -> DeliveryFigures:
        """Evaluate the record.

        Args:
            expected: for each source stream, the number of source messages sent (numbered from 1); None: expect the
                range from the first to the last delivered message, for a subscription that began live.
            expected_later: the same for the later sessions in the record, in order.
            window_ms: the time before and after a takeover in which to look for a stall.
        """
        streams: dict[int, StreamFigures] = {}
        expectations = [] if expected is None else [expected, *expected_later]
        for place, spans in enumerate(self._spans_by_session(len(expectations))):
            wanted = expectations[place] if place < len(expectations) else None
            known = {int(stream) for stream in np.unique(spans["source_stream_id"])}
            for stream in sorted(known | set(wanted or ())):
                chosen = spans[spans["source_stream_id"] == stream]
                judged = stream_figures(chosen, None if wanted is None else wanted.get(stream, 0))
                streams[stream] = streams[stream].plus(judged) if stream in streams else judged
        rows = [channel.rows for channel in self.channels.values()]
        return DeliveryFigures(
            delivered=sum(figures.delivered for figures in streams.values()),
            duplicated=sum(figures.duplicated for figures in streams.values()),
            out_of_order=sum(figures.out_of_order for figures in streams.values()),
            missing=sum(figures.missing for figures in streams.values()),
            delivered_messages=sum(int(part["message_count"].sum()) for part in rows),
            filled_messages=sum(int(part["message_count"][part["is_fill"]].sum()) for part in rows),
            streams=streams,
            takeovers=tuple(self._takeover_figures(takeover, window_ms) for takeover in self.takeovers),
            latency_us=latency_figures(np.concatenate(rows)) if rows else None,
            longest_stall_ms=max((_longest_pause_ms(part["received_monotonic_ns"]) for part in rows), default=0.0),
        )

    def inter_arrival(self, takeover: Takeover, window_ms: float = 1_000) -> tuple[NDArray[Any], NDArray[Any]]:
        """For a plot of the deliveries in the window: (ms since the takeover, ms since the previous delivery)."""
        times = self._times_around(takeover, window_ms)
        if len(times) < 2:
            return np.empty(0), np.empty(0)
        return (times[1:] - takeover.at_ns) / MS, np.diff(times) / MS

    def _spans_by_session(self, count_min: int) -> list[Rows]:
        """The spans of all channels by session, the oldest first; empty for expected sessions that did not occur."""
        spans = [channel.spans for channel in self.channels.values()]
        everything = np.concatenate(spans) if spans else np.empty(0, SPAN_DTYPE)
        found = [everything[everything["session"] == session] for session in np.unique(everything["session"])]
        return found + [np.empty(0, SPAN_DTYPE)] * (count_min - len(found))

    def save(self, path: Path) -> None:
        """Write the arrays to `path` (.npz), and the events to a file of the same name with .json, both for this user
        only. On return, they are on the disk. Until then there is no .json file, so parts of two records are never
        read as one.

        Raises:
            OSError: there is no record, or it may be gone after a power failure.
        """
        arrays: dict[str, NDArray[Any]] = {}
        for channel_id, channel in self.channels.items():
            arrays[f"rows_{channel_id}"] = channel.rows
            arrays[f"spans_{channel_id}"] = channel.spans
        text = {"takeovers": [asdict(takeover) for takeover in self.takeovers], "events": list(self.events)}
        data_file, events_file = path.with_suffix(".npz"), path.with_suffix(".json")
        for each in (data_file, events_file):
            remove_drafts(each.parent, each.name)
        remove_file(events_file)
        replace_file(data_file, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]  # its stub
        replace_file(events_file, json.dumps(text, indent=1).encode())

    @classmethod
    def load(cls, path: Path) -> DeliveryRecord:
        """Read a record that `save` wrote.

        Raises:
            FileNotFoundError: there is none, or it was not finished.
        """
        text = json.loads(path.with_suffix(".json").read_text())
        with np.load(path.with_suffix(".npz")) as arrays:
            channels = {
                int(name.removeprefix("rows_")): ChannelRecord(arrays[name], arrays[name.replace("rows_", "spans_")])
                for name in arrays.files
                if name.startswith("rows_")
            }
        return cls(channels, tuple(Takeover(**each) for each in text["takeovers"]), tuple(text["events"]))

    def _takeover_figures(self, takeover: Takeover, window_ms: float) -> TakeoverFigures:
        stall_ms = _longest_pause_ms(self._times_around(takeover, window_ms))
        return TakeoverFigures(takeover.channel_id, takeover.epoch, takeover.adapter_id, takeover.at_ns, stall_ms)

    def _times_around(self, takeover: Takeover, window_ms: float) -> NDArray[np.int64]:
        """Delivery times in the window, with the last one before it and the first one after it."""
        channel = self.channels.get(takeover.channel_id)
        if channel is None:
            return np.empty(0, np.int64)
        times: NDArray[np.int64] = channel.rows["received_monotonic_ns"]
        window_ns = int(window_ms * MS)
        start = int(np.searchsorted(times, takeover.at_ns - window_ns)) - 1
        end = int(np.searchsorted(times, takeover.at_ns + window_ns, "right")) + 1
        return times[max(start, 0) : end]


def latency_figures(rows: Rows) -> LatencyFigures | None:
    """Percentiles over messages; None if no row has the source's sending time."""
    rows = rows[rows["source_sent_at_ns"] > 0]
    if not rows["message_count"].sum():
        return None
    latency_us = (rows["received_at_ns"] - rows["source_sent_at_ns"]) / 1_000
    order = np.argsort(latency_us)
    cumulative = np.cumsum(rows["message_count"][order].astype(np.int64))

    def percentile(share: float) -> float:
        return float(latency_us[order[np.searchsorted(cumulative, share * cumulative[-1])]])

    return LatencyFigures(percentile(0.5), percentile(0.99), float(latency_us.max()))


def stream_figures(spans: Rows, expected_count: int | None) -> StreamFigures:
    """Evaluate the spans of one source stream, in delivery order."""
    covered = RangeSet()
    duplicated = out_of_order = 0
    for first, end, has_messages in zip(
        spans["first"].tolist(), spans["end"].tolist(), spans["has_messages"].tolist(), strict=True
    ):
        if has_messages and covered:
            known = covered.within(first, end).count
            duplicated += known
            out_of_order += max(0, min(end, covered.end) - first) - known
        covered.add(first, end)
    first_expected = covered.first if covered and expected_count is None else 1
    end_expected = (covered.end if covered else 1) if expected_count is None else expected_count + 1
    missing = covered.missing(first_expected, end_expected)
    ranges = tuple((first, end - 1) for first, end in itertools.islice(missing, MISSING_RANGES_MAX))
    return StreamFigures(covered.count, duplicated, out_of_order, missing.count, ranges)


def _longest_pause_ms(times: NDArray[np.int64]) -> float:
    return float(np.diff(times).max()) / MS if len(times) > 1 else 0.0
