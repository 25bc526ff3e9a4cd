"""A whole cluster on one machine, in one folder: settings written, processes started and replaced by name.

What it is for: the demo, drills and tests. An installation runs the same commands from service units.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from deploy.processes import ManagedProcess, ProcessFailed
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from transport.login import login
from transport.rpc import open_channel

EXAMPLES = Path(__file__).resolve().parent / "examples" / "ticks"
INTERFACE = "127.0.0.1"
SESSION = 20261121
FEED = "ticks"
TOPIC = "demo.ticks"
ADAPTERS = {1: "a", 2: "b"}
START_TIMEOUT_S = 60.0
JOB_NICE = 10  # numbering runs far ahead of the sending: on a small machine it yields to what is in the path of a tick

CLUSTER = """\
[[feed]]
feed_id = 1
name = "{feed}"
session = {session}
message_model = "{examples}/message-model.xml"
source_replay_endpoint = "127.0.0.1:{source_port}"
lease_ttl_ms = {lease_ttl_ms}
sync_interval_ms = 100
[[feed.channel]]
channel_id = 1
topic = "{topic}"
source_stream_ids = [1, 2]
[[feed.source_stream]]
source_stream_id = 1
name = "A-M"
group = "239.192.10.1:{ports[0]}"
[[feed.source_stream]]
source_stream_id = 2
name = "N-Z"
group = "239.192.10.2:{ports[1]}"
[[feed.adapter]]
adapter_id = 1
name = "a"
identity = "adapter-a"
groups = {{ 1 = "239.192.20.1:{ports[2]}" }}
[[feed.adapter]]
adapter_id = 2
name = "b"
identity = "adapter-b"
groups = {{ 1 = "239.192.20.2:{ports[3]}" }}
"""
POLICY = """\
[identity.adapter-a]
roles = ["adapter"]
[identity.adapter-b]
roles = ["adapter"]
[identity.source]
roles = ["source"]
[identity.demo-client]
roles = ["client"]
subscribe = ["demo.#"]
[identity.operator]
roles = ["admin"]
"""


def free_ports(kind: socket.SocketKind, count: int) -> list[int]:
    """Ports that nobody has at the moment."""
    sockets = [socket.socket(socket.AF_INET, kind) for _ in range(count)]
    try:
        for each in sockets:
            each.bind((INTERFACE, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class ClusterWatch:
    """Who is active and what state each adapter is in, as the admin server tells; waited for, never polled."""

    def __init__(self, admin: str, ca_pem: bytes, secret: str) -> None:
        self.active = ""
        self.epoch = 0
        self.states: dict[str, str] = {}
        self._changed = threading.Condition()
        self._channel = open_channel(admin, ca_pem, login(admin, ca_pem, "demo-client", secret).token)
        stub = admin_pb2_grpc.StreamAdministrationStub(self._channel)
        self._updates = stub.Subscribe(admin_pb2.SubscribeRequest(feed=FEED))
        threading.Thread(target=self._read, name="cluster-watch", daemon=True).start()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for a condition on this object.

        Raises:
            ProcessFailed: not in time.
        """
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise ProcessFailed(
                    f"{what}: not within {timeout_s:.0f} s (active {self.active or 'nobody'}, states {self.states})"
                )

    def close(self) -> None:
        """Stop watching."""
        self._updates.cancel()
        self._channel.close()

    def _read(self) -> None:
        try:
            for update in self._updates:
                with self._changed:
                    names = {adapter.adapter_id: adapter.name for adapter in update.adapters}
                    self.states = {adapter.name: adapter.replica_state for adapter in update.adapters}
                    self.active, self.epoch = names.get(update.active_adapter_id, ""), update.epoch
                    self._changed.notify_all()
        except grpc.RpcError:
            pass  # the server or this watch has ended


class Cluster:
    """The processes of one cluster; use it in a `with`.

    Args:
        folder: everything of the cluster lies in it.
    """

    def __init__(self, folder: Path, *, lease_ttl_ms: int = 500) -> None:
        self.folder = folder
        self.processes: dict[str, ManagedProcess] = {}
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._state = folder / "admin"
        (self._source_port,) = free_ports(socket.SOCK_STREAM, 1)
        settings = CLUSTER.format(
            feed=FEED,
            session=SESSION,
            topic=TOPIC,
            examples=EXAMPLES,
            lease_ttl_ms=lease_ttl_ms,
            source_port=self._source_port,
            ports=free_ports(socket.SOCK_DGRAM, 4),
        )
        (folder / "cluster.toml").write_text(settings)
        (folder / "policy.toml").write_text(POLICY)
        self._job: list[str] = []
        self.admin = ""
        self.watch: ClusterWatch | None = None

    @property
    def journal(self) -> Path:
        """The source journal."""
        return self.folder / "source-journal"

    def start_admin(self) -> None:
        """The admin server, and a watch on it."""
        arguments = ["admin-server", "--cluster", "cluster.toml", "--policy", "policy.toml", "--state", "admin"]
        paths = [str(self.folder / each) if each.endswith(".toml") or each == "admin" else each for each in arguments]
        listen = self.admin or "127.0.0.1:0"
        process = self._start("admin", [*paths, "--listen", listen])
        self.admin = process.await_event("ready", START_TIMEOUT_S)["admin"]
        self.watch = ClusterWatch(self.admin, (self._state / "ca.pem").read_bytes(), self._secret("demo-client"))

    def start_adapter(self, name: str) -> ManagedProcess:
        """An adapter (again); its journal stays from life to life."""
        arguments = ["adapter", "--feed", FEED, "--name", name, "--journal", str(self.folder / f"journal-{name}")]
        arguments += ["--source-format", str(EXAMPLES / "source-format.xml")]
        arguments += ["--table", str(EXAMPLES / "converter-table.xml"), *self._tls(f"adapter-{name}")]
        return self._start(f"adapter-{name}", [*arguments, *self._connection(f"adapter-{name}")])

    def start_gateway(self, rate: float) -> ManagedProcess:
        """The source gateway; it sends when told "start"."""
        arguments = ["source-gateway", "--feed", FEED, "--journal", str(self.journal), "--rate", str(rate)]
        arguments += ["--rpc-listen", f"127.0.0.1:{self._source_port}", "--wait-for-start", *self._tls("source")]
        return self._start("source-gateway", [*arguments, *self._connection("source")])

    def start_job(
        self, recording: Path, *, split: str, packet_messages_max: int, ahead_batches_max: int = 0
    ) -> ManagedProcess:
        """The Spark job.

        Args:
            ahead_batches_max: micro-batches it may be ahead of the gateway; 0: as far as it gets.
        """
        arguments = ["source-job", "--recording", str(recording), "--until-idle", "--split", split]
        arguments += ["--source-format", str(EXAMPLES / "source-format.xml")]
        arguments += ["--feed-description", f"{self.folder / 'cluster.toml'}#{FEED}"]
        arguments += ["--journal", str(self.journal), "--checkpoint", str(self.folder / "checkpoint")]
        arguments += ["--packet-messages-max", str(packet_messages_max)]
        self._job = [*arguments, "--ahead-batches-max", str(ahead_batches_max)]
        return self._start("source-job", self._job, nice=JOB_NICE)

    def restart_job(self) -> ManagedProcess:
        """The Spark job again, with the same options: it goes on from its checkpoint and the source journal."""
        return self._start("source-job", self._job, nice=JOB_NICE)

    def start_client(self, record: Path) -> ManagedProcess:
        """A subscriber that records what it is delivered, from the first message to the end of the stream."""
        arguments = ["witness", "--feed", FEED, "--record", str(record)]
        return self._start("client", [*arguments, *self._connection("demo-client")])

    def kill(self, name: str) -> None:
        """SIGKILL a process by name."""
        self.processes.pop(name).kill()

    def check(self) -> None:
        """Raise if a process ended by itself with an error."""
        for process in self.processes.values():
            if not process.is_running and process.wait(0) != 0:
                raise process.failed(f"ended with status {process.wait(0)}")

    def close(self) -> None:
        """Stop everything, the servers last."""
        if self.watch is not None:
            self.watch.close()
        order = sorted(self.processes, key=lambda name: name == "admin")
        for name in order:
            self.processes[name].stop()
        self.processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _start(self, name: str, arguments: list[str], *, nice: int = 0) -> ManagedProcess:
        process = self.processes[name] = ManagedProcess(name, arguments, self.logs, nice=nice)
        return process

    def _secret(self, identity: str) -> str:
        return (self._state / "secrets" / f"{identity}.secret").read_text().strip()

    def _tls(self, identity: str) -> list[str]:
        certificates = self._state / "certs"
        return ["--tls-cert", str(certificates / f"{identity}.crt"), "--tls-key", str(certificates / f"{identity}.key")]

    def _connection(self, identity: str) -> list[str]:
        options = {
            "--admin": self.admin,
            "--ca": self._state / "ca.pem",
            "--identity": identity,
            "--secret-file": self._state / "secrets" / f"{identity}.secret",
            "--interface": INTERFACE,
        }
        return [str(part) for pair in options.items() for part in pair]


@contextmanager
def running_cluster(folder: Path, rate: float, record: Path) -> Iterator[Cluster]:
    """Admin server, both adapters (one active, one synchronised), gateway and recording client, all ready."""
    with Cluster(folder) as cluster:
        cluster.start_admin()
        adapters = [cluster.start_adapter(name) for name in ADAPTERS.values()]
        gateway = cluster.start_gateway(rate)
        client = cluster.start_client(record)
        for process in (*adapters, gateway, client):
            process.await_event("ready", START_TIMEOUT_S)
        watch = cluster.watch
        assert watch is not None
        watch.wait_for(
            lambda: sorted(watch.states.values()) == ["active", "synchronized"], START_TIMEOUT_S, "a synchronised pair"
        )
        yield cluster
