"""The statistics that `tandemfeed subscribe` shows each second, from the items and the subscription's statistics.

It keeps data only for the present second; totals are counters.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
import rich.box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tandemfeed.client_lib.items import Batch, Filled, Item
from tandemfeed.client_lib.recording.record import ROW_DTYPE, latency_figures
from tandemfeed.client_lib.stream.subscription import Subscription
from tandemfeed.client_lib.stream.trust.stream_trust import Distrusted
from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.effects import Diverged, Gap, ProvisionalGap, SourceGap, Takeover

EVENTS_SHOWN = 8


class LiveFigures:
    """Accumulates items; `interval` ends an interval and returns its statistics as plain values."""

    def __init__(self, subscription: Subscription[Any]) -> None:
        self._subscription = subscription
        self._grant = subscription.grant
        self._messages = 0
        self._batches = 0
        self._latencies: list[tuple[int, int, int]] = []  # received, source sent, message count
        self._since_ns = time.monotonic_ns()
        self.gaps = self.source_gaps = self.filled = self.takeovers = 0
        self.message_count = 0
        self.alarm: str | None = None  # the newest divergence
        self.last_events: deque[str] = deque(maxlen=EVENTS_SHOWN)

    def take(self, items: Iterable[Item]) -> None:
        """Count the items of one poll."""
        for item in items:
            if isinstance(item, Batch):
                self._messages += item.message_count
                self._batches += 1
                self._latencies.append((item.received_at_ns, item.packet.source_sent_at_ns, item.message_count))
                continue
            if isinstance(item, Filled):
                self.filled += item.batch.message_count
            elif isinstance(item, Gap):
                self.gaps += item.message_count
            elif isinstance(item, ProvisionalGap):
                self.gaps += item.last_source_seq - item.first_source_seq + 1
            elif isinstance(item, SourceGap):
                self.source_gaps += item.last_source_seq - item.first_source_seq + 1
            elif isinstance(item, Takeover):
                self.takeovers += 1
            elif isinstance(item, Diverged | Distrusted):
                self.alarm = alarm_text(item)
            self.last_events.append(f"{time.strftime('%H:%M:%S')} {item}")

    def interval(self) -> dict[str, Any]:
        """The statistics since the last call, and the totals."""
        now_ns = time.monotonic_ns()
        seconds = max((now_ns - self._since_ns) / 1e9, 1e-9)
        statistics = self._subscription.statistics()
        counters = self._subscription.counters.counts
        self.message_count += self._messages
        figures: dict[str, Any] = {
            "feed": self._grant.feed_name,
            "messages": self.message_count,
            "messages_per_second": round(self._messages / seconds, 1),
            "batches_per_second": round(self._batches / seconds, 1),
            "latency_us": self._latency(),
            "channels": {
                str(channel_id): {
                    "topic": channel.topic,
                    "epoch": channel.epoch,
                    "next_input_seq": channel.next_input_seq,
                    "next_message_seq": channel.next_message_seq,
                    "filtered": channel.filtered,
                    "next_source_seqs": {str(stream): seq for stream, seq in sorted(channel.next_source_seqs.items())},
                    "distrusted": [
                        {"adapter_id": adapter_id, "incarnation": incarnation}
                        for adapter_id, incarnation in channel.distrusted
                    ],
                }
                for channel_id, channel in statistics.channels.items()
            },
            "active_adapter_id": statistics.active_adapter_id,
            "takeovers": self.takeovers,
            "gaps": self.gaps,
            "source_gaps": self.source_gaps,
            "filled": self.filled,
            "duplicates": counters[Counter.MERGE_DUPLICATES],
            "replay_requests": counters[Counter.MERGE_REPLAY_REQUESTS],
            "diverged": counters[Counter.MERGE_DIVERGED],
            "alarm": self.alarm,
            "provisional": counters[Counter.MERGE_PROVISIONAL],
            "unconfirmed": counters[Counter.MERGE_UNCONFIRMED],
            "datagrams": statistics.datagrams,
            "refusals": dict(statistics.refusals),
            "lag": asdict(statistics.lag),
        }
        self._messages = self._batches = 0
        self._latencies.clear()
        self._since_ns = now_ns
        return figures

    def _latency(self) -> dict[str, float] | None:
        rows = np.zeros(len(self._latencies), ROW_DTYPE)
        if self._latencies:
            received, sent, counts = zip(*self._latencies, strict=True)
            rows["received_at_ns"], rows["source_sent_at_ns"], rows["message_count"] = received, sent, counts
        figures = latency_figures(rows)
        if figures is None:
            return None
        return {"p50": round(figures.p50, 1), "p99": round(figures.p99, 1), "max": round(figures.max, 1)}


def render(figures: dict[str, Any], stream_names: dict[int, str], events: Iterable[str]) -> Panel:
    """The live view of the statistics."""
    rate = Table.grid(padding=(0, 2))
    latency = figures["latency_us"] or {}
    rate.add_row("rate", f"{figures['messages_per_second']:,.0f} messages/s", f"{figures['messages']:,} in total")
    if latency:
        rate.add_row(
            "latency",
            f"p50 {latency['p50']:,.0f} µs   p99 {latency['p99']:,.0f} µs   max {latency['max']:,.0f} µs",
            "since the source sent",
        )
    rate.add_row(
        "problems",
        f"gaps {figures['gaps']:,}   source gaps {figures['source_gaps']:,}   filled {figures['filled']:,}   "
        f"diverged {figures['diverged']:,}",
        f"replay requests {figures['replay_requests']:,}",
    )
    rate.add_row(
        "copies", f"duplicates dropped {figures['duplicates']:,}   takeovers {figures['takeovers']}", _refusals(figures)
    )
    for channel_id, channel in figures["channels"].items():
        starts = ", ".join(
            f"{each['adapter_id']} (incarnation {each['incarnation']})" for each in channel["distrusted"]
        )
        if starts:
            rate.add_row(
                "forged",
                f"channel {channel_id}: packets in the name of adapter {starts}",
                "only signed packets are delivered",
            )
    headings = ("channel", "epoch", "next message", "source stream", "next source")
    positions = Table(*headings, expand=True, box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for channel_id, channel in figures["channels"].items():
        first = [f"{channel_id} {channel['topic']}", str(channel["epoch"]), _number(channel["next_message_seq"])]
        for stream, seq in channel["next_source_seqs"].items() or [("", None)]:
            name = stream_names.get(int(stream), "") if stream else ""
            positions.add_row(*first, f"{stream} {name}", _number(seq))
            first = ["", "", ""]
    alarms = [Text(figures["alarm"], style="bold red")] if figures["alarm"] else []
    return Panel(Group(*alarms, rate, positions, *map(Text, events)), title=f"tandemfeed subscribe · {figures['feed']}")


def alarm_text(alarm: Diverged | Distrusted) -> str:
    """An alarm explained for the user, with what to do."""
    if isinstance(alarm, Distrusted):
        return (
            f"ALARM: a reader of channel {alarm.channel_id} may be sending packets as adapter {alarm.adapter_id} "
            f"(incarnation {alarm.incarnation}): {alarm.reason.value}. Messages {alarm.first_message_seq} to "
            f"{alarm.end_message_seq - 1} may be forged. From now on, only signed packets of that adapter are "
            f"delivered; verify=signed does so from the start."
        )
    diverged = alarm
    one, other = diverged.adapter_ids
    return (
        f"ALARM: adapters {one} and {other} sent different content at channel {diverged.channel_id}, input "
        f"{diverged.first_input_seq}, message {diverged.first_message_seq} (CRC-32 {diverged.digests[0]:08x} and "
        f"{diverged.digests[1]:08x}): one of them is faulty or forged. Compare their output journals at that position; "
        f"confirm=2 delivers only what two adapters sent identically."
    )


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _refusals(figures: dict[str, Any]) -> str:
    refused = ", ".join(f"{reason} {count:,}" for reason, count in figures["refusals"].items())
    return f"refused: {refused or 'none'}"
