"""The audit log of a running server: what is in it, who may read it, and the commands."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tandemfeed.admin_server.audit.verification import noted_head
from tandemfeed.admin_server.command.admin_command import main as admin
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.cluster_files import CLUSTER, POLICY, channel_as, running_server
from tests.admin_server.subscriber_by_hand import RefusedRequest, grants

BONDS = CLUSTER.replace("feed_id = 1", "feed_id = 2").replace("equities", "bonds")
BONDS = BONDS.replace("239.192.", "239.193.").replace(":50", ":60")
FEED_ADMIN = (
    '[[rule]]\nto = ["stranger"]\nactions = ["administer"]\nfeeds = ["equities"]\n'
    '[[rule]]\nto = ["reader"]\nactions = ["observe"]\nfeeds = ["equities"]\n'
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path, cluster_text=CLUSTER + BONDS, policy_text=POLICY + FEED_ADMIN) as running:
        yield running


def read_as(server: AdminServer, caller: str, /, **wanted: str | int) -> list[dict[str, object]]:
    with channel_as(server, caller) as channel:
        stub = admin_pb2_grpc.AuditAdministrationStub(channel)
        reply = stub.ReadAudit(admin_pb2.ReadAuditRequest(**wanted))  # type: ignore[arg-type]
    return [json.loads(entry.line) for entry in reply.entries]


def subscribe(server: AdminServer, identity: str) -> None:
    with channel_as(server, identity) as channel:
        next(grants(channel))


def run(server: AdminServer, *arguments: str) -> int:
    """Run `tandemfeed admin audit` as the operator; return its status."""
    folder = server.folder.path
    options = ["--admin", server.endpoint, "--ca", str(folder / "ca.pem"), "--identity", "operator"]
    try:
        return admin(["audit", *arguments, *options, "--secret-file", str(folder / "secrets" / "operator.secret")])
    except SystemExit as exited:
        return int(exited.code or 0)


def await_known_head(server: AdminServer) -> None:
    """Wait until the records know the end of the log, which the server records a moment after it has written it."""
    deadline = time.monotonic() + 30
    while noted_head(server.folder.path) != server._audit.head:
        assert time.monotonic() < deadline, "the server does not record the head of its log"
        time.sleep(0.005)


def test_a_grant_says_who_got_what_when_and_by_which_rule(server: AdminServer) -> None:
    subscribe(server, "reader")
    (entry,) = read_as(server, "operator", event="subscribed", identity="reader", feed="equities")
    assert entry["rules"] == ["identity.reader.subscribe"]
    assert entry["channels"] == [1]
    assert str(entry["peer"]).startswith("ipv4:127.0.0.1:")
    assert read_as(server, "operator", event="subscribed", after_number=int(str(entry["number"]))) == []
    assert read_as(server, "operator", event="subscribed", until_unix_ns=int(str(entry["unix_ns"]))) == []


def test_an_admin_of_a_feed_reads_its_entries_and_an_observer_none(server: AdminServer) -> None:
    subscribe(server, "reader")
    assert {entry["feed"] for entry in read_as(server, "stranger", feed="equities")} == {"equities"}
    for identity, feed in (("stranger", "bonds"), ("stranger", ""), ("reader", "equities"), ("stranger", "no-such")):
        with pytest.raises(grpc.RpcError, match="may not administer the feed") as refused:
            read_as(server, identity, feed=feed)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    with channel_as(server, "stranger") as channel, pytest.raises(grpc.RpcError, match="every feed"):
        admin_pb2_grpc.AuditAdministrationStub(channel).VerifyAudit(admin_pb2.VerifyAuditRequest())


def test_a_flood_of_refusals_is_one_entry(server: AdminServer) -> None:
    with channel_as(server, "stranger") as channel:
        for _ in range(20):
            with pytest.raises(RefusedRequest):
                next(grants(channel))
    folder = server.folder.path
    assert len(read_as(server, "operator", event="subscription refused")) == 1
    server.stop()
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert [line["count"] for line in lines if line["event"] == "refused again"] == [19]


def test_the_commands_show_and_verify_the_log(server: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    subscribe(server, "reader")
    assert run(server, "show", "--event", "subscribed", "--since", "1h") == 0
    assert "subscribed: feed=equities identity=reader" in capsys.readouterr().out
    assert run(server, "show", "--who", "reader", "--limit", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["identity"] == "reader"
    assert run(server, "verify-server") == 0
    assert "is whole; head " in capsys.readouterr().out
    folder = server.folder.path
    assert admin(["audit", "verify", "--state", str(folder)]) == 0
    head = capsys.readouterr().out.split()[-1]
    path = folder / "audit.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines).replace("reader", "nobody", 1))
    assert run(server, "verify-server") == 1
    assert "audit.jsonl, line " in capsys.readouterr().out
    await_known_head(server)
    path.write_text("".join(lines[:1]))
    assert admin(["audit", "verify", "--state", str(folder), "--json"]) == 1, "the records know the head"
    assert "the end is missing" in json.loads(capsys.readouterr().out)["problems"][0]
    assert admin(["audit", "verify", "--state", str(folder), "--head", head]) == 1
    assert admin(["audit", "verify", "--state", str(folder / "certs")]) == 2
