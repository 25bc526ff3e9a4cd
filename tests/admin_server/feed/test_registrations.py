"""Only one process at a time may register as an adapter: the decisions, and the real server's answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tandemfeed.admin_server.feed.registrations import (
    AnotherProcess,
    ProcessRecord,
    ProcessStart,
    Registrations,
    ReturnAwaited,
)
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import WAIT_S, Adapter, started_when_allowed
from tests.admin_server.cluster_files import CLUSTER, channel_as, running_server

MS = 1_000_000
ATTENDED_NS = 1_000 * MS
FIRST = ProcessStart(b"1" * 16, 4711, "exchange-1", "ipv4:10.0.0.1:5000")
SECOND = ProcessStart(b"2" * 16, 4712, "exchange-2", "ipv4:10.0.0.2:5000")
THIRD = ProcessStart(b"3" * 16)
# A term long enough that a process which sends no reports still counts as attending.
LONG_TERMS = CLUSTER.replace("lease_ttl_ms = 300", "lease_ttl_ms = 30000")
SINCE_UNIX_NS = 86_401 * 1_000_000_000  # 1970-01-02T00:00:01Z


def registered(*starts: ProcessStart) -> Registrations:
    """Registrations in which these processes have registered as adapter 1, in this order."""
    registrations = Registrations(ATTENDED_NS)
    for start in starts:
        registrations.note(1, start, SINCE_UNIX_NS)
    return registrations


def test_a_second_process_is_refused_while_the_first_attends_and_the_error_names_the_first() -> None:
    with pytest.raises(AnotherProcess) as refused:
        registered(FIRST).check(1, "a", SECOND, heard_at_ns=5, now_ns=5 + ATTENDED_NS)
    assert str(refused.value) == (
        "another process has been registered as a since 1970-01-02T00:00:01Z: process 4711 on host 'exchange-1', from "
        "ipv4:10.0.0.1:5000; stop it, or start this one with --replace"
    )


def test_the_description_of_a_process_omits_what_is_unknown() -> None:
    assert str(THIRD) == "a process, from an unknown address"


def test_a_process_that_is_away_or_hung_does_not_prevent_another_from_registering() -> None:
    registered(FIRST).check(1, "a", SECOND, heard_at_ns=None, now_ns=5)
    registered(FIRST).check(1, "a", SECOND, heard_at_ns=5, now_ns=6 + ATTENDED_NS)


def test_the_same_process_and_processes_of_other_adapters_are_not_refused() -> None:
    registered(FIRST).check(1, "a", FIRST, heard_at_ns=5, now_ns=5)
    registered(FIRST).check(2, "b", SECOND, heard_at_ns=5, now_ns=5)


def test_a_process_can_replace_another_which_is_then_refused() -> None:
    registrations = registered(FIRST)
    registrations.check(1, "a", SECOND, heard_at_ns=5, now_ns=5, is_replacing=True)
    registrations.note(1, SECOND, SINCE_UNIX_NS)
    for is_replacing in (False, True):
        with pytest.raises(AnotherProcess, match=r"this process was replaced: since .* process 4712 on host"):
            registrations.check(1, "a", FIRST, heard_at_ns=None, now_ns=5, is_replacing=is_replacing)
    registrations.check(1, "a", THIRD, heard_at_ns=None, now_ns=5)


def test_a_process_that_registers_again_replaces_no_other() -> None:
    registrations = registered(FIRST, FIRST, SECOND, SECOND)
    registrations.check(1, "a", SECOND, heard_at_ns=5, now_ns=5)
    registrations.check(1, "a", THIRD, heard_at_ns=None, now_ns=5)


# ---- after a restart of the server ----


def restarted(record: ProcessRecord | None, began_at_ns: int = 0) -> Registrations:
    """The registrations of a restarted server, with this record of adapter 1."""
    assert record is not None
    return Registrations(ATTENDED_NS, {1: record}, began_at_ns=began_at_ns)


def test_after_a_restart_other_processes_wait_for_the_registered_one_to_return() -> None:
    registrations = restarted(registered(FIRST).record(1), began_at_ns=7)
    for now_ns in (7, 7 + ATTENDED_NS):
        with pytest.raises(ReturnAwaited) as awaited:
            registrations.check(1, "a", SECOND, heard_at_ns=None, now_ns=now_ns)
    assert str(awaited.value) == (
        "the admin server has just started, and another process was registered as a: process 4711 on host "
        "'exchange-1', from ipv4:10.0.0.1:5000; if it does not return within 1 s, this one may register"
    )
    registrations.check(1, "a", SECOND, heard_at_ns=None, now_ns=8 + ATTENDED_NS)
    registrations.check(2, "b", SECOND, heard_at_ns=None, now_ns=7)


def test_after_a_restart_the_registered_process_can_return_immediately_and_its_twin_is_still_refused() -> None:
    registrations = restarted(registered(FIRST).record(1))
    registrations.check(1, "a", FIRST, heard_at_ns=None, now_ns=1)
    registrations.note(1, FIRST, SINCE_UNIX_NS)
    with pytest.raises(AnotherProcess, match="another process has been registered as a since"):
        registrations.check(1, "a", SECOND, heard_at_ns=1, now_ns=2)


def test_after_a_restart_others_do_not_wait_for_a_process_that_had_left() -> None:
    registrations = registered(FIRST)
    registrations.note_attended(1, False)
    restarted(registrations.record(1)).check(1, "a", SECOND, heard_at_ns=None, now_ns=1)
    registrations.note(1, FIRST, SINCE_UNIX_NS)  # it has returned
    with pytest.raises(ReturnAwaited):
        restarted(registrations.record(1)).check(1, "a", SECOND, heard_at_ns=None, now_ns=1)


def test_after_a_restart_a_replaced_process_is_refused_and_a_replacing_one_need_not_wait() -> None:
    registrations = restarted(registered(FIRST, SECOND).record(1))
    with pytest.raises(AnotherProcess, match="this process was replaced"):
        registrations.check(1, "a", FIRST, heard_at_ns=None, now_ns=9 * ATTENDED_NS)
    registrations.check(1, "a", THIRD, heard_at_ns=None, now_ns=1, is_replacing=True)


# ---- the real server ----


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
