"""What `status --check` finds wrong with a feed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandemfeed.admin_server.alerts import SECOND, Level, Thresholds, alerts_of
from tandemfeed.v1 import admin_pb2

NOW = 1_800_000_000 * SECOND


def healthy() -> admin_pb2.FeedStatus:
    """Two adapters, one gateway, one source stream: nothing is wrong."""
    feed = admin_pb2.FeedStatus(active_adapter_id=1, epoch=3, now_unix_ns=NOW, server_started_unix_ns=NOW - 100)
    feed.feed.name = "equities"
    feed.feed.source_streams.add(source_stream_id=1, name="A-M")
    for adapter_id, name in ((1, "a"), (2, "b")):
        row = feed.adapters.add(attending=True, heard_unix_ns=NOW, silence_ns=SECOND // 10)
        row.adapter.adapter_id, row.adapter.name = adapter_id, name
        row.state.source_silence_ns[1] = SECOND // 100
        row.state.output_journal.disk_free_bytes, row.state.output_journal.disk_size_bytes = 50, 100
    source = feed.sources.add(identity="gateway", heard_unix_ns=NOW)
    source.report.process_id, source.report.host = 12, "exchange-1"
    return feed


def found(feed: admin_pb2.FeedStatus) -> list[tuple[Level, str]]:
    return [(alert.level, alert.text) for alert in alerts_of(feed, Thresholds())]


def test_nothing_is_wrong_with_a_healthy_feed() -> None:
    assert found(healthy()) == []


def lose_a_thread(feed: admin_pb2.FeedStatus) -> None:
    feed.failed_threads.append("keys-equities")


def kill_gateway(feed: admin_pb2.FeedStatus) -> None:
    feed.sources[0].is_dead, feed.sources[0].silence_ns = True, 12 * SECOND


def stop_gateway(feed: admin_pb2.FeedStatus) -> None:
    feed.sources[0].report.is_stopping = True


def keep_from_the_next_session(feed: admin_pb2.FeedStatus) -> None:
    feed.sources[0].report.waiting_reason = "session 22 waits, because"


def silence_source(feed: admin_pb2.FeedStatus) -> None:
    for row in feed.adapters:
        row.state.source_silence_ns[1] = 30 * SECOND


def deafen_backup(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[1].state.source_silence_ns[1] = 30 * SECOND


def never_send(feed: admin_pb2.FeedStatus) -> None:
    for row in feed.adapters:
        row.state.source_silence_ns.clear()


def kill_backup(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[1].attending, feed.adapters[1].away_since_unix_ns = False, NOW
    feed.has_no_synchronized_backup = True


def drain_backup(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[1].drained_reason, feed.has_no_synchronized_backup = "new memory", True


def mute_active(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[1].state.adapter_silence_ns[1] = 7 * SECOND
    feed.adapters[0].state.adapter_silence_ns[2] = SECOND // 100


def mute_backup(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[0].state.adapter_silence_ns[2] = 7 * SECOND


def add_adapter_that_hears_all(feed: admin_pb2.FeedStatus) -> None:
    row = feed.adapters.add(attending=True, heard_unix_ns=NOW, silence_ns=SECOND // 10)
    row.adapter.adapter_id, row.adapter.name = 3, "c"
    row.state.source_silence_ns[1] = SECOND // 100
    row.state.adapter_silence_ns.update({1: SECOND // 50, 2: SECOND // 50})


def break_one_link(feed: admin_pb2.FeedStatus) -> None:
    mute_active(feed)
    add_adapter_that_hears_all(feed)


def pause_active(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[0].silence_ns = 20 * SECOND


def lose_active(feed: admin_pb2.FeedStatus) -> None:
    feed.active_adapter_id = 0


def fill_disk(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[0].state.output_journal.is_failing = True
    feed.adapters[0].state.output_journal.not_journaled_count = 1_234


def lose_thread_of_active(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[0].state.health.unfit_reason = "its thread follow-2 failed"


def break_disk_of_backup(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[1].state.health.unfit_reason = "its output journal failed"
    feed.adapters[1].state.output_journal.is_failing = True


def fill_every_disk(feed: admin_pb2.FeedStatus) -> None:
    for row in feed.adapters:
        row.state.output_journal.is_failing = True


def lose_records(feed: admin_pb2.FeedStatus) -> None:
    journal = feed.adapters[0].state.output_journal
    journal.not_journaled_count, journal.last_not_journaled_unix_ns = 7, NOW - SECOND


def nearly_fill_disk(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[0].state.output_journal.disk_free_bytes = 2


def forge(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[0].state.forged_packets.add(address="10.0.0.9:5555", last_unix_ns=NOW - SECOND)


def lie(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[1].doubts.add(what="was in epoch 9000", count=12, last_unix_ns=NOW - SECOND)


def fail_backup(feed: admin_pb2.FeedStatus) -> None:
    feed.adapters[1].failed_reason = "out of sync"


@pytest.mark.parametrize(
    ("happen", "level", "text"),
    [
        (lose_a_thread, Level.CRITICAL, "thread keys-equities of the admin server has failed: restart the server"),
        (kill_gateway, Level.CRITICAL, "source gateway gateway (process 12 on exchange-1) is dead: last heard at"),
        (stop_gateway, Level.WARNING, "source gateway gateway (process 12 on exchange-1) was stopped at"),
        (keep_from_the_next_session, Level.WARNING, "source gateway gateway: session 22 waits, because"),
        (silence_source, Level.CRITICAL, "source stream 1 A-M is silent for 30 s"),
        (deafen_backup, Level.WARNING, "b does not hear source stream 1 A-M for 30 s"),
        (never_send, Level.CRITICAL, "source stream 1 A-M is silent: no adapter has heard it since it started"),
        (kill_backup, Level.WARNING, "b is dead or away since"),
        (kill_backup, Level.CRITICAL, "no backup is synchronized"),
        (drain_backup, Level.WARNING, "no backup is synchronized: all are drained"),
        (pause_active, Level.CRITICAL, "a is connected and silent for 20 s: paused, or overloaded"),
        (mute_active, Level.CRITICAL, "the multicast of a reaches no adapter: not received by b for 7.0 s"),
        (mute_backup, Level.WARNING, "the multicast of b reaches no adapter: not received by a for 7.0 s"),
        (break_one_link, Level.WARNING, "b does not receive the multicast of a for 7.0 s"),
        (lose_active, Level.CRITICAL, "no adapter is active"),
        (fill_disk, Level.WARNING, "a does not journal packets, because its disk is full: 1,234 records lost"),
        (fill_every_disk, Level.CRITICAL, "a does not journal packets"),
        (lose_thread_of_active, Level.CRITICAL, "a is unfit: its thread follow-2 failed"),
        (break_disk_of_backup, Level.WARNING, "b is unfit: its output journal failed"),
        (break_disk_of_backup, Level.WARNING, "b does not journal packets: 0 records lost"),
        (lose_records, Level.WARNING, "a did not journal all packets: 7 records lost since its start, the last at"),
        (nearly_fill_disk, Level.WARNING, "a has 2.0% of its journal's disk free"),
        (forge, Level.WARNING, "a receives forged packets from 10.0.0.9:5555"),
        (lie, Level.WARNING, "b is not believed: it was in epoch 9000 (12 reports refused, last at"),
        (fail_backup, Level.WARNING, "b is failed: out of sync"),
    ],
)
def test_a_fault_is_found(happen: Callable[[admin_pb2.FeedStatus], None], level: Level, text: str) -> None:
    feed = healthy()
    happen(feed)
    assert any(each is level and what.startswith(text) for each, what in found(feed)), found(feed)


@pytest.mark.parametrize("state", ["away", "joining", "failed", "silent"])
def test_an_adapter_that_is_out_of_the_group_need_not_be_heard(state: str) -> None:
    feed = healthy()
    mute_backup(feed)
    row = feed.adapters[1]
    match state:
        case "away":
            row.attending = False
        case "joining":
            row.adapter.replica_state = "joining"
        case "failed":
            row.failed_reason = "by hand"
        case "silent":
            row.silence_ns = 20 * SECOND
    assert not [text for _, text in found(feed) if "multicast" in text]


def test_a_replaced_gateway_is_no_alarm() -> None:
    feed = healthy()
    feed.sources.add(identity="gateway").is_dead = True
    assert found(feed) == []


def test_planned_maintenance_is_no_alarm_while_another_backup_is_synchronized() -> None:
    feed = healthy()
    feed.adapters[1].drained_reason, feed.adapters[1].attending = "new memory", False
    assert found(feed) == []


def test_a_silent_source_can_be_left_out_at_night() -> None:
    feed = healthy()
    silence_source(feed)
    assert alerts_of(feed, Thresholds(source_silence_ns=0)) == []
