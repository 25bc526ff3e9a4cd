"""The policy of a running server: enforced, reloaded, explained."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from tandemfeed.admin_server.command.admin_command import main as admin
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import CLUSTER, POLICY, channel_as, running_server
from tests.admin_server.subscriber_by_hand import RefusedRequest, SubscriberCall, grants, keys_of, topics_of

WAIT_S = 60.0
BOTH_TOPICS = CLUSTER.replace("source_stream_ids = [1, 2]", "source_stream_ids = [1]").replace(
    "[[feed.source_stream]]",
    '[[feed.channel]]\nchannel_id = 2\ntopic = "equities.books"\nsource_stream_ids = [2]\n[[feed.source_stream]]',
    1,
)
BOTH_TOPICS = BOTH_TOPICS.replace('5011" }', '5011", 2 = "239.192.2.1:5021" }').replace(
    '5012" }', '5012", 2 = "239.192.2.2:5022" }'
)
READER = '[identity.reader]\nroles = ["client"]\nsubscribe = ["equities.#"]\n'
OBSERVER = '[[rule]]\nto = ["reader"]\nactions = ["observe"]\nfeeds = ["equities"]\n'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path, cluster_text=BOTH_TOPICS) as running:
        yield running


def write_policy(server: AdminServer, text: str) -> None:
    """Replace the file as an editor does, so that the server never reads half of it."""
    draft = server.policy.path.with_suffix(".new")
    draft.write_text(text)
    draft.rename(server.policy.path)


def audit_of(server: AdminServer) -> list[dict[str, object]]:
    return [json.loads(line) for line in (server.folder.path / "audit.jsonl").read_text().splitlines()]


def run(server: AdminServer, *arguments: str) -> int:
    """Run `tandemfeed admin policy` as the operator; return its status."""
    folder = server.folder.path
    options = ["--admin", server.endpoint, "--ca", str(folder / "ca.pem"), "--identity", "operator"]
    try:
        return admin(["policy", *arguments, *options, "--secret-file", str(folder / "secrets" / "operator.secret")])
    except SystemExit as exited:
        return int(exited.code or 0)


def test_a_subscription_without_topics_gets_all_that_is_granted(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        assert topics_of(next(grants(channel))) == ["equities.ticks", "equities.books"]
        write_policy(server, POLICY.replace("equities.#", "equities.books"))
        assert run(server, "reload") == 0
        update = next(grants(channel))
        assert topics_of(update) == ["equities.books"]
        assert {key.channel_id for key in keys_of(update)} == {2}


def test_a_changed_file_takes_topics_from_a_subscription_which_continues_with_the_rest(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        call = SubscriberCall(channel)
        known = {key.key_id for key in keys_of(call.subscribe())}
        call.subscribe("equities.books", subscription_id=2)
        write_policy(server, POLICY.replace("equities.#", "equities.books"))
        revoked = call.next()
        while not revoked.HasField("revoked"):
            revoked = call.next()
        assert (revoked.subscription_id, list(revoked.revoked.topics)) == (1, ["equities.ticks"])
        assert not revoked.revoked.is_last
        grant = call.next().grant
        assert topics_of(grant) == ["equities.books"]
        assert {key.key_id for key in keys_of(grant)} <= known, "the new key of the lost channel is not sent"
        with pytest.raises(RefusedRequest, match=r"equities\.ticks"):
            call.modify("equities.ticks")
        assert call.call.is_active()
        write_policy(server, POLICY)
        assert topics_of(call.next().grant) == ["equities.ticks", "equities.books"], "a standing request"
        call.close()
    revoked_lines = [line for line in audit_of(server) if line["event"] == "subscription revoked"]
    assert [(line["identity"], line["topics"]) for line in revoked_lines] == [("reader", ["equities.ticks"])]


def test_the_keys_of_a_lost_channel_are_replaced_and_sent_to_those_who_stay(tmp_path: Path) -> None:
    rule = '[[rule]]\nto = ["stranger"]\nactions = ["subscribe"]\ntopics = ["equities.#"]\n'
    with running_server(tmp_path, cluster_text=BOTH_TOPICS, policy_text=POLICY + rule) as server:
        adapter = Adapter(server, "a")
        with channel_as(server, "reader") as channel, channel_as(server, "stranger") as other:
            known = {key.key_id: key.channel_id for key in keys_of(next(grants(other)))}  # has left, but has the keys
            stays = grants(channel)
            assert {key.key_id for key in keys_of(next(stays))} == set(known)
            write_policy(server, POLICY + rule.replace("equities.#", "equities.books"))
            fresh: list[common_pb2.StreamKey] = []
            while not fresh:
                fresh = [key for key in keys_of(next(stays)) if key.key_id not in known]
            assert [key.channel_id for key in fresh] == [1], "the stranger has lost channel 1 only"
            while fresh[0].not_before_unix_ns:  # until it is valid
                fresh = [key for key in keys_of(next(stays)) if key.key_id not in known]
            changed = adapter.await_order("cluster_changed").cluster_changed
            while fresh[0].key_id not in {key.key_id for key in changed.keys if not key.not_before_unix_ns}:
                changed = adapter.await_order("cluster_changed").cluster_changed
            assert [key.key_id for key in changed.keys if key.channel_id == 1][-1] == fresh[0].key_id
            assert fresh[0].key_id in {key.key_id for key in changed.decision_keys}
            assert topics_of(next(grants(other))) == ["equities.books"]
        adapter.vanish()
    assert [line["topics"] for line in audit_of(server) if line["event"] == "keys replaced"] == [["equities.ticks"]]


def test_an_expired_right_ends_its_streams(tmp_path: Path) -> None:
    until = datetime.now(UTC) + timedelta(seconds=2)
    rule = f'[[rule]]\nto = ["stranger"]\nactions = ["subscribe"]\ntopics = ["#"]\nuntil = {until.isoformat()}\n'
    with running_server(tmp_path, policy_text=POLICY + rule) as server, channel_as(server, "stranger") as channel:
        stream = grants(channel)
        assert topics_of(next(stream)) == ["equities.ticks"]
        list(stream)
        assert datetime.now(UTC) >= until
        with pytest.raises(RefusedRequest, match="not granted"):
            next(grants(channel))


def test_a_bad_policy_is_refused_and_the_former_one_stays(
    server: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_policy(server, POLICY.replace("subscribe =", "subscribes ="))
    assert run(server, "reload") == 2
    error = f"{server.policy.path}, line 12: identity.reader.subscribes is not a known key; did you mean subscribe?"
    assert f"{error}; the former policy stays in force" in capsys.readouterr().err
    refusals = [line["reason"] for line in audit_of(server) if line["event"] == "policy refused"]
    assert error in refusals
    assert run(server, "show", "--json") == 0
    assert json.loads(capsys.readouterr().out)["refusal"] == error
    with channel_as(server, "reader") as channel:
        assert len(topics_of(next(grants(channel)))) == 2


def test_a_policy_without_an_adapter_of_the_cluster_is_refused(
    server: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_policy(server, POLICY.replace("[identity.adapter-b]", "[identity.someone]"))
    assert run(server, "reload") == 2
    assert 'is "adapter-b", which is not in the policy' in capsys.readouterr().err


def test_an_identity_that_left_the_policy_is_refused_although_its_token_is_valid(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        stream, call = grants(channel), SubscriberCall(channel)
        next(stream)
        call.subscribe()
        write_policy(server, POLICY.replace(READER, ""))
        assert call.next().revoked.is_last
        list(stream)
        with pytest.raises(grpc.RpcError, match="reader is no longer in the policy"):
            call.next()
        with pytest.raises(grpc.RpcError, match="reader is no longer in the policy") as refused:
            next(grants(channel))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_explain_names_the_deciding_rule_and_its_line(server: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    path = server.policy.path
    for arguments, answer in (
        (["reader", "equities.ticks"], f"reader may subscribe to topic equities.ticks: {path}, line 10: identity.re"),
        (["operator", "equities", "--action", "administer"], f"operator may administer feed equities: {path}, line 16"),
        (["stranger", "equities.ticks"], f"stranger may not subscribe to topic equities.ticks: no rule of {path}"),
        (["unknown", "equities.ticks"], f"unknown may not subscribe to topic equities.ticks: {path} has no such ident"),
    ):
        assert run(server, "explain", *arguments) == 0
        assert capsys.readouterr().out.startswith(answer)


def test_show_lists_identities_and_rules(server: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(server, "show") == 0
    shown = capsys.readouterr().out
    assert "equities.#" in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80


def test_check_needs_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    assert admin(["policy", "check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 7 identities, 0 groups, 3 rules\n"
    path.write_text("identity = 1")
    assert admin(["policy", "check", str(path)]) == 2
    assert f"{path}, line 1: identity is 1" in capsys.readouterr().err


def test_an_observer_sees_the_status_of_its_feed_and_may_not_change_it(tmp_path: Path) -> None:
    second = CLUSTER.replace("feed_id = 1", "feed_id = 2").replace("equities", "bonds")
    second = second.replace("239.192.", "239.193.").replace(":50", ":60")
    with (
        running_server(tmp_path, cluster_text=CLUSTER + second, policy_text=POLICY + OBSERVER) as server,
        channel_as(server, "reader") as channel,
    ):
        operations = admin_pb2_grpc.OperationsStub(channel)
        status = operations.GetStatus(admin_pb2.GetStatusRequest())
        assert [feed.feed.name for feed in status.feeds] == ["equities"]
        for feed in ("bonds", "no-such"):
            with pytest.raises(grpc.RpcError, match=f"no feed '{feed}'; available to you: equities") as unseen:
                operations.GetStatus(admin_pb2.GetStatusRequest(feed=feed))
            assert unseen.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError, match="reader may observe feed 'equities', not administer it") as refused:
            operations.Failover(admin_pb2.FailoverRequest(feed="equities"))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError, match="may not administer every feed") as denied:
            admin_pb2_grpc.PolicyAdministrationStub(channel).ShowPolicy(admin_pb2.ShowPolicyRequest())
        assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_an_identity_has_no_more_subscriptions_and_calls_than_its_limits_allow(tmp_path: Path) -> None:
    limits = "subscription_count_max = 1\ncalls_per_second_max = 0.1\n"
    policy = POLICY.replace("[identity.stranger]", "subscription_count_max = 1\n[identity.stranger]")
    policy = policy.replace('["futures.*"]\n', f'["equities.#"]\n{limits}')
    with running_server(tmp_path, policy_text=policy) as server:
        with channel_as(server, "reader") as channel:
            call = SubscriberCall(channel)
            call.subscribe()
            for another in (lambda: call.subscribe(subscription_id=2), lambda: next(grants(channel))):
                with pytest.raises(RefusedRequest, match="reader has 1 subscriptions open") as refused:
                    another()
                assert refused.value.kind == admin_pb2.REFUSAL_KIND_LIMIT
            call.ask(cancel=admin_pb2.CancelRequest(subscription_id=1))
            call.subscribe(subscription_id=2)
            call.close()
        with channel_as(server, "stranger") as channel:
            stub = admin_pb2_grpc.StreamAdministrationStub(channel)
            stub.ListFeeds(admin_pb2.ListFeedsRequest())
            with pytest.raises(grpc.RpcError, match=r"stranger may make 0\.1 calls a second") as too_many:
                stub.ListFeeds(admin_pb2.ListFeedsRequest())
            assert too_many.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_requests_within_a_call_wait_when_there_are_more_than_the_rate(tmp_path: Path) -> None:
    policy = POLICY.replace("[identity.stranger]", "calls_per_second_max = 2.0\n[identity.stranger]")
    with running_server(tmp_path, policy_text=policy) as server, channel_as(server, "reader") as channel:
        call = SubscriberCall(channel)
        call.subscribe()
        began_s = time.monotonic()
        for _ in range(4):
            call.modify("#")
        assert time.monotonic() - began_s > 1.4, "two are admitted each second"
        call.close()
