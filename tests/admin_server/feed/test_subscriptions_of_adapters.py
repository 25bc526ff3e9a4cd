"""The real server: what adapters learn of subscriptions, and clients of unicast addresses."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import CLUSTER, channel_as, running_server
from tests.admin_server.subscriber_by_hand import RefusedRequest, SubscriberCall

KEY = secrets.token_bytes(32)
LISTEN = "127.0.0.1:7450"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with_unicast = CLUSTER.replace('identity = "adapter-a"\n', f'identity = "adapter-a"\nunicast = "{LISTEN}"\n')
    with running_server(tmp_path, cluster_text=with_unicast) as running:
        yield running


@contextmanager
def subscription(server: AdminServer, client_key: bytes = KEY) -> Iterator[SubscriberCall]:
    with channel_as(server, "reader") as channel:
        call = SubscriberCall(channel)
        subscribe = admin_pb2.SubscribeRequest(subscription_id=1, feed="equities", unicast_client_key=client_key)
        call.ask(subscribe=subscribe)
        yield call
        call.close()


def subscriptions_of(adapter: Adapter) -> admin_pb2.SubscriptionsChanged:
    return adapter.await_order("subscriptions_changed").subscriptions_changed


def test_an_adapter_gets_the_whole_list_and_then_each_change(server: AdminServer) -> None:
    with subscription(server):
        adapter = Adapter(server, "a")
        whole = subscriptions_of(adapter)
        assert whole.is_whole
        assert [(client.client_key, list(client.channel_ids)) for client in whole.admitted] == [(KEY, [1])]
        assert whole.subscriber_counts == {1: 1}
        with subscription(server, b""):
            changed = subscriptions_of(adapter)
        assert not changed.is_whole
        assert not changed.admitted
        assert changed.subscriber_counts == {1: 2}


def test_a_revoked_subscription_removes_the_clients_key(server: AdminServer, tmp_path: Path) -> None:
    adapter = Adapter(server, "a")
    subscriptions_of(adapter)
    policy = tmp_path / "policy.toml"
    with subscription(server), channel_as(server, "operator") as operator:
        assert subscriptions_of(adapter).admitted
        policy.write_text(policy.read_text().replace('subscribe = ["equities.#"]', 'subscribe = ["futures.#"]'))
        admin_pb2_grpc.PolicyAdministrationStub(operator).ReloadPolicy(admin_pb2.ReloadPolicyRequest())
        changed = subscriptions_of(adapter)
        assert list(changed.removed_client_keys) == [KEY]
        assert changed.subscriber_counts == {}


def test_clients_learn_where_an_adapter_listens_when_it_reports_that(server: AdminServer) -> None:
    with subscription(server) as call:
        server_key = secrets.token_bytes(32)
        adapter = Adapter(server, "a", unicast_server_key=server_key)
        assert adapter.registered.unicast_listen == LISTEN
        adapter.report(unicast_endpoint=LISTEN)
        described = next(each for update in call.call for each in update.grant.adapters if each.unicast_endpoint)
        assert (described.unicast_endpoint, described.unicast_server_key) == (LISTEN, server_key)


def test_an_adapter_without_a_unicast_address_is_not_asked_to_listen(server: AdminServer) -> None:
    assert Adapter(server, "b").registered.unicast_listen == ""


def test_a_client_key_of_another_size_is_refused(server: AdminServer) -> None:
    with (
        pytest.raises(RefusedRequest, match="unicast_client_key has 5 bytes, expected 32") as refused,
        subscription(server, b"short"),
    ):
        pass
    assert refused.value.kind == admin_pb2.REFUSAL_KIND_INVALID
