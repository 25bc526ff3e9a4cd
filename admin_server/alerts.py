"""What is wrong with a feed, by its status: the same judgement for `status`, `watch`, `status --check`, the server's
metrics, its log and the feed's history. Pure.

Critical: the feed stands still, or the next fault will stop it. Warning: redundancy, records or trust have suffered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tandemfeed.admin_server.times import clock, duration
from tandemfeed.v1 import admin_pb2

SECOND = 1_000_000_000


class Level(IntEnum):
    """The exit statuses of monitoring plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class Alert(NamedTuple):
    """Something that is wrong.

    Attributes:
        text: for people; it may contain times, which change.
        about: what is wrong, in words that stay the same while it lasts.
    """

    level: Level
    text: str
    about: str


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When something counts as wrong.

    Attributes:
        source_silence_ns: a source stream that is silent for longer is critical; heartbeats come every 10 ms. 0: never.
        adapter_silence_ns: an adapter that reports nothing for longer is silent; it reports at every sync interval.
        disk_free_ratio, memory_free_ratio: less is a warning.
        recent_ns: for how long a lost record or a forged packet is a warning.
        link_silence_ns: an adapter that receives nothing of another's multicast for longer does not hear it; heartbeats
            come every 25 ms at least.
    """

    source_silence_ns: int = 10 * SECOND
    adapter_silence_ns: int = 5 * SECOND
    disk_free_ratio: float = 0.05
    memory_free_ratio: float = 0.05
    recent_ns: int = 900 * SECOND
    link_silence_ns: int = 2 * SECOND


def alerts_of(feed: admin_pb2.FeedStatus, thresholds: Thresholds) -> list[Alert]:
    """What is wrong with a feed, the worst first."""
    found = [
        *_server_alerts(feed),
        *_lease_alerts(feed),
        *_source_alerts(feed),
        *_silence_alerts(feed, thresholds),
        *_link_alerts(feed, thresholds),
        *(alert for row in feed.adapters for alert in _adapter_alerts(row, feed, thresholds)),
    ]
    return sorted(found, key=lambda alert: -alert.level)


def state_of(row: admin_pb2.AdapterStatus, thresholds: Thresholds) -> str:
    """An adapter's state in a word."""
    if row.failed_reason:
        return "failed"
    if not row.attending:
        return "away"
    if row.silence_ns > thresholds.adapter_silence_ns:
        return "silent"
    return "drained" if row.drained_reason else row.adapter.replica_state


def source_state_of(source: admin_pb2.SourceStatus) -> str:
    """A source's state in a word."""
    if source.is_dead:
        return "dead"
    if source.report.is_stopping:
        return "stopped"
    if source.gateway_part:
        return source.gateway_part
    return "has sent all" if source.report.has_sent_all else "sending"


def source_silences(feed: admin_pb2.FeedStatus, thresholds: Thresholds) -> dict[int, dict[int, int]]:
    """source_stream_id -> adapter_id -> for how long that adapter has not heard it, for adapters that report."""
    silences: dict[int, dict[int, int]] = {stream.source_stream_id: {} for stream in feed.feed.source_streams}
    for row in feed.adapters:
        if row.attending and row.HasField("state") and row.silence_ns <= thresholds.adapter_silence_ns:
            for stream_id, silence_ns in row.state.source_silence_ns.items():
                silences.setdefault(stream_id, {})[row.adapter.adapter_id] = silence_ns + row.silence_ns
    return silences


def _server_alerts(feed: admin_pb2.FeedStatus) -> Iterator[Alert]:
    for name in feed.failed_threads:
        what = f"thread {name} of the admin server has failed"
        yield Alert(Level.CRITICAL, f"{what}: restart the server, and see its log", what)


def _lease_alerts(feed: admin_pb2.FeedStatus) -> Iterator[Alert]:
    if not feed.active_adapter_id:
        yield Alert(Level.CRITICAL, "no adapter is active", "no adapter is active")
    backups = [row for row in feed.adapters if row.adapter.adapter_id != feed.active_adapter_id]
    if backups and feed.has_no_synchronized_backup:
        is_planned = all(row.drained_reason for row in backups)
        level = Level.WARNING if is_planned else Level.CRITICAL
        what = "no backup is synchronized"
        yield Alert(level, what + (": all are drained" if is_planned else ""), what)


def _source_alerts(feed: admin_pb2.FeedStatus) -> Iterator[Alert]:
    yield from _gateway_alerts(feed)
    for source in feed.sources:
        if source.report.waiting_reason and not (source.is_dead or source.report.is_stopping):
            what = f"source gateway {source.identity}"
            yield Alert(Level.WARNING, f"{what}: {source.report.waiting_reason}", f"{what} waits")
    if any(source_state_of(source) in ("sending", "has sent all", "holder") for source in feed.sources):
        return
    for source in feed.sources:
        report = source.report
        who = f"source gateway {source.identity} (process {report.process_id} on {report.host})"
        if source.is_dead:
            ago = f"{clock(source.heard_unix_ns)}, {duration(source.silence_ns)} ago"
            yield Alert(Level.CRITICAL, f"{who} is dead: last heard at {ago}", f"{who} is dead")
        else:
            yield Alert(Level.WARNING, f"{who} was stopped at {clock(source.heard_unix_ns)}", f"{who} was stopped")


def _gateway_alerts(feed: admin_pb2.FeedStatus) -> Iterator[Alert]:
    """Of a pair of contribution gateways, and of one that acknowledges nothing."""
    states = {source_state_of(source) for source in feed.sources}
    if any(len(stream.contribution_endpoints) > 1 for stream in feed.feed.source_streams) and "standby" not in states:
        what = "no contribution gateway is standby"
        yield Alert(Level.WARNING, f"{what}: contributions are on one host only", what)
    for source in feed.sources:
        reason = source.report.gateway.waiting_reason
        if reason and source_state_of(source) in ("holder", "behind"):
            what = f"contribution gateway {source.report.gateway.endpoint} waits"
            yield Alert(Level.WARNING, f"{what}: {reason}", what)


def _silence_alerts(feed: admin_pb2.FeedStatus, thresholds: Thresholds) -> Iterator[Alert]:
    limit_ns = thresholds.source_silence_ns
    if not limit_ns:
        return
    names = {stream.source_stream_id: stream.name for stream in feed.feed.source_streams}
    adapters = {row.adapter.adapter_id: row.adapter.name for row in feed.adapters}
    hearing = [row for row in feed.adapters if state_of(row, thresholds) not in ("away", "silent", "failed")]
    for stream_id, silences in source_silences(feed, thresholds).items():
        what = f"source stream {stream_id} {names.get(stream_id, '')}".strip()
        if not silences:
            if any(row.HasField("state") for row in hearing):
                text = f"{what} is silent: no adapter has heard it since it started"
                yield Alert(Level.CRITICAL, text, f"{what} is silent")
        elif (least_ns := min(silences.values())) > limit_ns:
            yield Alert(Level.CRITICAL, f"{what} is silent for {duration(least_ns)}", f"{what} is silent")
        else:
            yield from _deaf_adapters(what, silences, adapters, limit_ns)


def _deaf_adapters(
    what: str, silences: Mapping[int, int], adapters: Mapping[int, str], limit_ns: int
) -> Iterator[Alert]:
    for adapter_id, silence_ns in silences.items():
        if silence_ns > limit_ns:
            text = f"{adapters.get(adapter_id)} does not hear {what}"
            yield Alert(Level.WARNING, f"{text} for {duration(silence_ns)}", text)


def link_silences(feed: admin_pb2.FeedStatus, thresholds: Thresholds) -> dict[int, dict[int, int]]:
    """adapter_id -> adapter_id of each adapter that should hear its multicast -> for how long that one has not.

    Only adapters that attend and report are at either end, and only those with a place in the feed are to be heard.
    """
    present = {
        row.adapter.adapter_id: row
        for row in feed.adapters
        if row.HasField("state") and state_of(row, thresholds) not in ("away", "silent", "failed", "joining")
    }
    return {
        sender: {
            hearer: row.state.adapter_silence_ns[sender]
            for hearer, row in present.items()
            if hearer != sender and sender in row.state.adapter_silence_ns
        }
        for sender in present
    }


def _link_alerts(feed: admin_pb2.FeedStatus, thresholds: Thresholds) -> Iterator[Alert]:
    """Adapters whose multicast does not arrive: at no adapter, or at some."""
    names = {row.adapter.adapter_id: row.adapter.name for row in feed.adapters}
    for sender, silences in link_silences(feed, thresholds).items():
        deaf = {hearer: ns for hearer, ns in silences.items() if ns > thresholds.link_silence_ns}
        lists = [f"{names[hearer]} for {duration(ns)}" for hearer, ns in deaf.items()]
        if deaf and len(deaf) == len(silences):
            what = f"the multicast of {names[sender]} reaches no adapter"
            level = Level.CRITICAL if sender == feed.active_adapter_id else Level.WARNING
            yield Alert(level, f"{what}: not received by {', '.join(lists)}", what)
            continue
        for hearer, silence_ns in deaf.items():
            what = f"{names[hearer]} does not receive the multicast of {names[sender]}"
            yield Alert(Level.WARNING, f"{what} for {duration(silence_ns)}", what)


def _adapter_alerts(
    row: admin_pb2.AdapterStatus, feed: admin_pb2.FeedStatus, thresholds: Thresholds
) -> Iterator[Alert]:
    name, state = row.adapter.name, state_of(row, thresholds)
    if state == "failed":
        yield Alert(Level.WARNING, f"{name} is failed: {row.failed_reason}", f"{name} is failed")
    elif state == "away" and not row.drained_reason:
        began = f"since this server started at {clock(feed.server_started_unix_ns)}"
        since = f"since {clock(row.away_since_unix_ns)}" if row.away_since_unix_ns else began
        yield Alert(Level.WARNING, f"{name} is dead or away {since}", f"{name} is dead or away")
    elif state == "silent":
        is_active = row.adapter.adapter_id == feed.active_adapter_id
        level = Level.CRITICAL if is_active else Level.WARNING
        what = f"{name} is connected and silent"
        yield Alert(level, f"{what} for {duration(row.silence_ns)}: paused, or overloaded", what)
    for doubt in row.doubts:
        if doubt.last_unix_ns > feed.now_unix_ns - thresholds.recent_ns:
            what = f"{name} is not believed"
            yield Alert(
                Level.WARNING,
                f"{what}: it {doubt.what} ({doubt.count:,} reports refused, last at {clock(doubt.last_unix_ns)}); "
                f"if it is faulty or in wrong hands: tandemfeed admin fail {feed.feed.name} {name}",
                what,
            )
    if row.attending and row.HasField("state"):
        yield from _resource_alerts(row, feed, thresholds)


def _resource_alerts(
    row: admin_pb2.AdapterStatus, feed: admin_pb2.FeedStatus, thresholds: Thresholds
) -> Iterator[Alert]:
    name, journal, health = row.adapter.name, row.state.output_journal, row.state.health
    since_ns = feed.now_unix_ns - thresholds.recent_ns
    lost = f"{journal.not_journaled_count:,} records lost since its start"
    if health.unfit_reason:
        is_active = row.adapter.adapter_id == feed.active_adapter_id
        what = f"{name} is unfit"
        yield Alert(Level.CRITICAL if is_active else Level.WARNING, f"{what}: {health.unfit_reason}", what)
    if journal.is_failing:
        what = f"{name} does not journal packets"
        why = "" if health.unfit_reason else ", because its disk is full"
        yield Alert(_journal_level(feed), f"{what}{why}: {lost}", what)
    elif journal.not_journaled_count and journal.last_not_journaled_unix_ns > since_ns:
        last = clock(journal.last_not_journaled_unix_ns)
        what = f"{name} did not journal all packets"
        yield Alert(Level.WARNING, f"{what}: {lost}, the last at {last}", what)
    if journal.disk_size_bytes and not journal.is_failing:
        free = journal.disk_free_bytes / journal.disk_size_bytes
        if free < thresholds.disk_free_ratio:
            yield Alert(Level.WARNING, f"{name} has {free:.1%} of its journal's disk free", f"{name} lacks disk space")
    if 0 < health.memory_available_ratio < thresholds.memory_free_ratio:
        text = f"{name} has {health.memory_available_ratio:.1%} of its memory free"
        yield Alert(Level.WARNING, text, f"{name} lacks memory")
    recent = [forged for forged in row.state.forged_packets if forged.last_unix_ns > since_ns]
    if recent:
        addresses = ", ".join(sorted({forged.address for forged in recent}))
        what = f"{name} receives forged packets"
        yield Alert(Level.WARNING, f"{what} from {addresses}", what)


def _journal_level(feed: admin_pb2.FeedStatus) -> Level:
    """Critical if no adapter journals: then nothing that is lost now can be replayed."""
    attending = [row for row in feed.adapters if row.attending and row.HasField("state")]
    return Level.CRITICAL if all(row.state.output_journal.is_failing for row in attending) else Level.WARNING
