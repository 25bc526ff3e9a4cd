"""A client's call to a real server: requests, changes, renewal, documents, limits."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.client_lib.errors import AdminUnavailable
from tandemfeed.client_lib.login.grant import Grant, TopicsRevoked
from tandemfeed.client_lib.login.grant_stream import GrantLetter, GrantStream
from tandemfeed.client_lib.login.session import Session
from tandemfeed.feedcore.topics import TopicEntry
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import Login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import (
    CLUSTER,
    EXAMPLES,
    POLICY,
    ca_of,
    channel_as,
    running_server,
    secret_of,
)
from tests.admin_server.subscriber_by_hand import RefusedRequest, SubscriberCall, grants, keys_of, topics_of

TABLE = f"""
[[feed.table]]
id = "trades"
file = "{EXAMPLES / "converter-table.xml"}"
source_format = "{EXAMPLES / "source-format.xml"}"
"""
WITH_TABLE = CLUSTER.replace("source_stream_ids = [1, 2]", 'source_stream_ids = [1, 2]\ntable = "trades"') + TABLE
SECOND_FEED = CLUSTER.replace("feed_id = 1", "feed_id = 2").replace('name = "equities"', 'name = "bonds"')
SECOND_FEED = SECOND_FEED.replace("equities.ticks", "bonds.ticks").replace("239.192.", "239.193.").replace(":50", ":60")
BOTH_GRANTED = POLICY.replace('["equities.#"]', '["equities.#", "bonds.ticks"]')
WAIT_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path, cluster_text=WITH_TABLE + SECOND_FEED, policy_text=BOTH_GRANTED) as running:
        yield running


def bearer_of(server: AdminServer, identity: str, valid_s: int) -> str:
    """A bearer for the admin server whose token is valid for this long."""
    key = Ed25519PrivateKey.generate()
    token = server.authentication.issue_token(server.policy[identity], key.public_key().public_bytes_raw(), valid_s)
    return Login(*token, key).bearer(ADMIN_SERVER)


def session_of(server: AdminServer) -> Session:
    return Session(server.endpoint, ca_of(server), "reader", secret_of(server, "reader"))


def test_one_call_serves_subscriptions_to_several_feeds(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        call = SubscriberCall(channel)
        assert topics_of(call.subscribe("*.ticks")) == ["equities.ticks"]
        bonds = call.subscribe(feed="bonds", subscription_id=2)
        assert (topics_of(bonds), bonds.feed.feed_id) == (["bonds.ticks"], 2)
        assert not bonds.documents, "the same message model is sent once"
        adapter = Adapter(server, "a")
        adapter.await_order("lease_granted")
        change = call.next()
        assert change.subscription_id == 1, "the change concerns the other feed"
        while not change.grant.active.adapter_id:
            change = call.next()
        call.ask(cancel=admin_pb2.CancelRequest(subscription_id=1))
        with pytest.raises(RefusedRequest, match="this call has no subscription 1"):
            call.modify("equities.ticks")
        assert topics_of(call.modify("#", subscription_id=2)) == ["bonds.ticks"]
        with pytest.raises(RefusedRequest, match="nothing would be left"):
            call.modify(TopicEntry("#", is_removed=True), subscription_id=2)
        call.close()
        adapter.vanish()


def test_a_takeover_is_pushed_with_its_reason(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        first = Adapter(server, "a")
        first.await_order("lease_granted")
        call = SubscriberCall(channel)
        former = call.subscribe().active
        second = Adapter(server, "b")
        second.await_order("cluster_changed")
        first.vanish()
        second.await_order("lease_granted")
        now = call.next().grant.active
        while now.adapter_id != 2:
            now = call.next().grant.active
        assert now.epoch > former.epoch
        assert now.takeover_reason == "stream_ended"
        call.close()
        second.vanish()


def test_a_call_ends_with_its_token_and_a_renewed_one_does_not(server: AdminServer) -> None:
    bearers = {ADMIN_SERVER: bearer_of(server, "reader", 3)}
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, bearers.__getitem__) as channel:
        ends, stays = SubscriberCall(channel), SubscriberCall(channel)
        for call in (ends, stays):
            call.subscribe()
        with pytest.raises(RefusedRequest, match="another identity"):
            stays.ask(renew=admin_pb2.RenewRequest(bearer=bearer_of(server, "stranger", 60)))
        with pytest.raises(RefusedRequest, match="token refused"):
            stays.ask(renew=admin_pb2.RenewRequest(bearer="nonsense"))
        renewed = stays.ask(renew=admin_pb2.RenewRequest(bearer=bearer_of(server, "reader", 60))).renewed
        assert renewed.expires_unix_ns > time.time_ns() + 50_000_000_000
        with pytest.raises(grpc.RpcError, match="the call's token has expired") as ended:
            ends.next()
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert topics_of(stays.modify("equities.ticks")) == ["equities.ticks"]
        stays.close()


def test_the_client_renews_its_call_before_the_token_expires(server: AdminServer) -> None:
    issue = server.authentication.issue_token
    server.authentication.issue_token = lambda identity, key, **_: issue(identity, key, 2)  # type: ignore[method-assign]
    session, letters = session_of(server), list[GrantLetter]()
    stream = GrantStream(session)
    subscription_id, _ = stream.subscribe("equities", (), letters.append, WAIT_S)
    first_token, end_s = session.current_token(), time.monotonic() + 5  # longer than two lives of a token
    try:
        while time.monotonic() < end_s:
            stream.modify(subscription_id, [TopicEntry("#")], WAIT_S)
            time.sleep(0.1)
        assert session.current_token() != first_token
        events = [line["event"] for line in audit_of(server)]
        assert events.count("subscribed") == 1, "the call was never interrupted"
    finally:
        stream.close()


def audit_of(server: AdminServer) -> list[dict[str, object]]:
    return [json.loads(line) for line in (server.folder.path / "audit.jsonl").read_text().splitlines()]


def test_a_client_that_does_not_read_costs_one_update_whatever_changes(server: AdminServer) -> None:
    with channel_as(server, "reader") as slow, channel_as(server, "reader") as quick:
        call = SubscriberCall(slow)
        call.send(subscribe=admin_pb2.SubscribeRequest(subscription_id=1, feed="equities"))
        broker = server.brokers["equities"]
        for _ in range(2_000):
            broker.limit_subscribers(server.policy)
        heard = SubscriberCall(quick)
        heard.subscribe()
        for subscription_id in range(2, 200):  # far more requests than wait at the server
            call.send(cancel=admin_pb2.CancelRequest(subscription_id=subscription_id))
        assert topics_of(heard.modify("#")) == ["equities.ticks"], "others are served"
        answers = [call.next() for _ in range(199)]
        assert [each.request_id for each in answers] == list(range(1, 200))
        for each in (call, heard):
            each.close()


def test_subscriptions_continue_after_a_restart_and_what_was_lost_meanwhile_is_reported(tmp_path: Path) -> None:
    letters: list[GrantLetter] = []
    two = CLUSTER.replace("source_stream_ids = [1, 2]", "source_stream_ids = [1]").replace(
        "[[feed.source_stream]]",
        '[[feed.channel]]\nchannel_id = 2\ntopic = "equities.books"\nsource_stream_ids = [2]\n[[feed.source_stream]]',
        1,
    )
    two = two.replace('5011" }', '5011", 2 = "239.192.2.1:5021" }').replace(
        '5012" }', '5012", 2 = "239.192.2.2:5022" }'
    )
    with running_server(tmp_path, cluster_text=two) as server:
        endpoint = server.endpoint
        stream = GrantStream(session_of(server))
        books, grant = stream.subscribe("equities", [TopicEntry("*.books")], lambda _letter: None, WAIT_S)
        everything, grant = stream.subscribe("equities", [], letters.append, WAIT_S)
        assert grant.topics == {"equities.ticks", "equities.books"}
        stream.cancel(books)
    with pytest.raises(AdminUnavailable):
        stream.modify(everything, [TopicEntry("equities.books", is_removed=True)], 0.5)
    policy = POLICY.replace('["equities.#"]', '["equities.books"]')
    with running_server(tmp_path, cluster_text=two, policy_text=policy, listen=endpoint):
        end_s = time.monotonic() + WAIT_S
        while len(letters) < 2:
            assert time.monotonic() < end_s, letters
            time.sleep(0.02)
        revoked, granted = letters[-2:]
        assert isinstance(revoked, TopicsRevoked)
        assert (revoked.topics, revoked.is_last) == (("equities.ticks",), False)
        assert isinstance(granted, Grant)
        assert granted.topics == {"equities.books"}
        stream.close()


def test_a_change_waits_for_the_server_unless_its_subscription_ends(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        endpoint, stream = server.endpoint, GrantStream(session_of(server))
        kept, _ = stream.subscribe("equities", [], lambda _letter: None, WAIT_S)
        ended, _ = stream.subscribe("equities", [], lambda _letter: None, WAIT_S)
    with pytest.raises(AdminUnavailable):
        stream.modify(kept, [TopicEntry("#")], 0.5)
    with ThreadPoolExecutor(2) as threads:
        change = threads.submit(stream.modify, kept, [TopicEntry("#")], WAIT_S)
        refused = threads.submit(stream.modify, ended, [TopicEntry("#")], WAIT_S)
        stream.cancel(ended)
        with pytest.raises(ValueError, match="the subscription has ended"):
            refused.result()
        with running_server(tmp_path, listen=endpoint):
            change.result()
            stream.close()


def document_of(channel: grpc.Channel, feed: str, document_id: str, version: str) -> admin_pb2.Document:
    request = admin_pb2.GetDocumentRequest(feed=feed, id=document_id, version=version)
    return admin_pb2_grpc.StreamAdministrationStub(channel).GetDocument(request)


def test_a_grant_names_model_and_table_which_the_client_can_fetch(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        (granted,) = next(grants(channel)).channels
        for name, file in (
            (granted.message_model, "message-model.xml"),
            (granted.converter_table, "converter-table.xml"),
        ):
            document = document_of(channel, "equities", name.id, name.version)
            assert document.version == name
            assert document.content == (EXAMPLES / file).read_bytes()
        assert granted.converter_table.id == "trades"
        (bonds,) = next(grants(channel, feed="bonds")).channels
        assert not bonds.HasField("converter_table")


def test_a_document_that_does_not_exist_is_refused_like_one_that_is_not_granted(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        version = next(grants(channel)).channels[0].converter_table.version

    def refused(identity: str, feed: str, document_id: str) -> tuple[grpc.StatusCode, str]:
        with channel_as(server, identity) as channel, pytest.raises(grpc.RpcError) as refusal:
            document_of(channel, feed, document_id, version)
        return refusal.value.code(), str(refusal.value.details())

    exists, missing = refused("stranger", "equities", "trades"), refused("stranger", "squities", "trades")
    assert exists == (missing[0], missing[1].replace("squities", "equities"))
    exists, missing = refused("stranger", "equities", "trades"), refused("stranger", "equities", "tradez")
    assert exists == (missing[0], missing[1].replace("tradez", "trades"))
    assert exists[0] is grpc.StatusCode.NOT_FOUND


def conversion(table_version: str, channel_id: int = 0) -> admin_pb2.ChannelConversion:
    return admin_pb2.ChannelConversion(
        channel_id=channel_id, converter_table=admin_pb2.DocumentVersion(version=table_version)
    )


def test_adapters_are_sent_the_documents_by_which_to_convert(server: AdminServer) -> None:
    adapter = Adapter(server, "a")
    (found,) = adapter.registered.conversions
    by_version = {each.version.version: each for each in adapter.registered.documents}
    assert by_version[found.source_format.version].content == (EXAMPLES / "source-format.xml").read_bytes()
    assert by_version[found.converter_table.version].version == found.converter_table
    adapter.vanish()


def test_an_adapter_with_another_table_than_the_definition_is_refused(server: AdminServer) -> None:
    with pytest.raises(
        grpc.RpcError, match="the converter table of a has version 0a1b2c, but the definition"
    ) as refused:
        Adapter(server, "a", conversions=[conversion("0a1b2c")])
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_an_adapter_with_another_table_than_an_attending_one_is_refused(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        first = Adapter(server, "a", conversions=[conversion("one")])
        first.await_order("lease_granted")
        with pytest.raises(grpc.RpcError, match="version two, but a, which attends, converts channel 1 by version one"):
            Adapter(server, "b", conversions=[conversion("two")])
        same = Adapter(server, "b", conversions=[conversion("one", channel_id=1)])
        for adapter in (first, same):
            adapter.vanish()


def test_an_adapter_that_registered_before_another_attended_is_failed_when_their_tables_differ(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        first = Adapter(server, "a", conversions=[conversion("one")], attends=False)
        second = Adapter(server, "b", conversions=[conversion("two")])
        second.await_order("lease_granted")
        first.attend()
        assert "version one" in first.await_order("failed").failed.reason
        for adapter in (first, second):
            adapter.vanish()


def test_a_channel_with_an_unknown_table_and_a_table_for_another_format_are_refused(tmp_path: Path) -> None:
    from tandemfeed.admin_server.settings import load_cluster
    from tandemfeed.transport.settings_file import SettingsError

    other = tmp_path / "other.xml"
    other.write_text((EXAMPLES / "source-format.xml").read_text().replace('name="ticks"', 'name="other"'))
    for text, error in (
        (
            CLUSTER.replace("[1, 2]", '[1, 2]\ntable = "trades"'),
            r'channel\[0\].table is "trades", which is not the id of a \[\[feed',
        ),
        (CLUSTER + TABLE, r'table\[0\].id is "trades", which no channel names'),
        (WITH_TABLE.replace("converter-table.xml", "none.xml"), r"table\[0\].file cannot be read: .*none.xml"),
        (
            WITH_TABLE.replace("converter-table.xml", "source-format.xml"),
            "is not a usable converter table: .*<sourceFor",
        ),
        (
            WITH_TABLE.replace(str(EXAMPLES / "source-format.xml"), str(other)),
            'is the source format "other", but the ta',
        ),
    ):
        (tmp_path / "message-model.xml").write_bytes((EXAMPLES / "message-model.xml").read_bytes())
        (tmp_path / "cluster.toml").write_text(text)
        with pytest.raises(SettingsError, match=error):
            load_cluster(tmp_path / "cluster.toml")


def test_the_keys_of_a_grant_are_those_of_its_channels(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        grant = next(grants(channel))
        assert {key.channel_id for key in keys_of(grant)} == {each.channel_id for each in grant.channels}
        assert all(key.expires_unix_ns > time.time_ns() for key in keys_of(grant))
