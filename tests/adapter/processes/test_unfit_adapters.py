"""An adapter that has lost a thread or its disk does not look healthy, and does not stay active if it needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemfeed.admin_server.alerts import Alert, Thresholds, alerts_of
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.runtime.threads import EXIT_THREAD_FAILED
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.adapter.processes.adapter_processes import AdapterUnderTest, SourceByHand
from tests.adapter.processes.clusters import Feed, running_cluster
from tests.adapter.processes.planted import RAISES, disk_prelude, prelude
from tests.admin_server.cluster_files import Server, channel_as

pytestmark = pytest.mark.processes


def alerts(server: Server) -> list[Alert]:
    """What `status --check` says is wrong."""
    with channel_as(server, "operator") as channel:
        (feed,) = admin_pb2_grpc.OperationsStub(channel).GetStatus(admin_pb2.GetStatusRequest()).feeds
    return alerts_of(feed, Thresholds())


def status_of(server: Server, name: str) -> admin_pb2.AdapterStatus:
    """What the admin server knows about an adapter."""
    with channel_as(server, "operator") as channel:
        (feed,) = admin_pb2_grpc.OperationsStub(channel).GetStatus(admin_pb2.GetStatusRequest()).feeds
    return next(row for row in feed.adapters if row.adapter.name == name)


def test_an_active_that_cannot_follow_its_backup_any_more_hands_over_and_says_why(
    server: AdminServer, source: SourceByHand, tmp_path: Path
) -> None:
    switch = tmp_path / "switch"
    fault = prelude("tandemfeed.adapter.peers.peer_input:PeerInput", "state", switch)
    a = AdapterUnderTest(server, "a", tmp_path, prelude=fault)
    a.await_state("active")
    b = AdapterUnderTest(server, "b", tmp_path)
    b.await_state("synchronized")
    try:
        switch.touch()
        b.await_state("active")
        a.await_state("synchronized")  # and stays: the last synchronized backup is never failed
        health = status_of(server, "a").state.health
        assert (health.score, health.unfit_reason) == (0.0, f"its thread follow-2 failed (KeyError: '{RAISES}')")
        assert status_of(server, "b").state.health.score > 0
        b.kill()
        a.await_state("active")  # no other can replace it
        assert status_of(server, "a").state.health.unfit_reason
    finally:
        b.kill()
        assert a.stop() == EXIT_THREAD_FAILED


def test_a_backup_that_is_unfit_is_failed_with_the_reason_if_another_is_synchronized(
    tmp_path: Path,
) -> None:
    switch = tmp_path / "switch"
    fault = prelude("tandemfeed.adapter.peers.peer_input:PeerInput", "state", switch)
    with running_cluster(tmp_path, Feed("abc")) as cluster:
        cluster.start_adapters("ab")
        cluster.adapters["c"] = c = AdapterUnderTest(cluster.server, "c", tmp_path, prelude=fault)
        cluster.await_active("equities", synchronized_count=2)
        switch.touch()
        c.await_state("failed")
        row = status_of(cluster.server, "c")
        assert row.failed_reason.startswith("its thread follow-")
        assert (row.state.health.score, row.state.health.unfit_reason) == (0.0, row.failed_reason)
        assert c.stop() == EXIT_THREAD_FAILED


def test_an_active_that_has_lost_its_connections_thread_ends_and_its_backup_takes_over(
    server: AdminServer, source: SourceByHand, tmp_path: Path
) -> None:
    switch = tmp_path / "switch"
    fault = prelude("tandemfeed.adapter.process:AdapterProcess", "_on_order", switch)
    a = AdapterUnderTest(server, "a", tmp_path, prelude=fault)
    a.await_state("active")
    b = AdapterUnderTest(server, "b", tmp_path)
    b.await_state("synchronized")
    try:
        switch.touch()
        b.await_state("active")
        assert a.process.wait(60) == EXIT_THREAD_FAILED
        a.await_end()
        ended = [log for log in a.logs if log["event"] == "thread failed; stopping this process"]
        assert [(log["failed_thread"], RAISES in log["exception"]) for log in ended] == [("registry", True)]
    finally:
        b.stop()


@pytest.mark.parametrize(
    ("owner", "method", "thread"),
    [
        ("tandemfeed.adapter.records.last_values.keeper:KeptTable", "advance", "last-values"),
        ("tandemfeed.adapter.records.dead_letter_journal:DeadLetterJournal", "_append", "dead-letters"),
    ],
)
def test_an_adapter_that_has_lost_a_thread_that_it_can_do_without_stays_and_does_not_end_with_status_0(
    server: AdminServer, source: SourceByHand, tmp_path: Path, owner: str, method: str, thread: str
) -> None:
    switch = tmp_path / "switch"
    switch.touch()
    a = AdapterUnderTest(server, "a", tmp_path, prelude=prelude(owner, method, switch))
    a.await_state("active")
    a.await_log("thread failed; this process is unhealthy")
    (failed,) = [log for log in a.logs if log["event"] == "thread failed; this process is unhealthy"]
    assert failed["failed_thread"] == thread
    assert not status_of(server, "a").state.health.unfit_reason
    assert a.moves()[-1] == "active"
    assert a.stop() == EXIT_THREAD_FAILED


def test_an_active_whose_disk_refuses_a_flush_hands_over_and_ends_with_a_sentence(
    server: AdminServer, source: SourceByHand, tmp_path: Path
) -> None:
    switch = tmp_path / "switch"
    a = AdapterUnderTest(server, "a", tmp_path, prelude=disk_prelude(switch))
    a.await_state("active")
    b = AdapterUnderTest(server, "b", tmp_path)
    b.await_state("synchronized")
    try:
        switch.touch()
        source.send(1, 5)  # so that there is something to flush
        a.await_log("the output journal has failed; not journaling packets until a restart")
        b.await_state("active")
        row = status_of(server, "a")
        assert row.state.health.unfit_reason.startswith("its output journal failed: ")
        assert row.state.output_journal.is_failing
        assert any("a is unfit: its output journal failed" in alert.text for alert in alerts(server))
        source.send(1, 5)
        assert b.stop() == 0
    finally:
        status = a.stop()
    a.await_end()
    (sentence,) = [log["text"] for log in a.logs if "text" in log]
    assert (status, "the disk refused a flush (Input/output error)" in sentence) == (2, True)
