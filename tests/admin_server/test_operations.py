"""Hand-over, failing and readmission at the real server, requested by administrators and by adapters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import CLUSTER, THIRD_ADAPTER, channel_as, running_server

# Terms long enough that none expires during a test, even on a slow machine.
LONG_TERMS = CLUSTER.replace("lease_ttl_ms = 300", "lease_ttl_ms = 20000") + THIRD_ADAPTER
SHORT_TERMS = CLUSTER.replace("lease_ttl_ms = 300", "lease_ttl_ms = 500")
WAIT_S = 60
ACTIVE, SYNCHRONIZED = ReplicaState.ACTIVE, ReplicaState.SYNCHRONIZED


class Feed:
    """A server with the active adapter a, and with synchronised backups."""

    def __init__(self, server: AdminServer, *backups: str) -> None:
        self.server = server
        self.active = Adapter(server, "a")
        self.backups = {name: Adapter(server, name) for name in backups}
        self.epoch = self.active.await_order("lease_granted").lease_granted.epoch
        self.active.report(ACTIVE, 100, renew_epoch=self.epoch)
        self.active.await_order("lease_renewed")
        for number, adapter in enumerate(self.backups.values()):
            adapter.report(SYNCHRONIZED, 100 - number, report_id=5)
            while adapter.await_order("report_heard").report_heard.report_id != 5:
                pass
        self._channel = channel_as(server, "operator")
        self.operations = admin_pb2_grpc.OperationsStub(self._channel)
        self._callers = ThreadPoolExecutor(1)

    def ask(self, call: Callable[..., Any], request: Any) -> Future[Any]:
        """Call as an administrator in the background, while the test controls the adapters."""
        return self._callers.submit(call, request, timeout=WAIT_S)

    def failed_reasons(self) -> dict[str, str]:
        """The reasons that status shows, by adapter."""
        (feed,) = self.operations.GetStatus(admin_pb2.GetStatusRequest()).feeds
        return {row.adapter.name: row.failed_reason for row in feed.adapters if row.failed_reason}

    def audit(self, event: str) -> list[dict[str, Any]]:
        """The log's lines of one event."""
        lines = (self.server.folder.path / "audit.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def close(self) -> None:
        for adapter in (self.active, *self.backups.values()):
            adapter.vanish()
        self._callers.shutdown()
        self._channel.close()


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path, cluster_text=LONG_TERMS) as server:
        yield server


@pytest.fixture
def feed(patient: AdminServer) -> Iterator[Feed]:
    made = Feed(patient, "b", "c")
    yield made
    made.close()


def refused(call: Callable[..., Any], request: Any, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION) -> str:
    with pytest.raises(grpc.RpcError) as error:
        call(request, timeout=WAIT_S)
    assert error.value.code() is code
    return str(error.value.details())


def test_a_failover_answers_when_the_heir_holds_the_next_epoch(feed: Feed) -> None:
    asked = feed.ask(feed.operations.Failover, admin_pb2.FailoverRequest(feed="equities"))
    offered = feed.backups["b"].await_order("lease_offered").lease_offered
    assert (offered.after_epoch, offered.ttl_ns, offered.report_id) == (feed.epoch, 20_000_000_000, 5)
    feed.backups["b"].report(SYNCHRONIZED, 100, accepted_epoch=offered.epoch)
    ordered = feed.active.await_order("hand_over").hand_over
    assert (ordered.epoch, ordered.heir_adapter_id) == (feed.epoch, 2)
    assert not asked.done()
    feed.active.report(SYNCHRONIZED, 100, released_epoch=feed.epoch)
    reply = asked.result(WAIT_S)
    assert (reply.active, reply.epoch) == ("b", offered.epoch)
    assert offered.epoch > feed.epoch
    feed.backups["b"].report(ACTIVE, 101, renew_epoch=offered.epoch)
    assert feed.backups["b"].await_order("lease_renewed").lease_renewed.epoch == offered.epoch
    (line,) = feed.audit("hand-over requested")
    assert (line["by"], line["heir"]) == ("operator", "b")
    assert [line["former"] for line in feed.audit("lease handed over")] == [1]


def test_the_heirs_first_renewal_also_completes_a_failover(feed: Feed) -> None:
    asked = feed.ask(feed.operations.Failover, admin_pb2.FailoverRequest(feed="equities", to="c"))
    offered = feed.backups["c"].await_order("lease_offered").lease_offered
    feed.backups["c"].report(ACTIVE, 101, renew_epoch=offered.epoch, report_id=9)
    renewed = feed.backups["c"].await_order("lease_renewed").lease_renewed
    assert (renewed.epoch, renewed.report_id) == (offered.epoch, 9)
    assert asked.result(WAIT_S).active == "c"


def test_an_impossible_failover_is_refused_with_the_reason(feed: Feed) -> None:
    call = feed.operations.Failover
    assert "a is already active" in refused(call, admin_pb2.FailoverRequest(feed="equities", to="a"))
    unknown = refused(call, admin_pb2.FailoverRequest(feed="equities", to="z"), grpc.StatusCode.NOT_FOUND)
    assert unknown == "feed 'equities' has no adapter 'z'; it has a, b, c"
    feed.backups["b"].vanish()
    assert feed.active.ended.wait(0) is False
    give_up_at_s = time.monotonic() + WAIT_S
    while "b is away" not in refused(call, admin_pb2.FailoverRequest(feed="equities", to="b")):
        assert time.monotonic() < give_up_at_s


def test_a_failover_that_the_active_ignores_is_withdrawn_within_a_term(tmp_path: Path) -> None:
    with running_server(tmp_path, cluster_text=SHORT_TERMS) as server:
        feed = Feed(server, "b")
        asked = feed.ask(feed.operations.Failover, admin_pb2.FailoverRequest(feed="equities"))
        while not asked.done():
            feed.active.report(ACTIVE, 100, renew_epoch=feed.epoch)
            feed.active.await_order("lease_renewed")
            feed.backups["b"].report(SYNCHRONIZED, 100)
        with pytest.raises(grpc.RpcError, match="b did not take over"):
            asked.result()
        offered = feed.backups["b"].await_order("lease_offered").lease_offered
        assert feed.backups["b"].await_order("lease_lost").lease_lost.epoch == offered.epoch
        (feed_status,) = feed.operations.GetStatus(admin_pb2.GetStatusRequest()).feeds
        assert (feed_status.active_adapter_id, feed_status.epoch) == (1, feed.epoch)
        assert len(feed.audit("offer withdrawn")) == 1
        feed.close()


def test_an_active_can_request_a_hand_over(feed: Feed) -> None:
    feed.active.report(ACTIVE, 100, hand_over_epoch=feed.epoch + 1)  # of another epoch: ignored
    feed.active.report(ACTIVE, 100, hand_over_epoch=feed.epoch)
    feed.backups["b"].accept_offer()
    assert feed.active.await_order("hand_over").hand_over.epoch == feed.epoch
    feed.active.report(SYNCHRONIZED, 100, released_epoch=feed.epoch)
    changed = feed.backups["c"].await_order("cluster_changed").cluster_changed
    while changed.active_adapter_id != 2:
        changed = feed.backups["c"].await_order("cluster_changed").cluster_changed
    assert changed.epoch > feed.epoch


def test_an_active_can_request_a_hand_over_to_a_named_backup(feed: Feed) -> None:
    feed.backups["c"].report(SYNCHRONIZED, 90)  # b would be better
    feed.active.report(ACTIVE, 100, hand_over_epoch=feed.epoch, hand_over_heir=7)  # not an adapter of the feed: ignored
    feed.active.report(ACTIVE, 100, hand_over_epoch=feed.epoch, hand_over_heir=3)
    feed.backups["c"].accept_offer()
    assert feed.active.await_order("hand_over").hand_over.epoch == feed.epoch


def test_the_holder_can_request_a_new_epoch(feed: Feed) -> None:
    feed.active.report(ACTIVE, 100, next_epoch_after=feed.epoch)
    granted = feed.active.await_order("lease_granted").lease_granted.epoch
    assert granted > feed.epoch
    feed.active.report(ACTIVE, 100, renew_epoch=granted)
    assert feed.active.await_order("lease_renewed").lease_renewed.epoch == granted


def test_of_two_backups_that_ask_to_be_failed_one_stays(feed: Feed) -> None:
    for adapter in feed.backups.values():
        adapter.report(SYNCHRONIZED, 100, fail_reason="out of sync three times")
    give_up_at_s = time.monotonic() + WAIT_S
    while not (feed.audit("adapter failed") and feed.audit("adapter not failed")):
        assert time.monotonic() < give_up_at_s
        feed.failed_reasons()
    (failed,), (refusal,) = feed.audit("adapter failed"), feed.audit("adapter not failed")
    assert {failed["adapter"], refusal["adapter"]} == {"b", "c"}
    assert (failed["by"], failed["reason"]) == (failed["adapter"], "out of sync three times")
    assert refusal["why"] == f"{refusal['adapter']} is the last synchronised backup"
    assert feed.backups[failed["adapter"]].await_order("failed").failed.reason == "out of sync three times"
    assert feed.failed_reasons() == {failed["adapter"]: "out of sync three times"}


def test_a_failed_adapter_stays_failed_across_restarts_until_it_is_readmitted(tmp_path: Path) -> None:
    request = admin_pb2.FailAdapterRequest(feed="equities", adapter="c", reason="being repaired")
    readmission = admin_pb2.ReadmitAdapterRequest(feed="equities", adapter="c")
    with running_server(tmp_path, cluster_text=LONG_TERMS) as server:
        feed = Feed(server, "b", "c")
        feed.operations.FailAdapter(request)
        assert feed.backups["c"].await_order("failed").failed.reason == "being repaired"
        feed.close()
    with running_server(tmp_path, cluster_text=LONG_TERMS) as server, channel_as(server, "operator") as channel:
        operations = admin_pb2_grpc.OperationsStub(channel)
        adapter = Adapter(server, "c", replace=True)
        assert adapter.await_order("failed").failed.reason == "being repaired"
        operations.ReadmitAdapter(readmission)
        adapter.await_order("readmitted")
        assert refused(operations.ReadmitAdapter, readmission) == "c is neither failed nor drained"
        adapter.vanish()
        again = Adapter(server, "c")
        again.report(report_id=3)
        again.await_order("report_heard")
        assert all(order.WhichOneof("order") != "failed" for order in _orders(again))
        again.vanish()
        audit = (server.folder.path / "audit.jsonl").read_text()
        assert '"adapter readmitted"' in audit


def _orders(adapter: Adapter) -> list[admin_pb2.AdapterOrder]:
    return [adapter.orders.get_nowait() for _ in range(adapter.orders.qsize())]


def test_an_adapter_that_reported_its_own_failure_can_be_readmitted(feed: Feed) -> None:
    feed.backups["c"].report(ReplicaState.FAILED, 1, report_id=6)
    while feed.backups["c"].await_order("report_heard").report_heard.report_id != 6:
        pass
    feed.operations.ReadmitAdapter(admin_pb2.ReadmitAdapterRequest(feed="equities", adapter="c"))
    feed.backups["c"].await_order("readmitted")


def test_the_last_synchronised_backup_is_failed_only_with_force(feed: Feed) -> None:
    call = feed.operations.FailAdapter
    call(admin_pb2.FailAdapterRequest(feed="equities", adapter="c", reason="slow"))
    last = admin_pb2.FailAdapterRequest(feed="equities", adapter="b", reason="slower")
    assert refused(call, last) == "b is the last synchronised backup"
    last.force = True
    call(last)
    assert feed.failed_reasons() == {"b": "slower", "c": "slow"}
    no_reason = admin_pb2.FailAdapterRequest(feed="equities", adapter="b")
    assert "a reason is required" in refused(call, no_reason, grpc.StatusCode.INVALID_ARGUMENT)


def test_an_active_hands_over_before_it_is_failed(feed: Feed) -> None:
    asked = feed.ask(
        feed.operations.FailAdapter, admin_pb2.FailAdapterRequest(feed="equities", adapter="a", reason="old machine")
    )
    feed.backups["b"].accept_offer()
    feed.active.await_order("hand_over")
    assert feed.failed_reasons() == {}
    feed.active.report(SYNCHRONIZED, 100, released_epoch=feed.epoch)
    asked.result(WAIT_S)
    assert feed.active.await_order("failed").failed.reason == "old machine"
    assert feed.failed_reasons() == {"a": "old machine"}


def test_an_active_with_only_one_backup_is_failed_only_with_force(tmp_path: Path) -> None:
    with running_server(tmp_path, cluster_text=SHORT_TERMS.replace("_ms = 500", "_ms = 20000")) as server:
        feed = Feed(server, "b")
        request = admin_pb2.FailAdapterRequest(feed="equities", adapter="a", reason="old machine")
        text = refused(feed.operations.FailAdapter, request)
        assert text.startswith("without a, b would be active with no synchronised backup; use --force")
        request.force = True
        asked = feed.ask(feed.operations.FailAdapter, request)
        feed.backups["b"].accept_offer()
        feed.active.await_order("hand_over")
        feed.active.report(SYNCHRONIZED, 100, released_epoch=feed.epoch)
        asked.result(WAIT_S)
        assert feed.failed_reasons() == {"a": "old machine"}
        feed.close()


def test_only_admins_can_request_operations(patient: AdminServer) -> None:
    with channel_as(patient, "adapter-a") as channel:
        operations = admin_pb2_grpc.OperationsStub(channel)
        code = grpc.StatusCode.PERMISSION_DENIED
        refused(operations.Failover, admin_pb2.FailoverRequest(feed="equities"), code)
        refused(operations.FailAdapter, admin_pb2.FailAdapterRequest(feed="equities", adapter="b", reason="x"), code)
        refused(operations.ReadmitAdapter, admin_pb2.ReadmitAdapterRequest(feed="equities", adapter="b"), code)
