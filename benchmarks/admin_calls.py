"""A real admin server under calls: subscriptions, grants a second, first steps of logins, and revocations.

The server, its adapters and its source gateway are processes; the clients are threads of the benchmark, on the same
processors. So the figures include both sides of each call.
"""

from __future__ import annotations

import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import grpc
import scramp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.client_lib import Revoked, connect
from tandemfeed.deploy.cluster.cluster import Cluster
from tandemfeed.deploy.cluster.ports import LOOPBACK
from tandemfeed.deploy.cluster.topology import OPERATOR, SUBSCRIBER, Shape
from tandemfeed.deploy.drills.source import PACKET_MESSAGES_MAX, make_recording, prepare_journal
from tandemfeed.feedcore.wire.output_packet import OUTPUT_HEADER, OUTPUT_HEADER_SIZE
from tandemfeed.runtime.zeromq import Context
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import MECHANISM, Login, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.tokens import key_to_text
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver
from tandemfeed.transport.sealing.stream_signatures import SIGNATURE_MAGIC
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2

ROUND_TRIPS, CLIENTS, GRANTS_PER_CLIENT = 1_000, 8, 150
LOGINS = 300
REVOCATIONS, LISTEN_S = 10, 2.0
START_TIMEOUT_S = 120.0
SOURCE_RATE = 500.0
# One for each client, because the server limits the calls of an identity.
SUBSCRIBERS = [f"subscriber-{number}" for number in range(CLIENTS)]
KEY_ID_PLACE = 8


class Callers:
    """Connections to the admin server of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.endpoint = cluster.admin
        self._state = cluster.folder / "admin"
        self.ca = (self._state / "ca.pem").read_bytes()

    def secret(self, identity: str) -> str:
        """An identity's secret."""
        return (self._state / "secrets" / f"{identity}.secret").read_text().strip()

    def login(self, identity: str) -> Login:
        """A login of an identity."""
        return login(self.endpoint, self.ca, identity, self.secret(identity))

    def channel(self, session: Login | None = None) -> grpc.Channel:
        """A connection, authenticated if there is a login."""
        return open_channel(self.endpoint, self.ca, ADMIN_SERVER, None if session is None else session.bearer)


def measure() -> dict[str, object]:
    """Every figure of a running cluster."""
    with tempfile.TemporaryDirectory() as folder, _cluster(Path(folder)) as cluster:
        callers = Callers(cluster)
        with ExitStack() as opened:
            channels = [opened.enter_context(callers.channel(callers.login(each))) for each in SUBSCRIBERS]
            for channel in channels:
                subscribe_once(channel)  # the first call opens the connection
            times_ms = [_timed_ms(partial(subscribe_once, channels[number % CLIENTS])) for number in range(ROUND_TRIPS)]
        return {
            "subscribe_ms": _percentiles(times_ms),
            "grants_per_s": round(_grants_per_s(callers)),
            "login_first_step_ms": _login_steps(callers),
            "revocation_ms": _revocations(cluster, callers),
        }


def _subscriber(identity: str) -> str:
    """An identity in the policy."""
    return f'[identity.{identity}]\nroles = ["client"]\nsubscribe = ["demo.#"]\n'


def subscribe_once(channel: grpc.Channel) -> None:
    """Subscribe to the feed, wait for the grant, and leave."""
    subscribe = admin_pb2.SubscribeRequest(subscription_id=1, feed="ticks")
    requests = iter([admin_pb2.SubscriptionRequest(request_id=1, subscribe=subscribe)])
    call = admin_pb2_grpc.StreamAdministrationStub(channel).Subscribe(requests)
    assert next(call).HasField("grant")
    call.cancel()


def _grants_per_s(callers: Callers) -> float:
    def subscribe_often(channel: grpc.Channel) -> None:
        for _ in range(GRANTS_PER_CLIENT):
            subscribe_once(channel)

    channels = [callers.channel(callers.login(identity)) for identity in SUBSCRIBERS]
    for channel in channels:
        subscribe_once(channel)
    began_s = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(subscribe_often, channels))
    rate = CLIENTS * GRANTS_PER_CLIENT / (time.perf_counter() - began_s)
    for channel in channels:
        channel.close()
    return rate


def _login_steps(callers: Callers) -> dict[str, object]:
    """The first step of a login for an identity that exists and for others, in turn; it must not tell which exist."""
    with callers.channel() as channel:
        stub = admin_pb2_grpc.AuthenticationStub(channel)

        def begin(identity: str) -> None:
            nonce = key_to_text(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
            first = scramp.ScramClient([MECHANISM], identity, "x", c_nonce=nonce).get_client_first()
            stub.Begin(admin_pb2.BeginAuthenticationRequest(client_first=first))

        begin(SUBSCRIBER)
        known, unknown = [], []
        for _ in range(LOGINS):
            known.append(_timed_ms(lambda: begin(SUBSCRIBER)))
            unknown.append(_timed_ms(lambda: begin(secrets.token_hex(6))))
    ratio = statistics.median(unknown) / statistics.median(known)
    return {"known": _percentiles(known), "unknown": _percentiles(unknown), "unknown_to_known": round(ratio, 3)}


def _revocations(cluster: Cluster, callers: Callers) -> dict[str, object]:
    """From the change of the policy until the client's stream has ended, and until the last packet that it can open."""
    policy = cluster.folder / "policy.toml"
    granted = policy.read_text()
    ended, silent = [], []
    with callers.channel(callers.login(OPERATOR)) as channel:
        administration = admin_pb2_grpc.PolicyAdministrationStub(channel)

        def put_in_force(text: str) -> None:
            policy.write_text(text)
            administration.ReloadPolicy(admin_pb2.ReloadPolicyRequest())

        for _ in range(REVOCATIONS):
            each = _revoke(callers, lambda: put_in_force(granted.replace('"demo.#"]\n', '"none.#"]\n', 1)))
            ended.append(each[0])
            silent.append(each[1])
            put_in_force(granted)
    return {"stream_ends": _percentiles(ended), "last_packet_with_former_key": _percentiles(silent)}


def _revoke(callers: Callers, revoke: Callable[[], None]) -> tuple[float, float]:
    """(milliseconds until the stream has ended, until the last packet that the former client could read)."""
    connection = connect(admin=callers.endpoint, ca=callers.ca, identity="leaver", secret=callers.secret("leaver"))
    with connection as client, client.subscribe(feed="ticks", start="live") as subscription, Context() as context:
        while not subscription.poll(LISTEN_S):
            pass
        groups = [group for adapter in _adapters(callers) for group in adapter.groups.values()]
        receivers = [ZeromqReceiver(context, LOOPBACK, group) for group in groups]
        known: set[int] = set()
        while not known:
            known |= {key_id for receiver in receivers for key_id in _key_ids(receiver)}
        began_s = last_s = time.perf_counter()
        revoke()
        ended_s = 0.0
        while (now_s := time.perf_counter()) < began_s + LISTEN_S:
            if any(key_id in known for receiver in receivers for key_id in _key_ids(receiver)):
                last_s = now_s
            if not ended_s and any(isinstance(item, Revoked) for item in subscription.poll(0.001)):
                ended_s = time.perf_counter()
        for receiver in receivers:
            receiver.close()
    assert ended_s, "the stream did not end"
    return (ended_s - began_s) * 1e3, (last_s - began_s) * 1e3


def _adapters(callers: Callers) -> list[common_pb2.AdapterDescription]:
    with callers.channel(callers.login(OPERATOR)) as channel:
        request = admin_pb2.GetStatusRequest(feed="ticks")
        (status,) = admin_pb2_grpc.OperationsStub(channel).GetStatus(request).feeds
    return [each.adapter for each in status.adapters]


def _key_ids(receiver: ZeromqReceiver) -> Iterator[int]:
    """The keys of the output packets that have arrived, not those of signatures, which reveal nothing."""
    while (datagram := receiver.receive()) is not None:
        if len(datagram) >= OUTPUT_HEADER_SIZE and not datagram.startswith(SIGNATURE_MAGIC):
            yield OUTPUT_HEADER.unpack_from(datagram)[KEY_ID_PLACE]


@contextmanager
def _cluster(folder: Path) -> Iterator[Cluster]:
    """Two adapters and a gateway, which sends."""
    message_count = int(SOURCE_RATE) * 600
    recording = make_recording(folder, source=None, message_count=message_count, symbols=100)
    with Cluster(folder, Shape(backups=1)) as cluster:
        (feed,) = cluster.feeds
        policy = folder / "policy.toml"
        policy.write_text("".join(map(_subscriber, ["leaver", *SUBSCRIBERS])) + policy.read_text())
        cluster.start_admin()
        prepare_journal(recording, feed, folder / "cluster.toml", cluster.journal(feed), PACKET_MESSAGES_MAX)
        cluster.start_gateway(feed, SOURCE_RATE)
        for name in "ab":
            cluster.start_adapter(feed, name)
        cluster.watches[feed.feed_id].await_healthy(START_TIMEOUT_S)
        cluster.processes[feed.gateway].send_line("start")
        yield cluster


def _timed_ms(call: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1e3


def _percentiles(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    return {
        "p50": round(statistics.median(ordered), 2),
        "p99": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 2),
    }
