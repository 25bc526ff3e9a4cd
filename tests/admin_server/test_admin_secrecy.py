"""What the server must not reveal, which resources it must limit, and what it must audit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandemfeed.admin_server.identity.scram import CLIENT_FIRST_SIZE_MAX, CONVERSATION_COUNT_MAX
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.tokens import key_to_text
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import CLUSTER, POLICY, ca_of, channel_as, running_server
from tests.admin_server.subscriber_by_hand import RefusedRequest, SubscriberCall, grants

NONCE = key_to_text(bytes(range(32)))
Refused = pytest.ExceptionInfo[grpc.RpcError]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path) as running:
        yield running


def audit_of(server: AdminServer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (server.folder.path / "audit.jsonl").read_text().splitlines()]


def begin(server: AdminServer, identity: str) -> admin_pb2.BeginAuthenticationReply:
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) as channel:
        return admin_pb2_grpc.AuthenticationStub(channel).Begin(
            admin_pb2.BeginAuthenticationRequest(client_first=f"n,,n={identity},r={NONCE}")
        )


def salt_and_iterations(server: AdminServer, identity: str) -> str:
    return begin(server, identity).server_first.partition(",")[2]


def test_the_first_reply_does_not_reveal_whether_an_identity_exists(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        with running_server(tmp_path) as server:
            seen.append([salt_and_iterations(server, identity) for identity in ("reader", "nobody", "no-one")])
    assert seen[0] == seen[1], "a salt that changes at a restart would reveal a decoy"
    assert len({len(each) for each in seen[0]}) == 1
    assert len(set(seen[0])) == 3


def test_a_conversation_can_be_used_only_once_and_the_number_of_conversations_is_bounded(server: AdminServer) -> None:
    begun = begin(server, "reader")
    nonce = begun.server_first[2:].partition(",")[0]
    request = admin_pb2.FinishAuthenticationRequest(
        conversation_id=begun.conversation_id, client_final=f"c=biws,r={nonce},p=AAAA"
    )
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) as channel:
        stub = admin_pb2_grpc.AuthenticationStub(channel)
        for reason in ("wrong secret", "this login is unknown"):
            with pytest.raises(grpc.RpcError, match=reason) as refused:
                stub.Finish(request)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        oldest = begin(server, "reader")
        for _ in range(CONVERSATION_COUNT_MAX):
            stub.Begin(admin_pb2.BeginAuthenticationRequest(client_first=f"n,,n=flood,r={NONCE}"))
        with pytest.raises(grpc.RpcError, match="this login is unknown"):
            stub.Finish(admin_pb2.FinishAuthenticationRequest(conversation_id=oldest.conversation_id))


@pytest.mark.parametrize("first", ["", "n,,", "n,,n=,r=a", "p=tls,,n=a,r=b", "n,,n=a=2,r=b", "n" * 2_000])
def test_a_malformed_login_is_an_invalid_argument(server: AdminServer, first: str) -> None:
    assert len("n" * 2_000) > CLIENT_FIRST_SIZE_MAX
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) as channel, pytest.raises(grpc.RpcError) as refused:
        admin_pb2_grpc.AuthenticationStub(channel).Begin(admin_pb2.BeginAuthenticationRequest(client_first=first))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def refusal(channel: grpc.Channel, feed: str, *topics: str) -> tuple[int, str]:
    """The answer to a refused subscription."""
    with pytest.raises(RefusedRequest) as refused:
        next(grants(channel, *topics, feed=feed))
    return refused.value.kind, str(refused.value)


def test_a_refusal_is_the_same_for_what_does_not_exist_and_for_what_is_not_granted(tmp_path: Path) -> None:
    second = CLUSTER.replace('"equities.ticks"', '"equities.books"').replace("feed_id = 1", "feed_id = 2")
    second = second.replace('name = "equities"', 'name = "books"').replace("239.192.", "239.193.").replace(":50", ":60")
    policy = POLICY.replace('["equities.#"]', '["equities.ticks"]')
    with running_server(tmp_path, cluster_text=CLUSTER + second, policy_text=policy) as server:
        with channel_as(server, "reader") as channel:
            granted, missing = refusal(channel, "books"), refusal(channel, "bonds")
            assert granted == (missing[0], missing[1].replace("bonds", "books"))
            assert missing[0] == admin_pb2.REFUSAL_KIND_NOT_GRANTED
            assert missing[1].endswith("available to you: equities")
            granted = refusal(channel, "books", "equities.books")
            assert granted == (missing[0], missing[1].replace("bonds", "books"))
            granted, missing = (refusal(channel, "equities", topic) for topic in ("equities.books", "equities.bonds"))
            assert granted == (missing[0], missing[1].replace("bonds", "books"))
            assert missing[1].endswith("available to you: equities.ticks")
        with channel_as(server, "stranger") as channel:
            for feed in ("equities", "bonds"):
                assert refusal(channel, feed)[1].endswith("available to you: none")


def test_every_refused_call_is_audited_once(server: AdminServer) -> None:
    with (
        open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, lambda _server: "nonsense") as channel,
        pytest.raises(grpc.RpcError),
    ):
        admin_pb2_grpc.OperationsStub(channel).GetStatus(admin_pb2.GetStatusRequest())
    with channel_as(server, "reader") as channel, pytest.raises(grpc.RpcError):
        admin_pb2_grpc.OperationsStub(channel).GetStatus(admin_pb2.GetStatusRequest())
    with channel_as(server, "stranger") as channel:
        refusal(channel, "equities")
    server.stop()  # the stopped server has recorded the end of every call
    server.stop = lambda: None  # type: ignore[method-assign]  # the fixture has nothing left to stop
    refusals = [line for line in audit_of(server) if "refused" in line["event"]]
    assert [(line["event"], line["code"]) for line in refusals] == [
        ("call refused", "UNAUTHENTICATED"),
        ("call refused", "PERMISSION_DENIED"),
        ("subscription refused", "PERMISSION_DENIED"),
    ]
    assert "nonsense" not in json.dumps(refusals)


def test_subscribers_beyond_the_limit_are_refused_and_adapters_are_still_served(tmp_path: Path) -> None:
    with running_server(tmp_path, subscriber_count_max=2) as server, channel_as(server, "reader") as channel:
        for call in (calls := [SubscriberCall(channel) for _ in range(2)]):
            for subscription_id in range(1, 4):
                call.subscribe(subscription_id=subscription_id)
        with pytest.raises(grpc.RpcError, match="2 clients are connected") as refused:
            next(grants(channel))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        adapter = Adapter(server, "a")
        adapter.await_order("lease_granted")
        adapter.vanish()
        for call in calls:
            call.close()


def test_health_watchers_without_a_token_do_not_use_up_threads(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, subscriber_count_max=1) as server,
        open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        watches = []
        for _ in range(60):  # one after the other: the server limits the calls that begin together
            watches.append(stub.Watch(health_pb2.HealthCheckRequest()))
            assert next(watches[-1]).status == health_pb2.HealthCheckResponse.SERVING
        with channel_as(server, "reader") as mine:
            assert admin_pb2_grpc.StreamAdministrationStub(mine).ListFeeds(admin_pb2.ListFeedsRequest()).feeds


def test_after_a_restart_clients_still_receive_the_groups_of_adapters_that_have_not_returned(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        adapter = Adapter(server, "a")
        adapter.await_order("lease_granted")
        adapter.vanish()
    with running_server(tmp_path) as server, channel_as(server, "reader") as channel:
        first = next(grants(channel))
        assert [(each.name, each.replica_state, dict(each.groups)) for each in first.adapters] == [
            ("a", "away", {1: "239.192.2.1:5011"})
        ]


def test_two_servers_cannot_share_a_state_folder(tmp_path: Path) -> None:
    with running_server(tmp_path), pytest.raises(OSError, match="in use by another"), running_server(tmp_path):
        pass
