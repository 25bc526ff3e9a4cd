"""To whom the real server announces the starts of adapters, and with which data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.transport.sealing.announced_starts import announced_starts
from tandemfeed.transport.sealing.start_keys import Purpose, SealingKey, derive_cipher
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2
from tests.admin_server.adapter_by_hand import Adapter, started_when_allowed
from tests.admin_server.cluster_files import channel_as, running_server
from tests.admin_server.subscriber_by_hand import grants, keys_of

KEY = bytes(range(32))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path) as running:
        yield running


def grant_of(server: AdminServer) -> admin_pb2.Grant:
    with channel_as(server, "reader") as channel:
        return next(grants(channel))


def test_a_start_is_announced_to_adapters_and_clients_when_it_registers(server: AdminServer) -> None:
    present = Adapter(server, "a")
    present.await_order("lease_granted")
    with channel_as(server, "adapter-b") as channel:
        registered = admin_pb2_grpc.AdapterRegistryStub(channel).Register(
            admin_pb2.RegisterRequest(
                feed="equities", adapter="b", rpc_endpoint="127.0.0.1:2", public_key=KEY, process_nonce=bytes(16)
            )
        )
    (fresh,) = registered.self.starts
    assert dict(fresh.next_packet_counters) == {1: 1}
    assert {key.key_id for key in registered.decision_keys} == {key.key_id for key in registered.keys}
    announced: list[common_pb2.AdapterStart] = []
    while fresh not in announced:
        changed = present.await_order("cluster_changed").cluster_changed
        announced = [start for adapter in changed.adapters for start in adapter.starts]
    assert changed.decision_keys == registered.decision_keys
    assert fresh in [start for adapter in grant_of(server).adapters for start in adapter.starts]
    present.vanish()


def test_a_grant_contains_the_packet_counters_of_each_adapter(server: AdminServer) -> None:
    adapter = Adapter(server, "a")
    report = admin_pb2.AdapterReport(report_id=1_000, next_packet_counters={1: 77})
    report.state.adapter_id = 1
    adapter._reports.put(report)
    while adapter.await_order("report_heard").report_heard.report_id != 1_000:
        pass
    (start,) = grant_of(server).adapters[0].starts
    assert dict(start.next_packet_counters) == {1: 77}
    adapter.vanish()


def test_no_reader_ever_receives_a_decision_key(server: AdminServer) -> None:
    adapter = Adapter(server, "a")
    adapter.await_order("lease_granted")
    secrets = [half.key for half in adapter.registered.decision_keys]
    assert secrets
    assert all(len(secret) == 32 for secret in secrets)
    with channel_as(server, "reader") as channel:
        stub = admin_pb2_grpc.StreamAdministrationStub(channel)
        updates = grants(channel)
        heard = [next(updates)]
        other = Adapter(server, "b")  # causes an update
        heard.append(next(updates))
        replies = [*heard, stub.ListFeeds(admin_pb2.ListFeedsRequest())]
    everything = b"".join(each.SerializeToString() for each in replies)
    assert keys_of(heard[0])[0].key in everything
    assert not [secret for secret in secrets if secret in everything]
    for each in (adapter, other):
        each.vanish()


def test_a_start_without_a_public_key_is_refused(server: AdminServer) -> None:
    with channel_as(server, "adapter-a") as channel, pytest.raises(grpc.RpcError, match="32") as refused:
        admin_pb2_grpc.AdapterRegistryStub(channel).Register(
            admin_pb2.RegisterRequest(feed="equities", adapter="a", public_key=b"short")
        )
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_adapter_that_returns_keeps_its_start_and_reports_its_counters(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        adapter = Adapter(server, "a")
        adapter.await_order("lease_granted")
        adapter.vanish()
    with running_server(tmp_path) as server:
        (unheard,) = grant_of(server).adapters[0].starts
        assert (unheard.salt, dict(unheard.next_packet_counters)) == (adapter.start.salt, {})
        back = Adapter(server, "a", resumes=adapter)
        assert (back.start.incarnation, back.start.salt) == (adapter.start.incarnation, adapter.start.salt)
        (heard,) = grant_of(server).adapters[0].starts
        assert dict(heard.next_packet_counters) == {1: 5_000}
        back.vanish()


def test_a_state_folder_restored_from_a_backup_repeats_no_key_of_a_start(
    tmp_path: Path,
) -> None:
    seen = []
    with running_server(tmp_path) as server:
        Adapter(server, "a").vanish()
        folder = server.folder.path
    backup = tmp_path / "backup"
    shutil.copytree(folder, backup)
    for _ in range(2):
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
        with running_server(tmp_path) as server:
            adapter = started_when_allowed(server, "a")
            (start,) = announced_starts([common_pb2.AdapterDescription(adapter_id=1, starts=[adapter.start])])
            key = adapter.registered.keys[0]  # of the backup: the restart has replaced it, and it expires soon
            cipher = derive_cipher(SealingKey(key.key_id, 1, key.key), start, 1, Purpose.SEALING)
            seen.append((adapter.start.incarnation, key.key, cipher.encrypt(bytes(12), b"the same packet", b"")))
            adapter.vanish()
    (first, first_key, first_sealed), (second, second_key, second_sealed) = seen
    assert (first, first_key) == (second, second_key), "the restored folder repeats the incarnation and the key"
    assert first_sealed != second_sealed
