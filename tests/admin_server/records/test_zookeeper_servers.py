"""Two admin server processes on a real ZooKeeper: servers are killed, paused and stopped, and so is ZooKeeper."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from tandemfeed.admin_server.command.admin_command import main as admin
from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.login.grant_stream import GrantLetter, GrantStream
from tandemfeed.client_lib.login.session import Session
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.calls.admin_servers import active_named_by
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import CLUSTER, ca_of, secret_of, write_settings
from tests.admin_server.records.zookeeper_pair import WAIT_S, FollowingAdapter, Pair, await_serving, is_alive
from tests.admin_server.records.zookeeper_server import ZooKeeperServer, needs_zookeeper, running_zookeeper
from tests.admin_server.test_admin_process import STOP_TIMEOUT_S, ServerProcess

pytestmark = [pytest.mark.processes, needs_zookeeper]
# Long enough that a lease outlives a change of the server, however slow the machine.
LONG_LEASE = CLUSTER.replace("lease_ttl_ms = 300", "lease_ttl_ms = 30000")
MakePair = Callable[[str], Pair]


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with running_zookeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def make_pair(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[MakePair]:
    with ExitStack() as opened:
        yield lambda cluster: Pair(tmp_path, zookeeper, cluster, opened)


def audit_of(server: ServerProcess, event: str) -> list[dict[str, object]]:
    lines = (server.folder.path / "audit.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["event"] == event]


def refusal_of(server: ServerProcess) -> grpc.RpcError:
    """The server's error for a call."""
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) as channel, pytest.raises(grpc.RpcError) as refused:
        admin_pb2_grpc.AuthenticationStub(channel).Begin(
            admin_pb2.BeginAuthenticationRequest(client_first="n,,n=reader,r=x"), timeout=WAIT_S
        )
    return refused.value


def await_hint(standby: ServerProcess, active: ServerProcess) -> None:
    """Call the standby until it names the active server."""
    give_up_at_s = time.monotonic() + WAIT_S
    while active_named_by(refusal_of(standby)) != active.endpoint:
        assert time.monotonic() < give_up_at_s, "the standby never named the active server"


class Reader:
    """A client's subscription without its data stream."""

    def __init__(self, pair: Pair) -> None:
        self._letters: queue.SimpleQueue[GrantLetter] = queue.SimpleQueue()
        session = Session(pair.addresses, ca_of(pair.secret_folder), "reader", secret_of(pair.secret_folder, "reader"))
        self._grants = GrantStream(session)
        _, self.first = self._grants.subscribe("equities", (), self._letters.put, WAIT_S)

    def await_grant(self, wanted: Callable[[Grant], bool]) -> Grant:
        while True:
            letter = self._letters.get(timeout=WAIT_S)
            assert isinstance(letter, Grant), letter
            if wanted(letter):
                return letter

    def close(self) -> None:
        self._grants.close()


def test_a_standby_is_healthy_names_the_active_server_and_refuses_calls(make_pair: MakePair) -> None:
    pair = make_pair(CLUSTER)
    await_serving(pair.second, is_serving=False)
    assert is_alive(pair.second)
    refusal = refusal_of(pair.second)
    assert refusal.code() is grpc.StatusCode.UNAVAILABLE
    await_hint(pair.second, pair.first)
    assert f"standby; {pair.first.endpoint} is active" in str(refusal_of(pair.second).details())


def test_when_the_active_server_is_killed_the_standby_takes_over_the_same_epoch(
    make_pair: MakePair,
) -> None:
    pair = make_pair(LONG_LEASE)
    active, backup = FollowingAdapter(pair, "a"), FollowingAdapter(pair, "b")
    epoch = active.become_active()
    backup.behave(ReplicaState.SYNCHRONIZED)
    reader = Reader(pair)
    assert (reader.first.epoch, reader.first.active_adapter_id) == (epoch, 1)
    active.seen.clear()
    pair.first.kill()
    await_serving(pair.second)
    active.await_renewal(epoch)
    assert "lease_lost" not in active.seen
    assert "lease_granted" not in active.seen
    assert len(set(active.incarnations)) == 1
    assert backup.await_order("cluster_changed") is not None
    assert "lease_granted" not in backup.seen
    after = reader.await_grant(lambda grant: (grant.epoch, grant.active_adapter_id) == (epoch, 1))
    assert after.keys == reader.first.keys
    active.vanish()  # it has renewed, so the end of its stream ends its lease again
    granted = backup.await_order("lease_granted")
    assert granted is not None
    assert granted.lease_granted.epoch > epoch
    reader.close()
    backup.vanish()


def test_epochs_only_grow_and_incarnations_never_repeat_when_servers_take_over(make_pair: MakePair) -> None:
    pair = make_pair(CLUSTER)
    epochs, incarnations = [], []
    serving = pair.first
    for _ in range(3):
        await_serving(serving)
        adapter = FollowingAdapter(pair, "a")
        granted = adapter.await_order("lease_granted")
        assert granted is not None
        epochs.append(granted.lease_granted.epoch)
        incarnations += adapter.incarnations
        serving.kill()  # immediately after the grant arrives
        adapter.vanish()
        if serving is pair.first:
            pair.first, serving = pair.start("first"), pair.second
        else:
            pair.second, serving = pair.start("second"), pair.first
    assert epochs == sorted(set(epochs))
    assert incarnations == sorted(set(incarnations))


def test_while_zookeeper_is_stopped_no_lease_changes_and_afterwards_renewals_continue(
    make_pair: MakePair, zookeeper: ZooKeeperServer
) -> None:
    pair = make_pair(LONG_LEASE)
    active = FollowingAdapter(pair, "a")
    epoch = active.become_active()
    backup = FollowingAdapter(pair, "b")
    backup.behave(ReplicaState.SYNCHRONIZED)
    active.seen.clear()
    zookeeper.stop()
    for server in (pair.first, pair.second):
        await_serving(server, is_serving=False)
        assert is_alive(server)
        assert refusal_of(server).code() is grpc.StatusCode.UNAVAILABLE
    for adapter in (active, backup):
        adapter.await_order("none", timeout_s=0.5)
        assert not {"lease_granted", "lease_lost"} & set(adapter.seen)
    zookeeper.start()
    active.await_renewal(epoch)
    assert "lease_granted" not in backup.seen
    active.vanish()
    granted = backup.await_order("lease_granted")
    assert granted is not None
    assert granted.lease_granted.epoch > epoch
    backup.vanish()


def test_an_active_server_steps_down_by_its_own_clock_when_zookeeper_stops_answering(
    make_pair: MakePair, zookeeper: ZooKeeperServer
) -> None:
    pair = make_pair(LONG_LEASE)
    active = FollowingAdapter(pair, "a")
    epoch = active.become_active()
    zookeeper.pause()  # without breaking its connections
    try:
        await_serving(pair.first, is_serving=False)
    finally:
        zookeeper.resume()
    active.await_renewal(epoch)
    active.vanish()


def test_a_leader_that_was_paused_beyond_its_session_grants_nothing_when_it_resumes(make_pair: MakePair) -> None:
    pair = make_pair(CLUSTER.replace("lease_ttl_ms = 300", "lease_ttl_ms = 1000"))
    sleeper = pair.first
    held = Adapter(sleeper, "a")
    epoch = held.await_order("lease_granted").lease_granted.epoch
    held.report(ReplicaState.ACTIVE, renew_epoch=epoch, report_id=1)
    assert held.await_order("lease_renewed").lease_renewed.epoch == epoch
    while not held.orders.empty():
        held.orders.get()
    sleeper.process.send_signal(signal.SIGSTOP)
    os.waitpid(sleeper.process.pid, os.WUNTRACED)  # until all of its threads have stopped
    for report_id in range(2, 60):  # the reports wait in its socket until it resumes
        held.report(ReplicaState.ACTIVE, renew_epoch=epoch, report_id=report_id)
    await_serving(pair.second)
    backup = FollowingAdapter(pair, "b")
    backup.behave(ReplicaState.SYNCHRONIZED)
    assert backup.become_active() > epoch
    for report_id in range(60, 120):  # a good candidate for a server that knows no others
        held.report(ReplicaState.SYNCHRONIZED, 50, renew_epoch=epoch, report_id=report_id)
    sleeper.process.send_signal(signal.SIGCONT)
    await_serving(sleeper, is_serving=False)
    assert held.ended.wait(WAIT_S), "its stream was not ended"
    orders = [held.orders.get() for _ in range(held.orders.qsize())]
    kinds = {order.WhichOneof("order") for order in orders}
    assert not kinds & {"lease_renewed", "lease_granted", "lease_offered"}
    await_hint(sleeper, pair.second)
    backup.vanish()
    held.vanish()
    sleeper.process.terminate()  # its log is complete when it has ended: leases do not wait for the disk
    assert sleeper.process.wait(STOP_TIMEOUT_S) == 0
    assert [line["epoch"] for line in audit_of(sleeper, "lease granted")] == [epoch]


def test_a_stopped_server_hands_over_and_returns_as_a_standby(make_pair: MakePair) -> None:
    pair = make_pair(LONG_LEASE)
    active = FollowingAdapter(pair, "a")
    epoch = active.become_active()
    pair.first.process.terminate()
    assert pair.first.process.wait(STOP_TIMEOUT_S) == 0
    await_serving(pair.second)
    active.await_renewal(epoch)
    again = pair.start("first")
    await_serving(again, is_serving=False)
    active.await_renewal(epoch)
    active.vanish()


def test_the_admin_command_finds_the_active_server(make_pair: MakePair, capsys: pytest.CaptureFixture[str]) -> None:
    pair = make_pair(CLUSTER)
    state = pair.secret_folder.folder.path
    options = ["--ca", str(state / "ca.pem"), "--identity", "operator"]
    options += ["--secret-file", str(state / "secrets" / "operator.secret")]
    assert admin(["status", "--json", "--admin", pair.addresses, *options]) == 0
    (feed,) = json.loads(capsys.readouterr().out)["feeds"]
    assert feed["feed"]["name"] == "equities"
    with pytest.raises(SystemExit, match="2"):
        admin(["status", "--admin", pair.second.endpoint, *options])
    assert f"{pair.first.endpoint} is active" in capsys.readouterr().err


def test_the_error_for_an_unprepared_state_folder_says_which_files_to_copy(
    make_pair: MakePair, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    make_pair(CLUSTER)
    cluster, policy = write_settings(tmp_path / "third")
    command = [sys.executable, "-m", "tandemfeed.deploy.command", "admin-server", "--listen", "127.0.0.1:0"]
    command += ["--cluster", str(cluster), "--policy", str(policy), "--state", str(tmp_path / "third" / "state")]
    ended = subprocess.run(
        [*command, "--zookeeper", zookeeper.hosts], text=True, capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "copy ca.pem, ca.key, cluster.key from its state folder" in ended.stderr
    assert not (tmp_path / "third" / "state").exists()
