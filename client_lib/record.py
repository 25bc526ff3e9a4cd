"""A finished record of what was delivered, and the figures that judge it. Pure but for `save` and `load`.

The unit is the source message, since its identity survives a takeover: delivered, duplicated, out of order and missing
count source messages. A source message that converts to no message is consumed; it counts as delivered, not as lost.
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

from feedcore.merge.effects import Takeover
from feedcore.range_set import RangeSet

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
        rows: shape (batches,), ROW_DTYPE, in order of delivery.
        spans: shape (spans,), SPAN_DTYPE; per source stream in order of delivery, consecutive ones joined.
            `has_messages` is false for source messages that became no message.
    """

    rows: Rows
    spans: Rows


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One source stream, in source messages.

    Attributes:
        delivered: distinct ones delivered.
        duplicated: deliveries of one that had been delivered.
        out_of_order: first deliveries after a later one.
        missing: expected, not delivered.
        missing_ranges: the first few gaps, (first, last).
    """

    delivered: int
    duplicated: int
    out_of_order: int
    missing: int
    missing_ranges: tuple[tuple[int, int], ...]

    def plus(self, other: StreamFigures) -> StreamFigures:
        """Of two sessions together."""
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
        stall_ms: the longest time between consecutive deliveries around it.
        at_ns: when the new epoch was first heard (monotonic clock).
    """

    channel_id: int
    epoch: int
    adapter_id: int
    at_ns: int
    stall_ms: float


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """From the source's sending to the delivery, in microseconds, weighted by message; replayed ones included."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class DeliveryFigures:
    """The judgement. `delivered_messages` counts application messages, everything else source messages."""

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
    """Everything recorded. `events`: the in-band events as plain values, in order."""

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
        """Judge the record.

        Args:
            expected: per source stream how many source messages were sent (numbered from 1); None: from the first
                delivered to the last delivered, for a subscription that began live.
            expected_later: the same of the sessions after the first one recorded, in their order.
            window_ms: how far around a takeover a stall is looked for.
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
        """For a plot: ms from the takeover, and ms since the delivery before, of every delivery in the window."""
        times = self._times_around(takeover, window_ms)
        if len(times) < 2:
            return np.empty(0), np.empty(0)
        return (times[1:] - takeover.at_ns) / MS, np.diff(times) / MS

    def _spans_by_session(self, count_min: int) -> list[Rows]:
        """Of all channels, the oldest session first; empty ones for sessions that were expected and did not come."""
        spans = [channel.spans for channel in self.channels.values()]
        everything = np.concatenate(spans) if spans else np.empty(0, SPAN_DTYPE)
        found = [everything[everything["session"] == session] for session in np.unique(everything["session"])]
        return found + [np.empty(0, SPAN_DTYPE)] * (count_min - len(found))

    def save(self, path: Path) -> None:
        """Write `path` (.npz: the arrays) and, beside it, the same name with .json (the events)."""
        arrays: dict[str, NDArray[Any]] = {}
        for channel_id, channel in self.channels.items():
            arrays[f"rows_{channel_id}"] = channel.rows
            arrays[f"spans_{channel_id}"] = channel.spans
        np.savez_compressed(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]  # numpy's stub of **kwds
        text = {"takeovers": [asdict(takeover) for takeover in self.takeovers], "events": list(self.events)}
        path.with_suffix(".json").write_text(json.dumps(text, indent=1))

    @classmethod
    def load(cls, path: Path) -> DeliveryRecord:
        """Read what `save` wrote."""
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
        """Delivery times from the last one before the window to the first one after it."""
        channel = self.channels.get(takeover.channel_id)
        if channel is None:
            return np.empty(0, np.int64)
        times: NDArray[np.int64] = channel.rows["received_monotonic_ns"]
        window_ns = int(window_ms * MS)
        start = int(np.searchsorted(times, takeover.at_ns - window_ns)) - 1
        end = int(np.searchsorted(times, takeover.at_ns + window_ns, "right")) + 1
        return times[max(start, 0) : end]


def latency_figures(rows: Rows) -> LatencyFigures | None:
    """Percentiles over messages; None if no row says when its source sent it."""
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
    """Judge one source stream's spans, which come in order of delivery."""
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
