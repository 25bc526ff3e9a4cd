"""How the real server counts and shows takeovers, and announces terms to adapters."""

from __future__ import annotations

import io
import queue
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from rich.console import Console

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.command.output.status_page import print_status
from tandemfeed.admin_server.feed.streams import Attendance
from tandemfeed.admin_server.lease.lease_decisions import TermNoted
from tandemfeed.admin_server.lease.lease_keeper import LeaseKeeper
from tandemfeed.admin_server.metrics import FeedCollector
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.records.store import Store
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.admin_server.settings import load_cluster
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.calls.notices.adapter import DeathNoticeSender
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.adapter.reporting.attending import Attending
from tests.admin_server.adapter_by_hand import WAIT_S, Adapter
from tests.admin_server.cluster_files import CLUSTER, ca_of, channel_as, running_server, secret_of, write_settings
from tests.admin_server.records.zookeeper_pair import NeverStopped

ACTIVE, SYNCHRONIZED = ReplicaState.ACTIVE, ReplicaState.SYNCHRONIZED
MS = 1_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path) as running:
        yield running


def status_of(server: AdminServer) -> admin_pb2.FeedStatus:
    with channel_as(server, "operator") as channel:
        (feed,) = admin_pb2_grpc.OperationsStub(channel).GetStatus(admin_pb2.GetStatusRequest()).feeds
    return feed


def let_the_term_pass(adapter: Adapter, server: AdminServer) -> None:
    """Send no reports until the server has ended the lease, then report again."""
    give_up_at_s = time.monotonic() + WAIT_S
    while server.brokers["equities"].lease.holder:
        assert time.monotonic() < give_up_at_s
    adapter.report(ReplicaState.JOINING)


def samples(metrics: Iterator[Metric]) -> dict[tuple[str, str], float]:
    """(name, last label) -> value."""
    return {
        (sample.name, list(sample.labels.values())[-1]): sample.value for metric in metrics for sample in metric.samples
    }


def test_status_and_metrics_count_takeovers_by_reason(server: AdminServer) -> None:
    active = Adapter(server, "a")
    first = active.await_order("lease_granted").lease_granted
    assert first.ttl_ns == 300 * MS
    let_the_term_pass(active, server)
    second = active.await_order("lease_granted").lease_granted
    active.report(ACTIVE, renew_epoch=second.epoch)
    backup = Adapter(server, "b")
    backup.report(SYNCHRONIZED, 50)
    sender = DeathNoticeSender(server.endpoint)
    sender.send(active.registered.notice_key, active.registered.self.incarnation)
    sender.close()
    third = backup.await_order("lease_granted").lease_granted
    status = status_of(server)
    counts = {counted.reason: counted.count for counted in status.takeover_counts}
    assert counts["process_ended"] == 1
    assert counts["term_passed"] >= 1, "a busy machine may cause more"
    last = status.last_takeovers[-1]
    assert (last.reason, last.epoch, last.former_adapter_id, last.adapter_id) == ("process_ended", third.epoch, 1, 2)
    assert abs(time.time_ns() - last.at_unix_ns) < 60_000 * MS
    assert status.needless_takeover_count >= 1
    assert status.lease_ttl_ns >= 600 * MS
    metrics = samples(FeedCollector(server.served).collect())
    assert metrics["tandemfeed_takeovers_total", "process_ended"] == 1
    assert metrics["tandemfeed_takeovers_total", "handed_over"] == 0
    assert metrics["tandemfeed_needless_takeovers_total", "equities"] >= 1
    assert metrics["tandemfeed_lease_ttl_seconds", "equities"] >= 0.6
    backup.vanish()
    active.vanish()


def test_status_prints_takeovers() -> None:
    feed = admin_pb2.FeedStatus(epoch=9, lease_ttl_ns=600 * MS, needless_takeover_count=2)
    feed.feed.name = "equities"
    for adapter_id, name in ((1, "a"), (2, "b")):
        feed.adapters.add(adapter={"adapter_id": adapter_id, "name": name})
    feed.takeover_counts.add(reason="term_passed", count=3)
    feed.takeover_counts.add(reason="failed", count=0)
    feed.last_takeovers.add(at_unix_ns=0, reason="term_passed", epoch=9, former_adapter_id=1, adapter_id=2)
    feed.last_takeovers.add(at_unix_ns=0, reason="restored", epoch=10, former_adapter_id=0, adapter_id=2)
    out = io.StringIO()
    print_status(admin_pb2.GetStatusReply(feeds=[feed]), Console(file=out, width=120))
    text = out.getvalue()
    assert "takeovers: term_passed 3; 2 needless, because the holder was late, not dead; lease term 600 ms" in text
    assert re.search(r"19(69|70)-\d\d-\d\d \d\d:\d\d:\d\d  epoch 9: a to b, term_passed", text)
    assert "epoch 10: unknown to b, restored" in text
    out = io.StringIO()
    print_status(admin_pb2.GetStatusReply(feeds=[admin_pb2.FeedStatus(lease_ttl_ns=300 * MS)]), Console(file=out))
    assert "takeovers: none; lease term 300 ms" in out.getvalue()


def test_status_shows_senders_of_forged_packets_and_counts_each_packet_once() -> None:
    feed = admin_pb2.FeedStatus()
    for adapter_id, name in ((1, "a"), (2, "b"), (3, "c")):
        feed.adapters.add(adapter={"adapter_id": adapter_id, "name": name})
    now = time.time_ns()
    for row, counts in ((feed.adapters[0], (12_000, 345)), (feed.adapters[2], (12_300, 0))):
        for incarnation, count in enumerate(counts, 1):
            row.state.forged_packets.add(
                adapter_id=2,
                incarnation=incarnation,
                address="127.0.0.1:5555",
                count=count,
                first_unix_ns=now,
                last_unix_ns=now,
            )
    feed.adapters[1].state.forged_packets.add(adapter_id=9, address="[red]x", count=1)
    out = io.StringIO()
    print_status(admin_pb2.GetStatusReply(feeds=[feed]), Console(file=out, width=120))
    shown = re.findall(r"forged packets as adapter .*", out.getvalue())
    assert len(shown) == 2
    assert re.fullmatch(
        r"forged packets as adapter b from 127\.0\.0\.1:5555: 12,345 since \d\d:\d\d:\d\d, last at \d\d:\d\d:\d\d",
        shown[0],
    )
    assert shown[1].startswith("forged packets as adapter 9 from [red]x: 1 since 19")


def test_an_adapter_uses_the_announced_term_less_a_margin_of_a_tenth(server: AdminServer) -> None:
    server.brokers["equities"].lease.terms.on_needless_takeover(time.monotonic_ns())
    ca, identity = ca_of(server), "adapter-a"
    adapter = Attending(
        server.endpoint,
        ca,
        TokenSource(server.endpoint, ca, identity, secret_of(server, identity)),
        admin_pb2.RegisterRequest(feed="equities", adapter="a", rpc_endpoint="127.0.0.1:1", public_key=bytes(32)),
    )
    assert adapter.registry.register(NeverStopped()) is not None  # type: ignore[arg-type]
    adapter.registry.start()
    begun_ns = time.monotonic_ns()
    give_up_at_s = time.monotonic() + WAIT_S
    valid_until_ns = 0
    while not valid_until_ns:
        assert time.monotonic() < give_up_at_s
        report = admin_pb2.AdapterReport()
        report.state.channels.add(channel_id=1, replica_state=ReplicaState.JOINING.value)
        adapter.report(report)
        try:
            order = adapter.orders.get(timeout=0.1)
        except queue.Empty:
            continue
        if order.WhichOneof("order") == "lease_granted":
            assert order.lease_granted.ttl_ns == 600 * MS
            valid_until_ns = adapter.sender.valid_until_ns(order.lease_granted)
    assert begun_ns + 540 * MS <= valid_until_ns <= time.monotonic_ns() + 540 * MS
    adapter.registry.stop()


class RecordsWithoutTerms(Store):
    """Records that can be made to fail when they record a term."""

    is_broken = False

    def note_ttl(self, feed_id: int, ttl_ns: int) -> None:
        if self.is_broken:
            raise RecordsUnavailable("the disk is full")
        super().note_ttl(feed_id, ttl_ns)


def test_no_term_is_announced_that_is_longer_than_the_recorded_one(tmp_path: Path) -> None:
    cluster, _ = write_settings(tmp_path, CLUSTER)
    (feed,) = load_cluster(cluster).values()
    records = RecordsWithoutTerms(tmp_path / "leases.sqlite")
    audit = AuditLog(tmp_path)
    attendance = Attendance(feed.adapters[0], 1, 1, 0)
    keeper = LeaseKeeper(feed, records, audit, {1: attendance})
    keeper.restore()
    assert records.noted_ttl_ns(1) == 300 * MS
    keeper.lease.on_attend(1, 0)
    keeper.lease.terms.on_needless_takeover(0)

    def announced_ttl_ns() -> int:
        order = attendance.orders.get_nowait()
        assert order is not None
        return int(order.lease_granted.ttl_ns or order.lease_renewed.ttl_ns)

    records.is_broken = True
    keeper.perform(keeper.lease.on_report(1, ReplicaState.SYNCHRONIZED, 1, 1.0, 0))
    assert keeper.lease.terms.ttl_ns == 600 * MS, "the store itself uses the longer one"
    records.is_broken = False
    assert announced_ttl_ns() == 300 * MS
    keeper.perform([TermNoted(600 * MS)])
    assert records.noted_ttl_ns(1) == 600 * MS
    keeper.perform(keeper.lease.renew(1, keeper.lease.epoch, 1))
    assert announced_ttl_ns() == 600 * MS
    audit.close()
    records.close()
    assert '"lease term changed","feed":"equities","ttl_ms":600' in (tmp_path / "audit.jsonl").read_text()
