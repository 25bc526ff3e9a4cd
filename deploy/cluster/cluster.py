"""A whole cluster on one machine, in one folder: writes the settings, starts and restarts the processes.

For the demo and the drills. A production installation runs the same commands from service units.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import grpc

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.client_lib.stream.trust.stream_trust import VerifyMode
from tandemfeed.deploy.cluster.cluster_watch import ClusterWatch
from tandemfeed.deploy.cluster.network import Network
from tandemfeed.deploy.cluster.ports import LOOPBACK, free_ports
from tandemfeed.deploy.cluster.processes import (
    COMMAND,
    STOP_TIMEOUT_S,
    ManagedProcess,
    ProcessFailed,
    ProcessPlacement,
)
from tandemfeed.deploy.cluster.topology import (
    ADMIN,
    EXAMPLES,
    OPERATOR,
    SUBSCRIBER,
    FeedLayout,
    Shape,
    host_names,
    render_cluster,
    render_policy,
)
from tandemfeed.deploy.drills.source import JournalLead
from tandemfeed.runtime.durable import make_folder, rename_file, replace_file
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.multicast.sockets import Datagrams
from tandemfeed.transport.scheduling import MODERATE_NICE
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

LIAR, OBSERVER = "tandemfeed.deploy.drills.liar", "tandemfeed.deploy.drills.observer"
START_TIMEOUT_S = 60.0
AHEAD_TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.2


class Cluster:
    """The processes of one cluster; use it in a `with`.

    Args:
        folder: where the cluster keeps its files; created for this user only.
        shape: the size of the cluster.
        network: has a host for each process; None: all processes use the loopback interface of this host.
        disk_size: size in bytes of each adapter's own disk for its journal; 0: the journals are in the folder.
        has_days: each feed's source has a journal, and a session, for each day.
        datagrams: whose sockets multicast.
        on_log: called with a process's name and each line of its log, in another thread.
    """

    def __init__(
        self,
        folder: Path,
        shape: Shape | None = None,
        *,
        network: Network | None = None,
        disk_size: int = 0,
        has_days: bool = False,
        datagrams: Datagrams = "zeromq",
        on_log: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> None:
        self.folder, self.shape, self.network = folder, shape or Shape(), network
        self.feeds = self.shape.feed_layouts()
        self.processes: dict[str, ManagedProcess] = {}
        self.watches: dict[int, ClusterWatch] = {}
        self.days: dict[int, int] = {feed.feed_id: 0 for feed in self.feeds}  # current day, from 0
        self.logs = folder / "logs"
        make_folder(self.logs)
        self._state = folder / "admin"
        self._disk_size, self._has_days, self._datagrams, self._on_log = disk_size, has_days, datagrams, on_log
        self._jobs: dict[str, list[str]] = {}
        self._ended = threading.Event()
        names = host_names(self.shape)
        self._addresses = network.addresses if network is not None else dict.fromkeys(names, LOOPBACK)
        gateways = [name for feed in self.feeds for name in feed.gateways]
        admin_port, *source_ports = free_ports(socket.SOCK_STREAM, 1 + len(gateways))
        self.admin = f"{self._addresses[ADMIN]}:{admin_port}"
        self._source_ports = dict(zip(gateways, source_ports, strict=True))
        adapters = [name for feed in self.feeds for name in feed.adapters]
        self._metrics_ports = dict(zip(adapters, free_ports(socket.SOCK_STREAM, len(adapters)), strict=True))
        per_feed = self.shape.stream_count + self.shape.channels * len(self.shape.adapter_names)
        ports = iter(free_ports(socket.SOCK_DGRAM, per_feed * len(self.feeds)))
        settings = render_cluster(self.shape, self._addresses, self._source_ports, lambda: next(ports))
        replace_file(folder / "cluster.toml", settings.encode())
        replace_file(folder / "policy.toml", render_policy(self.shape).encode())

    def address_of(self, host: str) -> str:
        """A host's IP address."""
        return self._addresses[host]

    def journal(self, feed: FeedLayout, day: int | None = None) -> Path:
        """The folder of a feed's source journal of a day; None: of the current day. The gateway does not see days that
        have not begun."""
        if not self._has_days:
            return self.folder / f"source-journal{feed.suffix}"
        today = self.days[feed.feed_id]
        number = today if day is None else day
        return (self._journals(feed) if number <= today else self._coming_journals(feed)) / f"day-{number + 1}"

    def begin_day(self, feed: FeedLayout) -> None:
        """Put the next day's journal where the feed's gateway looks for it: it sends that day after the current one."""
        journal = self.journal(feed, self.days[feed.feed_id] + 1)
        self.days[feed.feed_id] += 1
        rename_file(journal, self.journal(feed))

    def _journals(self, feed: FeedLayout) -> Path:
        return self.folder / f"source-journals{feed.suffix}"

    def _coming_journals(self, feed: FeedLayout) -> Path:
        return self.folder / f"coming-source-journals{feed.suffix}"

    def output_journal(self, feed: FeedLayout, name: str) -> Path:
        """The folder of an adapter's journal. If it is on a small disk, `small_disk.path_in_process` leads to it."""
        return self.folder / f"journal-{name}{feed.suffix}"

    # ---- starting ----

    def start_admin(self) -> None:
        """Start the admin server, and a watch on each feed. After a kill it restarts at the same address."""
        arguments = ["admin-server", "--cluster", str(self.folder / "cluster.toml")]
        arguments += ["--policy", str(self.folder / "policy.toml"), "--state", str(self._state)]
        self._start(ADMIN, [*arguments, "--listen", self.admin]).await_event("ready", START_TIMEOUT_S)
        for feed in self.feeds:
            if feed.feed_id not in self.watches:
                self.watches[feed.feed_id] = ClusterWatch(
                    self.admin, self._ca_pem(), SUBSCRIBER, self._secret(SUBSCRIBER), feed.name, self.check
                )

    def start_adapter(self, feed: FeedLayout, name: str, *, is_lying: bool = False) -> ManagedProcess:
        """Start or restart an adapter. It keeps its journal, unless the journal is on a small disk.

        Args:
            is_lying: start the adapter of `deploy.drills.liar` instead.
        """
        process = feed.adapter(name)
        journal = self.output_journal(feed, name)
        arguments = ["--feed", feed.name, "--name", name, "--journal", str(journal)]
        arguments += ["--rpc-listen", f"{self._addresses[process]}:0", *self._tls(process)]
        arguments += ["--metrics-port", str(self._metrics_ports[process])]
        disk = (journal, self._disk_size) if self._disk_size else None
        arguments += self.connection(process, process)
        if is_lying:
            return self._start(process, arguments, disk=disk, module=LIAR)
        return self._start(process, ["adapter", *arguments], disk=disk)

    def start_gateway(self, feed: FeedLayout, rate: float) -> ManagedProcess:
        """Start the source gateway; it begins to send when it reads the line "start"."""
        listen = f"{self._addresses[feed.gateway]}:{self._source_ports[feed.gateway]}"
        arguments = ["source-gateway", "--feed", feed.name, "--rate", str(rate)]
        source = ("--journals", self._journals(feed)) if self._has_days else ("--journal", self.journal(feed))
        arguments += [*map(str, source), "--rpc-listen", listen, "--wait-for-start", *self._tls("source")]
        return self._start(feed.gateway, [*arguments, *self.connection("source", feed.gateway)])

    def start_contribution_gateway(self, feed: FeedLayout, *options: str, name: str = "") -> ManagedProcess:
        """Start or restart a source of a feed that takes contributions. It keeps its log.

        Args:
            name: one of `feed.gateways`; empty: the first.
        """
        name = name or feed.gateway
        folder = self.journal(feed)
        folder = folder.with_name(folder.name + name.removeprefix(feed.gateway))
        listen = f"{self._addresses[name]}:{self._source_ports[name]}"
        arguments = ["contribution-gateway", "--feed", feed.name, "--folder", str(folder)]
        arguments += ["--source-format", str(document("contribution.xml")), "--rpc-listen", listen]
        arguments += [*self._tls("source"), *options]
        return self._start(name, [*arguments, *self.connection("source", name)])

    def start_job(
        self, feed: FeedLayout, recording: Path, *, split: str, packet_messages_max: int, ahead_messages_max: int = 0
    ) -> ManagedProcess:
        """Start the Spark job.

        Args:
            ahead_messages_max: the limit on messages journaled and not yet sent by the gateway; 0: no limit.
        """
        arguments = ["source-job", "--recording", str(recording), "--until-idle", "--split", split]
        arguments += ["--source-format", str(EXAMPLES / "source-format.xml")]
        arguments += ["--feed-description", f"{self.folder / 'cluster.toml'}#{feed.name}"]
        arguments += ["--journal", str(self.journal(feed))]
        arguments += ["--checkpoint", str(self.folder / f"checkpoint{feed.suffix}")]
        arguments += ["--packet-messages-max", str(packet_messages_max)]
        self._jobs[feed.job] = [*arguments, "--ahead-messages-max", str(ahead_messages_max)]
        return self.restart_job(feed)

    def restart_job(self, feed: FeedLayout) -> ManagedProcess:
        """Restart the Spark job with the same options; it resumes from its checkpoint and the source journal."""
        return self._start(feed.job, self._jobs[feed.job])

    def start_client(
        self,
        feed: FeedLayout,
        record: Path,
        *,
        start: Literal["live", "first"] = "first",
        name: str = "",
        verify: VerifyMode = "alarm",
        through_days: bool = False,
        transport: Transport = "multicast",
        reading: str = "record",
        nice: int = 0,
    ) -> ManagedProcess:
        """Start a subscriber that records what it receives.

        Args:
            start: "first": from the first message; "live": from now on.
            name: name of the process, if it is not the feed's own client.
            verify: "signed": deliver only what adapters have signed.
            through_days: continue after the end of a session.
            transport: "unicast": connect to the adapters, instead of joining their groups.
            reading: the shape in which it reads.
            nice: added to its nice value.
        """
        arguments = ["witness", "--feed", feed.name, "--record", str(record), "--start", start, "--verify", verify]
        arguments += ["--transport", transport, "--shape", reading]
        arguments += ["--through-days"] if through_days else []
        arguments += self.connection(SUBSCRIBER, feed.client)
        return self._start(name or feed.client, arguments, host=feed.client, nice=nice)

    def start_durable_reader(self, feed: FeedLayout, name: str, cursor: Path, output: Path) -> ManagedProcess:
        """Start an application on the client's host that appends what it reads to a file, exactly once.

        Args:
            name: name of the process.
            cursor, output: its files.
        """
        arguments = ["durable-reader", "--feed", feed.name, "--cursor", str(cursor), "--output", str(output)]
        arguments += self.connection(SUBSCRIBER, feed.client)
        return self._start(name, arguments, host=feed.client, nice=MODERATE_NICE)

    def start_forger(self, feed: FeedLayout, seconds: float, rate: float) -> ManagedProcess:
        """Start a second subscriber on the client's host; when it reads the line "start" it forges packets, then ends.

        Args:
            rate: forged packets per second.
        """
        arguments = ["forger", "--feed", feed.name, "--seconds", str(seconds), "--rate", str(rate)]
        arguments += self.connection(SUBSCRIBER, feed.client)
        return self._start(feed.forger, arguments, host=feed.client)

    def start_observer(self, feed: FeedLayout, message_count: int, verify: VerifyMode) -> ManagedProcess:
        """Start a reader on the client's host that catches up this many messages, again and again."""
        arguments = ["--feed", feed.name, "--messages", str(message_count), "--verify", verify]
        arguments += self.connection(SUBSCRIBER, feed.client)
        return self._start(feed.observer, arguments, host=feed.client, nice=MODERATE_NICE, module=OBSERVER)

    # ---- checking and waiting ----

    def check(self) -> None:
        """Raise ProcessFailed if a process has ended with an error."""
        for process in list(self.processes.values()):
            if not process.is_running and process.wait(0) != 0:
                raise process.failed(f"ended with status {process.wait(0)}")

    def run_for(self, seconds: float) -> None:
        """Let the cluster run for some seconds.

        Raises:
            ProcessFailed: as soon as a process crashes.
        """
        until = time.monotonic() + seconds
        while True:
            self.check()
            remaining = until - time.monotonic()
            if remaining <= 0:
                return
            if self._ended.wait(remaining):
                self._ended.clear()

    @contextlib.contextmanager
    def operator(self) -> Iterator[grpc.Channel]:
        """A connected channel for the operator's calls to the admin server."""
        session = login(self.admin, self._ca_pem(), OPERATOR, self._secret(OPERATOR))
        with open_channel(self.admin, self._ca_pem(), ADMIN_SERVER, session.bearer) as channel:
            grpc.channel_ready_future(channel).result(START_TIMEOUT_S)
            yield channel

    @contextlib.contextmanager
    def operations(self) -> Iterator[admin_pb2_grpc.OperationsStub]:
        """A connected stub for the operator's calls about feeds."""
        with self.operator() as channel:
            yield admin_pb2_grpc.OperationsStub(channel)

    def readmit(self, feed: FeedLayout, name: str) -> None:
        """Readmit a failed adapter to its group, as an operator does.

        Raises:
            grpc.RpcError: the server refused.
        """
        with self.operations() as operations:
            request = admin_pb2.ReadmitAdapterRequest(feed=feed.name, adapter=name)
            operations.ReadmitAdapter(request, timeout=START_TIMEOUT_S)

    def status(self, feed: FeedLayout) -> admin_pb2.FeedStatus:
        """The status of a feed, as `tandemfeed admin status` shows it.

        Raises:
            grpc.RpcError: the server refused.
        """
        with self.operations() as operations:
            request = admin_pb2.GetStatusRequest(feed=feed.name)
            (status,) = operations.GetStatus(request, timeout=START_TIMEOUT_S).feeds
        return status

    def metrics(self, feed: FeedLayout, name: str) -> str:
        """An adapter's metrics, in Prometheus's text format.

        Raises:
            OSError: the adapter does not answer.
        """
        process = feed.adapter(name)
        address = f"http://{LOOPBACK}:{self._metrics_ports[process]}/metrics"

        def read() -> str:
            with urllib.request.urlopen(address, timeout=START_TIMEOUT_S) as page:
                text: str = page.read().decode()
            return text

        return read() if self.network is None else self.network.inside(process, read)

    def count_audited(self, events: Sequence[str]) -> int:
        """How many of these events the admin server has written to its audit log."""
        lines = (self._state / "audit.jsonl").read_text().splitlines()
        return sum(json.loads(line)["event"] in events for line in lines)

    def await_ahead(self, feed: FeedLayout, message_count: int) -> None:
        """Wait until the source journal has this many unsent messages, or the source job has finished.

        Raises:
            ProcessFailed: the source job is too slow.
        """
        if not self.wait_until_ahead(feed, message_count, AHEAD_TIMEOUT_S):
            job = self.processes[feed.job]
            raise job.failed(f"did not get {message_count:,} messages ahead of the gateway in {AHEAD_TIMEOUT_S:g} s")

    def wait_until_ahead(self, feed: FeedLayout, message_count: int, timeout_s: float) -> bool:
        """Like `await_ahead`, with a time limit; returns whether the job got that far ahead."""
        job, give_up_at_s = self.processes[feed.job], time.monotonic() + timeout_s
        with JournalLead(self.journal(feed)) as lead:
            while job.is_running and lead.message_count() < message_count:
                if time.monotonic() > give_up_at_s:
                    return False
                self.run_for(POLL_INTERVAL_S)
        return True

    # ---- ending ----

    def kill(self, name: str) -> None:
        """SIGKILL a process."""
        self.processes.pop(name).kill()

    def stop(self, name: str) -> None:
        """Stop a process with SIGTERM.

        Raises:
            ProcessFailed: its exit status is not 0.
        """
        process = self.processes.pop(name)
        status = process.stop()
        if status != 0:
            raise process.failed(f"ended with status {status} after SIGTERM")

    def close(self) -> None:
        """Stop everything, the admin server last."""
        for watch in self.watches.values():
            watch.close()
        admin = [process for name, process in self.processes.items() if name == ADMIN]
        others = [process for name, process in self.processes.items() if name != ADMIN]
        for process in others:
            if process.is_running:
                process.terminate()
        until = time.monotonic() + STOP_TIMEOUT_S
        for process in others:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except ProcessFailed:
                process.kill()
        for process in admin:
            process.stop()
        self.processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    # ---- inside ----

    def _start(
        self,
        name: str,
        arguments: list[str],
        *,
        host: str = "",
        disk: tuple[Path, int] | None = None,
        nice: int = 0,
        module: str = COMMAND,
    ) -> ManagedProcess:
        host = host or name
        is_placed = self.network is not None and host in self._addresses  # the Spark job needs no network
        place = ProcessPlacement(self.network.namespace_of(host) if self.network and is_placed else "", disk, nice)
        on_log = None if self._on_log is None else partial(self._on_log, name)
        process = ManagedProcess(
            name, arguments, self.logs, place=place, on_ended=self._on_ended, on_log=on_log, module=module
        )
        self.processes[name] = process
        return process

    def _on_ended(self) -> None:
        self._ended.set()
        for watch in list(self.watches.values()):
            watch.check_again()

    def _ca_pem(self) -> bytes:
        return (self._state / "ca.pem").read_bytes()

    def _secret(self, identity: str) -> str:
        return (self._state / "secrets" / f"{identity}.secret").read_text().strip()

    def _tls(self, identity: str) -> list[str]:
        folder = self._state / "certs"
        return ["--tls-cert", str(folder / f"{identity}.crt"), "--tls-key", str(folder / f"{identity}.key")]

    def connection(self, identity: str, process: str) -> list[str]:
        """The options with which an identity connects, on the host of a process."""
        options = {
            "--admin": self.admin,
            "--ca": self._state / "ca.pem",
            "--identity": identity,
            "--secret-file": self._state / "secrets" / f"{identity}.secret",
            "--interface": self._addresses[process],
            "--datagrams": self._datagrams,
        }
        return [str(part) for part in itertools.chain.from_iterable(options.items())]


def start_cluster(
    cluster: Cluster,
    rate: float,
    record_of: dict[int, Path],
    *,
    verify: VerifyMode = "alarm",
    through_days: bool = False,
    transport: Transport = "multicast",
    reading: str = "record",
) -> None:
    """Start the admin server, all adapters, gateways and clients, and wait until every feed is healthy.

    Args:
        rate: messages per second that each gateway will send.
        record_of: by feed_id, where the client writes its record.
        verify: verification mode of the clients.
        through_days: the clients continue after the end of a session.
        transport: how the clients receive the adapters.
        reading: the shape in which the clients read.
    """
    cluster.start_admin()
    started: list[ManagedProcess] = []
    for feed in cluster.feeds:
        started += [cluster.start_adapter(feed, name) for name in cluster.shape.adapter_names]
        client = cluster.start_client(
            feed,
            record_of[feed.feed_id],
            verify=verify,
            through_days=through_days,
            transport=transport,
            reading=reading,
        )
        started += [cluster.start_gateway(feed, rate), client]
    for process in started:
        process.await_event("ready", START_TIMEOUT_S)
    for watch in cluster.watches.values():
        watch.await_healthy(START_TIMEOUT_S)
