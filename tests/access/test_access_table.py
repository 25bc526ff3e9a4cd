"""Every call of every server, made by every kind of caller in a real cluster, gets the answer of docs/access.md."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from tandemfeed.deploy.cluster.cluster import Cluster
from tandemfeed.deploy.cluster.topology import Shape
from tandemfeed.deploy.drills.source import PACKET_MESSAGES_MAX, make_recording, prepare_journal
from tandemfeed.transport.calls.channels import BearerFor, open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.access.access_table import expectations
from tests.access.callers import POLICY, SERVER_NAMES, STAYING_POLICY, bearers
from tests.access.calls import CALLS, OK, REGISTRATION, code_of, names_in_contracts

START_TIMEOUT_S = 120.0
Ask = Callable[[str, str, BearerFor | None], tuple[grpc.StatusCode, str]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two feeds. Of the first, adapters a and b and the gateway run; of the second, its contribution gateway."""
    folder = Path(tmp_path_factory.mktemp("access"))
    recording = make_recording(folder, source=None, message_count=200, symbols=20)
    with Cluster(folder, Shape(feeds=2, contributed=1, backups=2)) as running:
        policy = folder / "policy.toml"
        usual = policy.read_text() + STAYING_POLICY
        policy.write_text(usual + POLICY)
        running.start_admin()
        feed = running.feeds[0]
        prepare_journal(recording, feed, folder / "cluster.toml", running.journal(feed), PACKET_MESSAGES_MAX)
        running.start_gateway(feed, rate=200.0)
        running.start_contribution_gateway(running.feeds[1])
        for name in "ab":
            running.start_adapter(feed, name)
        running.watches[feed.feed_id].await_healthy(START_TIMEOUT_S)
        running.processes[feed.gateway].send_line("start")
        yield running


@pytest.fixture(scope="module")
def ask(cluster: Cluster, callers: Mapping[str, list[BearerFor | None]]) -> Iterator[Ask]:
    """Makes a call at a server of the cluster."""
    feed, state = cluster.feeds[0], cluster.folder / "admin"
    ca = (state / "ca.pem").read_bytes()
    ready = cluster.processes[feed.adapter("a")].await_event("ready", START_TIMEOUT_S)
    gateway = cluster.processes[feed.gateway].await_event("ready", START_TIMEOUT_S)
    endpoints = {"admin server": cluster.admin, "adapter": ready["rpc"], "gateway": gateway["rpc"]}
    contributed = cluster.processes[cluster.feeds[1].gateway].await_event("ready", START_TIMEOUT_S)
    endpoints["contribution gateway"] = contributed["rpc"]
    with ExitStack() as opened:
        channels: dict[tuple[str, BearerFor | None], grpc.Channel] = {}
        (own,) = callers["adapter"]
        channel_of_c = opened.enter_context(open_channel(cluster.admin, ca, ADMIN_SERVER, own))

        present: list[int] = []  # the start of adapter c that no call has ended yet

        def incarnation() -> int:
            if not present:
                reply = admin_pb2_grpc.AdapterRegistryStub(channel_of_c).Register(REGISTRATION)
                present.append(reply.self.incarnation)
            return present[0]

        def make(server: str, call: str, bearer: BearerFor | None) -> tuple[grpc.StatusCode, str]:
            if (server, bearer) not in channels:
                channel = open_channel(endpoints[server], ca, SERVER_NAMES[server], bearer)
                channels[server, bearer] = opened.enter_context(channel)
            code, details = code_of(channels[server, bearer], call, incarnation)
            if code is OK and call.startswith("AdapterRegistry/"):
                present.clear()
            return code, details

        (revoked,) = callers["revoked"]
        for server, call in (
            ("adapter", "Replay/Replay"),
            ("gateway", "SourceReplay/Fill"),
            ("contribution gateway", "Contribution/Open"),
        ):
            await_refusal(
                lambda server=server, call=call: make(server, call, revoked)[0]
            )  # they learn it within a second
        yield make


def await_refusal(code: Callable[[], grpc.StatusCode]) -> None:
    """Wait until a call is not authenticated any more."""
    give_up_at_s = time.monotonic() + START_TIMEOUT_S
    while code() is not grpc.StatusCode.UNAUTHENTICATED:
        assert time.monotonic() < give_up_at_s, "a revoked token is still accepted"


@pytest.fixture(scope="module")
def callers(cluster: Cluster) -> Mapping[str, list[BearerFor | None]]:
    """What each caller sends. The identity of `revoked` is removed from the policy after its login."""
    state = cluster.folder / "admin"
    found = bearers(cluster.admin, state)
    policy = cluster.folder / "policy.toml"
    policy.write_text(policy.read_text().replace(POLICY, ""))
    (operator,) = found["admin"]
    with open_channel(cluster.admin, (state / "ca.pem").read_bytes(), ADMIN_SERVER, operator) as channel:
        admin_pb2_grpc.PolicyAdministrationStub(channel).ReloadPolicy(admin_pb2.ReloadPolicyRequest())
    return found


def test_the_page_and_the_calls_name_every_call_of_the_contracts() -> None:
    listed = Counter(each.call for each in expectations() if each.caller == "nobody")
    assert listed == Counter(names_in_contracts())
    assert CALLS.keys() == listed.keys()


@pytest.mark.processes
@pytest.mark.parametrize("server", SERVER_NAMES)
def test_every_caller_gets_the_answer_of_the_page(
    server: str, ask: Ask, callers: Mapping[str, list[BearerFor | None]]
) -> None:
    wrong = [
        f"{expected.call} by {expected.caller}: {code.name} instead of {(expected.code or OK).name}: {details}"
        for expected in expectations()
        if expected.server == server
        for bearer in callers[expected.caller]
        for code, details in [ask(server, expected.call, bearer)]
        if code is not (expected.code or OK)
    ]
    assert not wrong, "\n".join(wrong)
