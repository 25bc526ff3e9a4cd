"""Records in a real ZooKeeper: leaders write and continue them; stale leaders and strangers have no access."""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.exceptions import NoAuthError

from tandemfeed.admin_server.records.leadership import Fence
from tandemfeed.admin_server.records.lease_records import EPOCH_BLOCK, RecordsUnavailable
from tandemfeed.admin_server.records.store import Store
from tandemfeed.admin_server.records.zookeeper import (
    ZooKeeperRefused,
    ZooKeeperSettings,
    connect,
    note_fingerprint,
    read,
)
from tandemfeed.admin_server.records.zookeeper_records import Deposed
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import running_server
from tests.admin_server.conftest import EndedProcess
from tests.admin_server.records.leader_by_hand import WAIT_S, Leader, leading
from tests.admin_server.records.zookeeper_server import ZooKeeperServer, needs_zookeeper, running_zookeeper

SESSION_MS = 20_000  # no test waits for its end, because candidates leave explicitly


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper") / "server") as server:
        yield server


@pytest.fixture
def settings(zookeeper: ZooKeeperServer, tmp_path: Path) -> ZooKeeperSettings:
    return ZooKeeperSettings(zookeeper.hosts, f"/{tmp_path.name}", session_ms=SESSION_MS)


@needs_zookeeper
def test_a_stale_leaders_writes_are_refused_and_change_nothing(settings: ZooKeeperSettings) -> None:
    cluster_key = secrets.token_bytes(32)
    with leading(settings, cluster_key) as first:
        stale = first.lead()
        stale.note_lease(1, 3, 1)
        stale.reserve_epochs(1, 0)
        client = connect(settings)  # acts as a server that takes over while the first is paused
        try:
            _, version = read(client, f"{settings.root}/leader", WAIT_S)
            client.set(f"{settings.root}/leader", b'{"endpoint": "two:2", "validity_ns": 0}', version)
            stale.note_lease(1, 4, 2)  # does not wait, so it cannot raise
            for write in (
                lambda: stale.reserve_epochs(1, 64),
                lambda: stale.new_start(1, 1, bytes(32)),
                lambda: stale.note_registration(1, 1, 9, "x:1"),
                lambda: stale.stream_keys(1, 1),
            ):
                with pytest.raises(Deposed):
                    write()
            assert not stale.may_grant()
            assert first.is_closed.wait(WAIT_S)
        finally:
            client.stop()
            client.close()
    with leading(settings, cluster_key) as second:
        records = second.lead()
        assert (records.last_lease(1), records.reserved_end(1), records.registrations(1)) == ((3, 1), EPOCH_BLOCK, {})


@needs_zookeeper
def test_the_standby_takes_over_immediately_when_the_leader_leaves(settings: ZooKeeperSettings) -> None:
    cluster_key = secrets.token_bytes(32)
    first = Leader(settings, cluster_key, "one:1")
    stale = first.lead()
    stale.note_lease(1, 7, 2)
    with leading(settings, cluster_key, "two:2") as second:
        assert not second.is_open.wait(0.5)
        assert second.followed == "one:1"
        first.election.stop()
        assert first.is_closed.is_set()
        assert second.lead().last_lease(1) == (7, 2)
        with pytest.raises(RecordsUnavailable):
            stale.reserve_epochs(1, 0)


@needs_zookeeper
def test_a_successor_waits_for_the_validity_that_its_predecessor_recorded(settings: ZooKeeperSettings) -> None:
    client = connect(settings)  # acts as a server that died as the leader
    try:
        client.create(f"{settings.root}/leader", b'{"endpoint": "gone:1", "validity_ns": 1500000000}')
    finally:
        client.stop()
        client.close()
    began_at_s = time.monotonic()
    with leading(settings, secrets.token_bytes(32)) as successor:
        successor.lead()
        assert time.monotonic() - began_at_s >= 1.5


@needs_zookeeper
def test_stream_keys_are_sealed_and_only_readable_with_the_credential(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    root = f"/{tmp_path.name}"
    ours = ZooKeeperSettings(zookeeper.hosts, root, "feeds:secret", session_ms=SESSION_MS)
    cluster_key = secrets.token_bytes(32)
    with leading(ours, cluster_key) as leader:
        (key,) = leader.lead().stream_keys(1, 1)
        stored, _ = leader.client.get(f"{root}/feeds/1/keys/1")
        leader.lead().note_document("identities", "reader", b"a verifier")
        assert b"a verifier" not in leader.client.get(f"{root}/identities/reader")[0]
        for secret in (key.key, key.decision_key):
            assert secret not in stored
            assert secret.hex().encode() not in stored
    stranger = connect(ZooKeeperSettings(zookeeper.hosts, "/elsewhere", session_ms=SESSION_MS))
    try:
        for path in (f"{root}/feeds/1/keys/1", f"{root}/leader"):
            with pytest.raises(NoAuthError):
                stranger.get(path)
            with pytest.raises(NoAuthError):
                stranger.set(path, b"{}")
    finally:
        stranger.stop()
        stranger.close()
    for credential in ("", "feeds:wrong"):
        with pytest.raises(ZooKeeperRefused, match="--zookeeper-auth-file"):
            connect(ZooKeeperSettings(zookeeper.hosts, root, credential, session_ms=SESSION_MS))


@needs_zookeeper
def test_keys_sealed_with_another_cluster_key_are_refused(settings: ZooKeeperSettings) -> None:
    with leading(settings, secrets.token_bytes(32)) as leader:
        leader.lead().stream_keys(1, 1)
        leader.lead().new_start(1, 1, bytes(32))
    with leading(settings, secrets.token_bytes(32)) as other:
        records = other.lead()
        with pytest.raises(OSError, match=r"feed 1 adapter 1 incarnation 1.*cluster\.key"):
            records.starts(1)
        with pytest.raises(OSError, match=r"feed 1 channel 1 key \d+.*cluster\.key"):
            records.stream_keys(1, 1)


@needs_zookeeper
def test_a_server_with_another_authority_is_refused(settings: ZooKeeperSettings, tmp_path: Path) -> None:
    client = connect(settings)
    try:
        note_fingerprint(client, settings, "aa", tmp_path)
        note_fingerprint(client, settings, "aa", tmp_path)
        with pytest.raises(ZooKeeperRefused, match=r"copy ca\.pem"):
            note_fingerprint(client, settings, "bb", tmp_path)
    finally:
        client.stop()
        client.close()


def test_while_its_records_forbid_grants_a_broker_neither_grants_renews_nor_takes_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(tmp_path) as server:
        holder = Adapter(server, "a")
        epoch = holder.await_order("lease_granted").lease_granted.epoch
        monkeypatch.setattr(Store, "may_grant", lambda _store: False)
        backup = Adapter(server, "b")
        backup.report(ReplicaState.SYNCHRONIZED, 50)
        backup.await_order("cluster_changed")
        holder.report(ReplicaState.ACTIVE, renew_epoch=epoch, report_id=9)
        holder.report(ReplicaState.ACTIVE, renew_epoch=epoch + 1, report_id=10)
        broker, kinds = server.brokers["equities"], []
        give_up_at_s = time.monotonic() + WAIT_S
        while broker.lease.epoch == epoch:  # until its term passes, and the core grants the next epoch
            with suppress(queue.Empty):
                kinds.append(backup.orders.get(timeout=0.05).WhichOneof("order"))
            backup.report(ReplicaState.SYNCHRONIZED, 50)
            assert time.monotonic() < give_up_at_s
        for adapter in (holder, backup):
            kinds += [adapter.orders.get().WhichOneof("order") for _ in range(adapter.orders.qsize())]
            adapter.vanish()
        assert not {"lease_granted", "lease_renewed", "lease_lost"} & set(kinds)


def test_a_confirmation_counts_from_its_request_and_a_closed_fence_allows_nothing() -> None:
    fence = Fence(validity_ns=100)
    assert not fence.allows_grants(0)
    fence.confirm(1_000)  # the time of the answer does not matter
    assert fence.allows_grants(1_099)
    assert not fence.allows_grants(1_100)
    fence.confirm(1_050)
    fence.confirm(1_020)  # an answer out of order does not shorten it
    assert fence.allows_grants(1_149)
    fence.close()
    fence.confirm(2_000)
    assert not fence.allows_grants(2_001)


class BrokenLeader(Leader):
    """A candidate that fails when it becomes active."""

    def open(self) -> None:
        raise ValueError("broken")


@needs_zookeeper
def test_a_server_whose_election_fails_stops_leading_and_ends_and_another_leads(
    settings: ZooKeeperSettings, ended_process: EndedProcess
) -> None:
    cluster_key = secrets.token_bytes(32)
    broken = BrokenLeader(settings, cluster_key)
    assert ended_process.reasons() == ["election: broken"]
    assert broken.is_closed.wait(WAIT_S)
    assert broken.records is not None
    assert not broken.records.may_grant()
    broken.election.stop()
    with leading(settings, cluster_key, "two:2") as other:
        assert other.lead().may_grant()
