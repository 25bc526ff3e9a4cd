"""A thread that fails is seen from outside: by health checks, by metrics, and by the exit status of its process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandemfeed.deploy.cluster.cluster import START_TIMEOUT_S, Cluster
from tandemfeed.deploy.cluster.ports import free_ports
from tandemfeed.deploy.cluster.processes import ManagedProcess
from tandemfeed.deploy.cluster.topology import SUBSCRIBER, Shape
from tandemfeed.deploy.drills.source import PACKET_MESSAGES_MAX, make_recording, prepare_journal
from tandemfeed.runtime.threads import EXIT_THREAD_FAILED
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, adapter_server, source_gateway

pytestmark = pytest.mark.processes
LIMIT_S = 60.0
# Every Python process of the test imports it first. When a file with its number appears, a thread of the process fails,
# with the consequence that the file names.
PLANTED = """
import os, sys, threading, time

def plant(file):
    while not os.path.exists(file):
        time.sleep(0.02)
    from tandemfeed.runtime import threads
    def fail():
        raise LookupError("planted")
    consequence = open(file).read()
    os.unlink(file)
    threads.start_thread(fail, "planted", getattr(threads, consequence)).join()
    plant(file)

if "tandemfeed.deploy.command" in sys.orig_argv:
    threading.Thread(target=plant, args=(os.path.join({folder!r}, f"fail-{{os.getpid()}}"),), daemon=True).start()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("failing"))


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    """One feed of ticks and one of contributions, of which only the gateway runs."""
    (folder / "sitecustomize.py").write_text(PLANTED.format(folder=str(folder)))
    recording = make_recording(folder, source=None, message_count=200, symbols=20)
    with pytest.MonkeyPatch.context() as patch, Cluster(folder, Shape(feeds=2, contributed=1)) as running:
        patch.setenv("PYTHONPATH", str(folder))
        running.start_admin()
        feed = running.feeds[0]
        prepare_journal(recording, feed, folder / "cluster.toml", running.journal(feed), PACKET_MESSAGES_MAX)
        running.start_gateway(feed, rate=200.0)
        running.start_contribution_gateway(running.feeds[1])
        for name in "ab":
            running.start_adapter(feed, name)
        running.watches[feed.feed_id].await_healthy(2 * START_TIMEOUT_S)
        yield running


def fail(cluster: Cluster, process: ManagedProcess, consequence: str) -> None:
    """Let a thread of a process fail."""
    draft = cluster.folder / "draft"
    draft.write_text(consequence)
    draft.rename(cluster.folder / f"fail-{process.pid}")


def status_of(channel: grpc.Channel, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    found: int = health_pb2_grpc.HealthStub(channel).Check(request, timeout=LIMIT_S).status
    return found


def test_every_server_with_a_failed_thread_reports_that_it_does_not_serve(cluster: Cluster) -> None:
    feed = cluster.feeds[0]
    ca = (cluster.folder / "admin" / "ca.pem").read_bytes()
    admin, gateway = cluster.processes["admin"], cluster.processes[feed.gateway]
    endpoint = gateway.await_event("ready", LIMIT_S)["rpc"]
    servers = {
        admin: (cluster.admin, ADMIN_SERVER, "tandemfeed.v1.Operations"),
        gateway: (endpoint, source_gateway("ticks"), "tandemfeed.v1.SourceReplay"),
    }
    for process, (endpoint, name, service) in servers.items():
        with open_channel(endpoint, ca, name) as channel:
            assert {status_of(channel), status_of(channel, service)} == {health_pb2.HealthCheckResponse.SERVING}
            changes = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
            assert next(changes).status == health_pb2.HealthCheckResponse.SERVING
            fail(cluster, process, "mark_unhealthy")
            assert next(changes).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert status_of(channel, service) == health_pb2.HealthCheckResponse.NOT_SERVING
            changes.cancel()


def test_an_adapter_with_a_failed_thread_is_unhealthy_in_health_and_metrics_and_names_the_thread(
    cluster: Cluster,
) -> None:
    feed = cluster.feeds[0]
    ca = (cluster.folder / "admin" / "ca.pem").read_bytes()
    assert 'tandemfeed_failed_threads{thread=""} 0.0' in cluster.metrics(feed, "a")
    adapter = cluster.processes[feed.adapter("a")]
    fail(cluster, adapter, "mark_unhealthy")
    logged = adapter.await_log("thread failed; this process is unhealthy", LIMIT_S)
    assert (logged["failed_thread"], logged["level"]) == ("planted", "error")
    assert "LookupError: planted" in logged["exception"]
    give_up_at_s = time.monotonic() + LIMIT_S
    while 'tandemfeed_failed_threads{thread="planted"} 1.0' not in cluster.metrics(feed, "a"):
        assert time.monotonic() < give_up_at_s
    endpoint = adapter.await_event("ready", LIMIT_S)["rpc"]
    with open_channel(endpoint, ca, adapter_server("ticks", "a")) as channel:
        assert status_of(channel) == health_pb2.HealthCheckResponse.NOT_SERVING


def last_line(process: ManagedProcess) -> str:
    return process.log.read_text().splitlines()[-1]


@pytest.fixture(scope="module")
def clients(cluster: Cluster) -> dict[str, ManagedProcess]:
    """A process for each sub-command that reads until it is stopped."""
    feed, folder = cluster.feeds[0], cluster.folder
    found = {
        "witness": cluster.start_client(feed, folder / "record", start="live"),
        "durable-reader": cluster.start_durable_reader(feed, "reader", folder / "cursor", folder / "read"),
        "forger": cluster.start_forger(feed, 60, 10),
        "hiccups": cluster._start("hiccups", ["hiccups"]),
    }
    for process in found.values():
        process.await_event("ready", START_TIMEOUT_S)
    options = ["--feed", feed.name, "--start", "live", *cluster.connection(SUBSCRIBER, feed.client)]
    (port,) = free_ports(1, 1)
    found["subscribe"] = cluster._start("subscriber", ["subscribe", "--metrics-port", str(port), *options])
    give_up_at_s = time.monotonic() + LIMIT_S
    while not _answers(port):
        assert time.monotonic() < give_up_at_s
        assert found["subscribe"].is_running, found["subscribe"].log.read_text()
    return found


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as page:
            return bool(page.read())
    except OSError:
        return False


COMMANDS = (
    "subscribe", "witness", "durable-reader", "forger", "hiccups", "contribution-gateway", "source-gateway", "adapter",
    "admin-server",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_process_that_cannot_do_without_a_failed_thread_ends_with_a_status_and_a_sentence(
    cluster: Cluster, clients: dict[str, ManagedProcess], command: str
) -> None:
    feed = cluster.feeds[0]
    running = cluster.processes
    processes = {
        **{name: [process] for name, process in clients.items()},
        "contribution-gateway": [running[cluster.feeds[1].gateway]],
        "source-gateway": [running[feed.gateway]],
        "adapter": [running[each] for each in feed.adapters],
        "admin-server": [running["admin"]],
    }[command]
    for process in processes:
        fail(cluster, process, "end_process")
    for process in processes:
        assert process.wait(LIMIT_S) == EXIT_THREAD_FAILED, process.log.read_text()
        assert "ended because thread planted failed: planted" in last_line(process)
