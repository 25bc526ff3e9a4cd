"""Only one process at a time may register as an adapter: the real server's answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import WAIT_S, Adapter, started_when_allowed
from tests.admin_server.cluster_files import CLUSTER, channel_as, running_server

# A term long enough that a process which sends no reports still counts as attending.
LONG_TERMS = CLUSTER.replace("lease_ttl_ms = 300", "lease_ttl_ms = 30000")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path, cluster_text=LONG_TERMS) as running:
        yield running


def refused_registration(server: AdminServer, name: str, **fields: object) -> str:
    """The server's error for a process that may not register."""
    with pytest.raises(grpc.RpcError) as refused:
        Adapter(server, name, **fields)  # type: ignore[arg-type]
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    return str(refused.value.details())


def test_the_server_refuses_a_twin_and_the_active_continues(server: AdminServer) -> None:
    active = Adapter(server, "a")
    epoch = active.await_order("lease_granted").lease_granted.epoch
    text = refused_registration(server, "a")
    assert text.startswith("another process has been registered as a since 20")
    assert "process 4711 on host 'exchange-1', from ipv4:127.0.0.1:" in text
    assert text.endswith("; stop it, or start this one with --replace")
    active.report(ReplicaState.ACTIVE, renew_epoch=epoch)
    assert active.await_order("lease_renewed").lease_renewed.epoch == epoch
    assert not active.ended.is_set()
    audit = [json.loads(line) for line in (server.folder.path / "audit.jsonl").read_text().splitlines()]
    (line,) = [line for line in audit if line["event"] == "registration refused"]
    assert (line["adapter"], line["why"], line["code"]) == ("a", text, "ALREADY_EXISTS")
    active.vanish()


def test_a_start_whose_process_is_replaced_while_it_registers_is_never_announced(server: AdminServer) -> None:
    processes, heirs = server.brokers["equities"]._state.processes, list[Adapter]()
    save = processes.save

    def save_and_be_replaced(adapter_id: int) -> None:
        processes.save = save  # type: ignore[method-assign]
        save(adapter_id)
        heirs.append(Adapter(server, "a", replace=True))

    processes.save = save_and_be_replaced  # type: ignore[method-assign]
    text = refused_registration(server, "a")
    assert text == "another process has registered as a, and replaces this one"
    (heir,) = heirs
    (known,) = [each for each in server.brokers["equities"].adapters() if each.name == "a"]
    assert known.incarnation == heir.registered.self.incarnation
    assert [start.incarnation for start in known.starts] == [heir.registered.self.incarnation]
    assert heir.await_order("lease_granted").lease_granted.epoch
    heir.vanish()


def test_a_stream_of_a_replaced_start_does_not_end_that_of_its_successor(server: AdminServer) -> None:
    former = Adapter(server, "a", attends=False)
    broker = server.brokers["equities"]
    heir = Adapter(server, "a", replace=True)
    heir.await_order("lease_granted")
    late = broker.attend(broker.feed.adapters[0], former.registered.self.incarnation, 1)
    assert broker._state.attendance_of(late.incarnation) is None
    assert broker._state.attendance_of(heir.registered.self.incarnation) is not None
    heir.report(ReplicaState.ACTIVE, 5)
    heir.await_order("report_heard")
    heir.vanish()


def test_the_server_lets_a_process_replace_another_and_notifies_the_replaced_one(server: AdminServer) -> None:
    former = Adapter(server, "a")
    epoch = former.await_order("lease_granted").lease_granted.epoch
    heir = Adapter(server, "a", replace=True)
    lost = former.await_order("lease_lost").lease_lost
    assert (lost.epoch, lost.reason) == (epoch, "another process has replaced this one as a")
    assert former.ended.wait(WAIT_S)
    with pytest.raises(grpc.RpcError, match="this process was replaced: since"):
        former.register()
    assert heir.await_order("lease_granted").lease_granted.epoch > epoch
    heir.vanish()
    former.vanish()


def test_a_process_can_register_immediately_after_a_broken_connection_or_a_restart(server: AdminServer) -> None:
    first = Adapter(server, "a")
    epoch = first.await_order("lease_granted").lease_granted.epoch
    again = Adapter(server, "a", first)
    assert again.registered.self.incarnation == first.registered.self.incarnation
    again.report(ReplicaState.ACTIVE, renew_epoch=epoch)
    assert again.await_order("lease_renewed").lease_renewed.epoch == epoch
    again.vanish()
    restarted = started_when_allowed(server, "a")
    assert restarted.registered.self.incarnation > again.registered.self.incarnation
    restarted.vanish()


def test_a_hung_process_is_replaced_without_the_replace_option(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        hung = Adapter(server, "a")
        hung.await_order("lease_granted")
        restarted = started_when_allowed(server, "a")  # the hung process sends no reports meanwhile
        assert hung.ended.wait(WAIT_S)
        restarted.vanish()
        with pytest.raises(grpc.RpcError, match="this process was replaced"):
            hung.register()
        hung.vanish()


def test_a_twin_is_refused_after_a_restart_of_the_server_even_if_it_registers_first(tmp_path: Path) -> None:
    twin = b"t" * 16
    with running_server(tmp_path, cluster_text=LONG_TERMS) as server:
        active = Adapter(server, "a")
        active.await_order("lease_granted")
        refused_registration(server, "a", nonce=twin)
    with running_server(tmp_path, cluster_text=LONG_TERMS) as server:
        with pytest.raises(grpc.RpcError, match="another process was registered as a: process 4711") as awaited:
            Adapter(server, "a", nonce=twin)
        assert awaited.value.code() is grpc.StatusCode.UNAVAILABLE  # repeat the request
        returned = Adapter(server, "a", active)
        assert refused_registration(server, "a", nonce=twin).startswith(
            "another process has been registered as a since"
        )
        returned.vanish()
    active.vanish()


def test_after_a_restart_a_process_registers_if_the_registered_one_does_not_return_in_time(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        gone = Adapter(server, "a")
        gone.await_order("lease_granted")
    with running_server(tmp_path) as server:
        heir = started_when_allowed(server, "a")
        with pytest.raises(grpc.RpcError, match="this process was replaced"):
            Adapter(server, "a", gone)
        heir.vanish()
    gone.vanish()


def test_after_a_restart_no_process_waits_for_one_that_had_left(tmp_path: Path) -> None:
    with running_server(tmp_path, cluster_text=LONG_TERMS) as server:
        former = Adapter(server, "a")
        former.await_order("lease_granted")
        former.vanish()
        audit, give_up_at_s = server.folder.path / "audit.jsonl", time.monotonic() + WAIT_S
        while '"left"' not in audit.read_text():
            assert time.monotonic() < give_up_at_s
            time.sleep(0.01)
    with running_server(tmp_path, cluster_text=LONG_TERMS) as server:
        Adapter(server, "a").vanish()


def test_a_registration_with_a_bad_nonce_is_refused_with_the_expected_size(server: AdminServer) -> None:
    with channel_as(server, "adapter-a") as channel:
        stub = admin_pb2_grpc.AdapterRegistryStub(channel)
        with pytest.raises(grpc.RpcError, match="process_nonce has 3 bytes, expected 16") as refused:
            stub.Register(
                admin_pb2.RegisterRequest(feed="equities", adapter="a", process_nonce=b"abc", public_key=bytes(32))
            )
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
