"""The pages of `status` and `feeds`. Decides nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tandemfeed.admin_server.alerts import (
    Level,
    Thresholds,
    alerts_of,
    source_silences,
    source_state_of,
    state_of,
)
from tandemfeed.admin_server.command.output.tables import titled_table
from tandemfeed.admin_server.times import clock, duration
from tandemfeed.v1 import admin_pb2, common_pb2

STATUS_HEADINGS = ("adapter", "state", "heard", "epoch", "next seq", "msg/s", "lag", "score")
LEVEL_STYLES = {Level.CRITICAL: "bold red", Level.WARNING: "yellow"}


def print_status(reply: admin_pb2.GetStatusReply, console: Console | None = None) -> None:
    """Print what is wrong with each feed, its adapters and its sources; a star marks the active. Fits 80 columns."""
    console = console or Console()
    for feed in reply.feeds:
        _print_title(feed, console)
        for level, text, _ in alerts_of(feed, Thresholds()):
            console.print(Text(f"{level.name}: ", LEVEL_STYLES[level]) + Text(text, ""), highlight=False)
        console.print(_adapter_table(feed))
        for row in feed.adapters:
            _print_details(row, console)
        _print_sources(feed, console)
        _print_forgers(feed, console)
        _print_takeovers(feed, console)


def _print_title(feed: admin_pb2.FeedStatus, console: Console) -> None:
    """Print the feed, its epoch, and how that came about."""
    title = f"feed {feed.feed.name}: epoch {feed.epoch}, session {feed.feed.session}, {feed.subscriber_count} clients"
    began = feed.epoch_began
    if began.at_unix_ns:
        title += f"\n{began.adapter} became active at {clock(began.at_unix_ns)}"
        title += f"; last takeover: {began.reason.replace('its adapter', 'the former active')}" if began.reason else ""
    console.print(title, markup=False, highlight=False)


def _adapter_table(feed: admin_pb2.FeedStatus) -> Table:
    table = titled_table("", STATUS_HEADINGS)
    for row in feed.adapters:
        channels, health, is_known = row.state.channels, row.state.health, row.HasField("state")
        table.add_row(
            row.adapter.name + (" *" if row.adapter.adapter_id == feed.active_adapter_id else ""),
            state_of(row, Thresholds()),
            duration(row.silence_ns) if row.heard_unix_ns else "never",
            _distinct(channel.position.epoch for channel in channels),
            "\n".join(str(channel.position.next_message_seq) for channel in channels),
            f"{health.messages_per_second:.0f}" if is_known else "",
            f"{health.source_lag_messages}" if is_known else "",
            f"{health.score:.2f}" if is_known else "",
        )
    return table


def _print_sources(feed: admin_pb2.FeedStatus, console: Console) -> None:
    """Print a line for each gateway, and one for each source stream."""
    for source in feed.sources:
        report = source.report
        console.print(
            f"source {source.identity}: {source_state_of(source)}{_place_of(report)}{_session_of(report)}, "
            f"heard {duration(source.silence_ns)} ago, "
            f"{report.packets_per_second:,} packets/s, {report.unsent_record_count:,} records unsent "
            f"(process {report.process_id} on {report.host})",
            markup=False,
            highlight=False,
        )
    if not feed.sources:
        console.print(f"source: no gateway has reported since {clock(feed.server_started_unix_ns)}", highlight=False)
    silences = source_silences(feed, Thresholds())
    sent = {stream: seq for source in feed.sources for stream, seq in source.report.next_source_seqs.items()}
    for stream in feed.feed.source_streams:
        heard = silences.get(stream.source_stream_id) or {}
        silence = f"heard {duration(min(heard.values()))} ago" if heard else "not heard"
        seq = sent.get(stream.source_stream_id)
        console.print(
            f"source stream {stream.source_stream_id} {stream.name}: {silence}"
            + (f", next source_seq {seq}" if seq else ""),
            markup=False,
            highlight=False,
        )


def _session_of(report: admin_pb2.SourceReport) -> str:
    return f" session {report.session}" if report.session else ""


def _place_of(report: admin_pb2.SourceReport) -> str:
    """Of a contribution gateway: its address and its term."""
    if not report.HasField("gateway"):
        return ""
    term = f" in term {report.gateway.term}" if report.gateway.term else ""
    return f"{term} at {report.gateway.endpoint}"


def _print_details(row: admin_pb2.AdapterStatus, console: Console) -> None:
    """Print lines about an adapter: its start, its health, what it refused, why it failed."""
    state, health = row.state, row.state.health
    details = [f"process {row.process_id} on {row.host}"] if row.process_id else []
    details += [f"incarnation {row.adapter.incarnation}"] if row.adapter.incarnation else []
    if row.HasField("state"):
        details += [
            f"memory free {health.memory_available_ratio:.0%}, cpu {health.cpu_ratio:.0%}",
            f"errors {health.error_count}",
        ]
        journal = state.output_journal
        if journal.disk_size_bytes:
            details.append(f"disk free {journal.disk_free_bytes / journal.disk_size_bytes:.0%}")
        if journal.not_journaled_count:
            details.append(f"{journal.not_journaled_count:,} records not journaled")
    if details:
        _print_of(row, ", ".join(details), console)
    if state.refused_messages:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(state.refused_messages.items()))
        _print_of(row, f"source messages refused: {reasons}", console)
    if row.replay_bytes_per_s_max:
        _print_of(row, f"replays limited to {row.replay_bytes_per_s_max / 1e6:g} MB/s", console)
    if row.drained_reason:
        _print_of(row, f"{row.adapter.replica_state}, drained: {row.drained_reason}", console)


def _print_of(row: admin_pb2.AdapterStatus, text: str, console: Console) -> None:
    console.print(f"{row.adapter.name}: {text}", markup=False, highlight=False)


def _print_forgers(feed: admin_pb2.FeedStatus, console: Console) -> None:
    """Print a line for each impersonated adapter and each sender's address. Several adapters may receive the same
    packets, so the count is the largest of any adapter."""
    names = {row.adapter.adapter_id: row.adapter.name for row in feed.adapters}
    heard: dict[tuple[int, str], list[common_pb2.ForgedPackets]] = {}
    counts: dict[tuple[int, str], Counter[int]] = {}
    for row in feed.adapters:
        for forged in row.state.forged_packets:
            place = forged.adapter_id, forged.address
            heard.setdefault(place, []).append(forged)
            counts.setdefault(place, Counter())[row.adapter.adapter_id] += forged.count
    for (adapter_id, address), reports in sorted(heard.items()):
        count = max(counts[adapter_id, address].values())
        first, last = min(each.first_unix_ns for each in reports), max(each.last_unix_ns for each in reports)
        impersonated = escape(names.get(adapter_id, str(adapter_id)))
        console.print(
            f"forged packets as adapter {impersonated} from {escape(address)}: {count:,} since {clock(first)}, "
            f"last at {clock(last)}"
        )


def _print_takeovers(feed: admin_pb2.FeedStatus, console: Console) -> None:
    """Print the number of takeovers by reason, the last few takeovers, and the present lease term."""
    counts = [f"{counted.reason} {counted.count}" for counted in feed.takeover_counts if counted.count]
    needless = feed.needless_takeover_count
    late = f"; {needless} needless, because the holder was late, not dead" if needless else ""
    console.print(f"takeovers: {', '.join(counts) or 'none'}{late}; lease term {feed.lease_ttl_ns / 1e6:.0f} ms")
    names = {row.adapter.adapter_id: row.adapter.name for row in feed.adapters}
    for last in feed.last_takeovers:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.at_unix_ns // 1_000_000_000))
        former = names.get(last.former_adapter_id, "unknown")
        console.print(f"  {at}  epoch {last.epoch}: {former} to {names.get(last.adapter_id)}, {last.reason}")


def print_feeds(reply: admin_pb2.GetStatusReply, console: Console | None = None) -> None:
    """Print a table for each feed, with its channels and their source streams."""
    console = console or Console()
    for row in reply.feeds:
        feed = row.feed
        title = f"feed {feed.name} (id {feed.feed_id}), session {feed.session}"
        if feed.delay_ns:
            title += f", {feed.delay_ns / 1e9:g} s after {feed.delayed_from}"
        table = titled_table(title, ("channel", "topic", "source stream", "group"))
        streams = {stream.source_stream_id: stream for stream in feed.source_streams}
        for channel in feed.channels:
            for place, stream_id in enumerate(channel.source_stream_ids):
                names = ("", "") if place else (str(channel.channel_id), channel.topic)
                stream = streams[stream_id]
                is_own = stream.owner_channel_id in (0, channel.channel_id)  # 0: from a server of an earlier version
                owner = "" if is_own else f" (of channel {stream.owner_channel_id})"
                table.add_row(*names, f"{stream_id} {stream.name}{owner}", stream.group)
        console.print(table)


def _distinct(epochs: Iterable[int]) -> str:
    """One number if all channels are in the same epoch, otherwise each distinct number."""
    return " ".join(map(str, dict.fromkeys(epochs)))
