"""Two admin server processes on one ZooKeeper, and an adapter that follows the active one."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandemfeed.admin_server.records.state_folder import SHARED_BY_SERVERS
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.v1 import admin_pb2, common_pb2
from tests.adapter.reporting.attending import Attending
from tests.admin_server.cluster_files import ca_of, secret_of
from tests.admin_server.records.zookeeper_server import ZooKeeperServer
from tests.admin_server.test_admin_process import ServerProcess

SESSION_MS = 3_000
WAIT_S = 40.0
REPORT_INTERVAL_S = 0.1
SERVING = health_pb2.HealthCheckResponse.SERVING


class Pair:
    """The two servers. The first one is active initially; a killed server can be restarted."""

    def __init__(
        self, folder: Path, zookeeper: ZooKeeperServer, cluster: str, opened: ExitStack, *options: str
    ) -> None:
        self._folder, self._cluster, self._opened = folder, cluster, opened
        self._options = ["--zookeeper", zookeeper.hosts, "--zookeeper-session-ms", str(SESSION_MS), *options]
        self.first = self.start("first")
        await_serving(self.first)
        state = folder / "second" / "state"
        state.mkdir(parents=True)
        for name in SHARED_BY_SERVERS:
            shutil.copy(self.first.folder.path / name, state / name)
        self.second = self.start("second")

    def start(self, name: str) -> ServerProcess:
        """Start or restart a server."""
        server = ServerProcess(self._folder / name, *self._options, cluster=self._cluster)
        self._opened.callback(server.kill)
        self._opened.callback(server.process.send_signal, signal.SIGCONT)
        return server

    @property
    def addresses(self) -> str:
        """The addresses as a user gives them; the standby's is first, so that clients must find the active server."""
        return f"{self.second.endpoint},{self.first.endpoint}"

    @property
    def secret_folder(self) -> ServerProcess:
        """The server whose folder contains the secrets, because it was started first."""
        return self.first


def await_serving(server: ServerProcess, *, is_serving: bool = True) -> None:
    """Wait until health checks show that the server is active, or that it is a standby."""
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) as channel:
        request = health_pb2.HealthCheckRequest(service="tandemfeed.v1.AdapterRegistry")
        for reply in health_pb2_grpc.HealthStub(channel).Watch(request, timeout=WAIT_S):
            if (reply.status == SERVING) is is_serving:
                return
    raise AssertionError("the server went away")


def is_alive(server: ServerProcess) -> bool:
    """True if the process reports that it is healthy, as the active server or as a standby."""
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=""), timeout=WAIT_S)
    return bool(reply.status == SERVING)


class NeverStopped:
    """A stop signal that never arrives."""

    is_set = False

    def __init__(self) -> None:
        self._fd = os.eventfd(0)

    def fileno(self) -> int:
        return self._fd


class FollowingAdapter:
    """An adapter with the real registry: it finds the active server, and returns with the same incarnation."""

    def __init__(self, pair: Pair, name: str) -> None:
        ca, identity = ca_of(pair.secret_folder), f"adapter-{name}"
        self._adapter_id = "ab".index(name) + 1
        self.seen: list[str] = []
        self._held_epoch = 0
        self.incarnations: list[int] = []
        self._adapter = Attending(
            pair.addresses,
            ca,
            TokenSource(pair.addresses, ca, identity, secret_of(pair.secret_folder, identity)),
            admin_pb2.RegisterRequest(
                feed="equities", adapter=name, rpc_endpoint="127.0.0.1:1", public_key=os.urandom(32)
            ),
            on_registered=lambda reply: self.incarnations.append(reply.self.incarnation),
            held_epoch=lambda: self._held_epoch,
        )
        self.orders = self._adapter.orders
        assert self._adapter.registry.register(NeverStopped()) is not None  # type: ignore[arg-type]
        self._adapter.registry.start()
        self.behave(ReplicaState.JOINING)

    def behave(self, state: ReplicaState, renew_epoch: int = 0) -> None:
        """Report this state now, and repeatedly while waiting for orders."""
        self._held_epoch = renew_epoch
        self._reported = (state, renew_epoch)
        self._report()

    def _report(self) -> None:
        state, renew_epoch = self._reported
        position = common_pb2.MessageStreamState(next_input_seq=50)
        channel = common_pb2.ChannelState(channel_id=1, replica_state=state.value, position=position)
        feed_state = common_pb2.FeedAdapterState(adapter_id=self._adapter_id, channels=[channel])
        self._adapter.report(admin_pb2.AdapterReport(state=feed_state, renew_epoch=renew_epoch))

    def await_order(self, *kinds: str, timeout_s: float = WAIT_S) -> admin_pb2.AdapterOrder | None:
        """The next order of these kinds; None if none arrives. `seen` collects the kinds of all orders, in sequence."""
        give_up_at_s = time.monotonic() + timeout_s
        while time.monotonic() < give_up_at_s:
            try:
                order = self.orders.get(timeout=REPORT_INTERVAL_S)
            except queue.Empty:
                self._report()
                continue
            kind = str(order.WhichOneof("order"))
            self.seen.append(kind)
            if kind in kinds:
                return order
        return None

    def become_active(self) -> int:
        """Wait for a grant, continue as the active, and return the epoch."""
        granted = self.await_order("lease_granted")
        assert granted is not None, f"never granted; {self.seen}"
        epoch = granted.lease_granted.epoch
        self.behave(ReplicaState.ACTIVE, epoch)
        self.await_renewal(epoch)
        return epoch

    def await_renewal(self, epoch: int) -> None:
        """Wait for a renewal of this epoch."""
        renewed = self.await_order("lease_renewed", "lease_lost", "lease_granted")
        assert renewed is not None, f"never renewed; {self.seen}"
        assert renewed.lease_renewed.epoch == epoch, renewed

    def vanish(self) -> None:
        """Disappear, as a killed process does."""
        self._adapter.registry.stop()
