"""Unicast clients of a real cluster: a takeover, a revocation, a stranger, and a host that multicast does not reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from tandemfeed.client_lib import Gap
from tandemfeed.deploy.cluster.network import OWN_ADDRESS, Network, make_network, why_no_network
from tandemfeed.deploy.command import HOST_VARIABLE
from tandemfeed.transport.unicast.receiver import UnicastReceiver
from tandemfeed.transport.unicast.wire import CurveKeys
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.adapter.processes.clusters import Cluster, Feed, Reader, running_cluster
from tests.admin_server.cluster_files import channel_as

LOOPBACK = "127.0.0.1"
WAIT_MS = 20_000
pytestmark = pytest.mark.processes


def feed(host: str = LOOPBACK) -> Feed:
    return Feed("ab", unicast_host=host)


def test_a_kill_of_the_active_loses_and_repeats_nothing_for_a_unicast_client(tmp_path: Path) -> None:
    with running_cluster(tmp_path, feed()) as cluster:
        cluster.start_adapters("ab")
        with cluster.subscription(transport="unicast") as one, cluster.subscription() as other:
            by_unicast, by_multicast = Reader(one), Reader(other)
            first = cluster.await_active("equities", synchronized_count=1).active.adapter_id
            for _ in range(20):
                cluster.source.send(1, 20)
                cluster.source.send(2, 10)
            by_unicast.take(600)
            cluster.kill("ab"[first - 1])
            for _ in range(20):
                cluster.source.send(1, 20)
            cluster.await_active("equities", other_than=first)
            cluster.source.send(2, 20)
            by_unicast.take(420)
            by_multicast.take(1_020)
            for reader in (by_unicast, by_multicast):
                reader.assert_everything_once_and_in_order(cluster.source.next_seq)
                assert not any(isinstance(event, Gap) for event in reader.events)
            assert one.statistics().groups == ()
            cluster.start_adapters("ab"[first - 1])  # with another CURVE key, at another port
            cluster.await_active("equities", synchronized_count=1)
            while first not in by_unicast.adapter_ids:
                cluster.source.send(1, 1)
                by_unicast.take(1)
            by_unicast.assert_everything_once_and_in_order(cluster.source.next_seq)


def test_an_outage_of_the_admin_server_interrupts_no_unicast_client(tmp_path: Path) -> None:
    with running_cluster(tmp_path, feed()) as cluster:
        cluster.start_adapters("ab")
        cluster.await_active("equities", synchronized_count=1)
        with cluster.subscription(transport="unicast") as subscription:
            reader = Reader(subscription)
            cluster.source.send(1, 20)
            reader.take(20)
            before = subscription.statistics().unicast_endpoints
            cluster.server.kill()
            cluster.source.send(1, 20)
            reader.take(20)
            cluster.server.start()
            cluster.await_active("equities", synchronized_count=1)
            cluster.source.send(1, 20)
            reader.take(20)
            reader.assert_everything_once_and_in_order(cluster.source.next_seq)
            assert subscription.statistics().unicast_endpoints == before
            assert not any(isinstance(event, Gap) for event in reader.events)


@contextmanager
def raw_connection(
    cluster: Cluster, context: zmq.Context[Any], identity: str, keys: CurveKeys, presented: CurveKeys | None = None
) -> Iterator[UnicastReceiver]:
    """A connection to adapter "a", with an open subscription.

    Args:
        presented: the keys of the connection, if they are not those of the subscription.
    """
    with channel_as(cluster.server, identity) as channel:
        subscribe = admin_pb2.SubscribeRequest(subscription_id=1, feed="equities", unicast_client_key=keys.public)
        requests = iter([admin_pb2.SubscriptionRequest(request_id=1, subscribe=subscribe)])
        call = admin_pb2_grpc.StreamAdministrationStub(channel).Subscribe(requests)
        adapter = next(
            each for update in call for each in update.grant.adapters if each.name == "a" and each.unicast_endpoint
        )
        receiver = UnicastReceiver(
            context, adapter.unicast_endpoint, adapter.unicast_server_key, presented or keys, [1]
        )
        reading = threading.Thread(target=lambda: list(_until_error(call)), daemon=True)
        reading.start()
        yield receiver
        receiver.close()
        call.cancel()
        reading.join()


def _until_error(call: Any) -> Iterator[None]:
    try:
        yield from call
    except Exception:  # noqa: BLE001  cancelled, or revoked
        return


def test_a_revoked_client_and_a_stranger_receive_not_even_sealed_packets(tmp_path: Path) -> None:
    with zmq.Context() as context, running_cluster(tmp_path, feed()) as cluster:
        cluster.start_adapters("ab")
        cluster.await_active("equities", synchronized_count=1)
        policy = tmp_path / "policy.toml"
        before = policy.read_text()
        policy.write_text(before.replace('["futures.#"]', '["equities.#"]'))
        keys, unknown = CurveKeys.generate(), CurveKeys.generate()
        with (
            cluster.subscription(transport="unicast") as stays,
            channel_as(cluster.server, "operator") as operator,
        ):
            reader = Reader(stays)
            administration = admin_pb2_grpc.PolicyAdministrationStub(operator)
            administration.ReloadPolicy(admin_pb2.ReloadPolicyRequest())
            with (
                raw_connection(cluster, context, "stranger", keys) as revoked,
                raw_connection(cluster, context, "reader", CurveKeys.generate(), unknown) as stranger,
            ):
                assert revoked.socket.poll(WAIT_MS)
                policy.write_text(before)
                administration.ReloadPolicy(admin_pb2.ReloadPolicyRequest())
                silent_ms = 0
                while silent_ms < 1_000:  # a hundred heartbeats; a client that reconnects would be heard again
                    silent_ms = 0 if revoked.socket.poll(100) and revoked.receive() is not None else silent_ms + 100
                assert stranger.receive() is None
            cluster.source.send(1, 20)
            reader.take(20)
            reader.assert_everything_once_and_in_order(cluster.source.next_seq)


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := why_no_network():
        pytest.skip(reason)
    with make_network(["client"]) as made:
        yield made


def test_auto_reaches_a_host_that_multicast_does_not_reach(tmp_path: Path, network: Network) -> None:
    with running_cluster(tmp_path, feed(OWN_ADDRESS)) as cluster:
        cluster.start_adapters("ab")
        cluster.await_active("equities", synchronized_count=1)
        cluster.source.send(1, 20)
        state = cluster.server.folder.path
        options = {
            "feed": "equities",
            "start": "first",
            "count": 20,
            "admin": cluster.server.endpoint,
            "ca": state / "ca.pem",
            "identity": "reader",
            "secret-file": state / "secrets" / "reader.secret",
            "interface": network.addresses["client"],
        }
        command = [sys.executable, "-m", "tandemfeed.deploy.command", "subscribe", "--as", "text"]
        command += [text for key, value in options.items() for text in (f"--{key}", str(value))]
        done = subprocess.run(
            command,
            env={**os.environ, HOST_VARIABLE: network.namespace_of("client")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        messages = [line for line in done.stdout.splitlines() if not line.startswith("#")]
        assert len(messages) == 20
        assert "UnicastChosen" in done.stdout
        logged = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        assert {log["adapter"] for log in logged if log["event"] == "receiving an adapter by unicast"} == {"a", "b"}
