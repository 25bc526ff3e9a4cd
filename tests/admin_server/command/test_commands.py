"""The commands of `tandemfeed admin`, as typed, with a server in this process and adapters by hand."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tandemfeed.admin_server.command import confirmation
from tandemfeed.admin_server.command.admin_command import main as admin
from tandemfeed.admin_server.command.commands.watching import watch
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.calls.channels import status_of
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import CLUSTER, THIRD_ADAPTER, channel_as, running_server
from tests.admin_server.subscriber_by_hand import SubscriberCall

# Reports that a test sends once stay fresh.
PATIENT = CLUSTER.replace("lease_ttl_ms = 300", "lease_ttl_ms = 60000") + THIRD_ADAPTER
Command = Callable[..., str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path, cluster_text=PATIENT) as running:
        yield running


@pytest.fixture
def command(server: AdminServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command that succeeds; returns what it prints."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: str, status: int = 0) -> str:
        state = server.folder.path
        options = ["--admin", server.endpoint, "--ca", str(state / "ca.pem"), "--identity", "operator"]
        capsys.readouterr()
        try:
            found = admin([*words, *options, "--secret-file", str(state / "secrets" / "operator.secret")])
        except SystemExit as ended:
            found = int(str(ended.code))
        printed = capsys.readouterr()
        assert found == status, printed
        return printed.out or printed.err

    return run


@pytest.fixture
def adapters(server: AdminServer) -> Iterator[dict[str, Adapter]]:
    """a is active, b and c are synchronized."""
    made = {name: Adapter(server, name) for name in "abc"}
    epoch = made["a"].await_order("lease_granted").lease_granted.epoch
    made["a"].report(ReplicaState.ACTIVE, 51, renew_epoch=epoch)
    made["a"].await_order("lease_renewed")
    for name in "bc":
        made[name].report(ReplicaState.SYNCHRONIZED, 51, report_id=9)
        while made[name].await_order("report_heard").report_heard.report_id != 9:
            pass
    yield made
    for adapter in made.values():
        adapter.vanish()


def report_source(server: AdminServer, **fields: object) -> None:
    with channel_as(server, "source") as channel:
        report = admin_pb2.SourceReport(feed="equities", process_nonce=bytes(16), process_id=7, host="x", **fields)  # type: ignore[arg-type]
        admin_pb2_grpc.AdapterRegistryStub(channel).ReportSource(report)


class Client:
    """A subscribed client."""

    def __init__(self, server: AdminServer) -> None:
        self._channel = channel_as(server, "reader")
        self._call = SubscriberCall(self._channel)
        self._call.subscribe()

    def refusal(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ends."""
        with pytest.raises(grpc.RpcError) as ended:
            list(self._call.call)
        self._channel.close()
        return status_of(ended.value)


@pytest.mark.usefixtures("adapters")
def test_an_operator_ends_the_streams_of_a_client(server: AdminServer, command: Command) -> None:
    first, second = Client(server), Client(server)
    (one, other) = json.loads(command("clients", "list", "--json"))["clients"]
    assert (one["identity"], one["feed"], one["topics"]) == ("reader", "equities", ["equities.ticks"])
    assert one["peer"].startswith("ipv4:127.0.0.1:")
    assert "reader" in command("clients", "list", "--feed", "equities")
    assert "confirm with --yes" in command("clients", "kick", "reader", "--reason", "noisy", status=2)
    ended = command("clients", "kick", other["client_id"], "--reason", "noisy", "--yes")
    assert ended == f"ended stream {other['client_id']} of reader in feed equities\n"
    assert second.refusal() == (grpc.StatusCode.PERMISSION_DENIED, "ended by an operator: noisy")
    command("clients", "kick", "reader", "--reason", "noisy", "--yes")
    assert first.refusal()[0] is grpc.StatusCode.PERMISSION_DENIED
    assert "no client with identity 'reader'" in command(
        "clients", "kick", "reader", "--reason", "x", "--yes", status=2
    )
    assert '"client kicked"' in (server.folder.path / "audit.jsonl").read_text()


def test_a_drained_adapter_takes_no_lease_until_it_is_undrained(
    adapters: dict[str, Adapter], command: Command, server: AdminServer
) -> None:
    assert "c is drained: new memory" in command("drain", "equities", "c", "--reason", "new memory", "--yes")
    assert "c is drained: new memory" in command("failover", "equities", "--to", "c", "--yes", status=2)
    refused = command("drain", "equities", "b", "--reason", "x", "--yes", status=2)
    assert "b is the last synchronised backup" in refused
    (feed,) = json.loads(command("status", "--json"))["feeds"]
    assert [row["drained_reason"] for row in feed["adapters"]] == ["", "", "new memory"]
    assert "drained" in command("status")
    assert command("undrain", "equities", "c") == "feed equities: c is no longer drained\n"
    assert "c is not drained" in command("undrain", "equities", "c", status=2)
    command("drain", "equities", "c", "--reason", "again", "--yes")
    command("readmit", "equities", "c")
    assert not server.brokers["equities"].lease.candidates.drained
    assert adapters


def test_an_active_adapter_that_is_drained_hands_over_first(adapters: dict[str, Adapter], command: Command) -> None:
    epoch = int(json.loads(command("status", "--json"))["feeds"][0]["epoch"])

    def obey(heir: str) -> None:
        adapters[heir].accept_offer()
        adapters["a"].await_order("hand_over")
        adapters["a"].report(ReplicaState.SYNCHRONIZED, 51, released_epoch=epoch)

    obedient = threading.Thread(target=obey, args=("b",))
    obedient.start()
    assert "a is drained" in command("drain", "equities", "a", "--reason", "new memory", "--yes")
    obedient.join()
    (feed,) = json.loads(command("status", "--json"))["feeds"]
    assert (feed["active_adapter_id"], feed["adapters"][0]["drained_reason"]) == (2, "new memory")


def test_a_drained_adapter_stays_drained_over_a_restart_of_the_server(tmp_path: Path) -> None:
    with running_server(tmp_path, cluster_text=PATIENT) as server:
        broker = server.brokers["equities"]
        broker.operations.drain(broker.feed.adapters[2], "new memory", "operator", is_forced=True)
    with running_server(tmp_path, cluster_text=PATIENT) as server:
        broker = server.brokers["equities"]
        assert broker.lease.candidates.drained == {3: "new memory"}
        assert [event.event for event in broker.history()] == ["adapter drained"]


@pytest.mark.usefixtures("adapters")
def test_the_history_tells_who_became_active_and_when(command: Command) -> None:
    command("drain", "equities", "c", "--reason", "new memory", "--yes")
    lines = command("history", "equities").splitlines()
    assert any("lease granted, a, epoch" in line for line in lines)
    assert lines[-1].endswith("adapter drained, c, new memory, by operator")
    (last,) = json.loads(command("history", "equities", "--last", "1", "--json"))["events"]
    assert (last["event"], last["adapter"], last["by"]) == ("adapter drained", "c", "operator")


@pytest.mark.usefixtures("adapters")
def test_keys_are_listed_without_secrets_and_rotated(command: Command) -> None:
    before = json.loads(command("keys", "list", "--json"))["keys"]
    assert [(key["channel_id"], key["topic"]) for key in before] == [(1, "equities.ticks")]
    assert before[0]["rotation_unix_ns"] != "0"
    assert "confirm with --yes" in command("keys", "rotate", "equities", status=2)
    after = json.loads(command("keys", "rotate", "equities", "equities.ticks", "--yes", "--json"))["keys"]
    assert after[0]["key_id"] == before[0]["key_id"]
    assert len(after) == 2
    assert "no channel 'x'; it has equities.ticks" in command("keys", "rotate", "equities", "x", "--yes", status=2)
    assert str(after[1]["key_id"]) in command("keys", "list")


def test_grants_show_what_an_identity_may_do_and_whether_it_is_connected(server: AdminServer, command: Command) -> None:
    client = Client(server)
    (reader,) = json.loads(command("grants", "reader", "--json"))["grants"]
    assert (reader["topics"], reader["client_count"], reader["may_administer"]) == (["equities.ticks"], 1, False)
    shown = command("grants")
    assert "administer" in shown
    assert "stranger" not in shown
    assert "has no identity 'x'" in command("grants", "x", status=2)
    command("clients", "kick", "reader", "--reason", "end", "--yes")
    client.refusal()


@pytest.mark.usefixtures("adapters")
def test_adapters_and_streams_are_listed(command: Command) -> None:
    assert "4711" in command("adapters")
    shown = command("streams")
    assert all(word in shown for word in ("1 equities.ticks", "239.192.2.1:5011", "51"))
    streams = json.loads(command("streams", "--json"))
    assert set(streams) == {"feeds", "keys", "token_keys"}


def test_check_reports_one_line_and_an_exit_status(
    adapters: dict[str, Adapter], server: AdminServer, command: Command
) -> None:
    healthy = command("status", "--check", "--source-silence", "0")
    assert healthy.startswith("TANDEMFEED OK - equities: epoch ")
    assert "source stream 1 A-M is silent" in command("status", "--check", status=2)
    adapters["c"].vanish()
    adapters["c"].ended.wait(20)
    while server.brokers["equities"].status().adapters[2].attending:
        threading.Event().wait(0.01)
    warned = command("status", "--check", "--source-silence", "0", status=1)
    assert warned.startswith("TANDEMFEED WARNING - equities: c is dead or away since ")
    assert warned.count("\n") == 1
    found = json.loads(command("status", "--check", "--source-silence", "0", "--json", status=1))
    assert found["level"] == "WARNING"


def test_check_says_unknown_when_the_server_cannot_be_reached(
    server: AdminServer, capsys: pytest.CaptureFixture[str]
) -> None:
    state = server.folder.path
    files = [f"--ca={state}/ca.pem", f"--secret-file={state}/secrets/operator.secret", "--identity=operator"]
    with pytest.raises(SystemExit, match="3"):
        admin(["status", "--check", "--admin=no-such-host.invalid:7400", *files])
    assert capsys.readouterr().out.startswith("TANDEMFEED UNKNOWN - no-such-host.invalid:7400: the host name")
    with pytest.raises(SystemExit, match="3"):
        admin(["status", "--check", "--admin=nonsense", *files])


def test_a_gateway_that_stops_reporting_is_dead_and_one_that_says_so_is_stopped(
    server: AdminServer, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_source(server, session=20261121, next_source_seqs={1: 17, 2: 1}, unsent_record_count=5)
    shown = command("status")
    assert "source source: sending session 20261121, heard" in shown
    assert "5 records unsent" in shown
    assert "next source_seq 17" in shown
    monkeypatch.setattr("tandemfeed.admin_server.feed.members.sources.DEAD_AFTER_NS", 0)
    assert "source gateway source (process 7 on x) is dead: last heard at" in command("status", "--check", status=2)
    report_source(server, is_stopping=True)
    assert "source gateway source (process 7 on x) was stopped at" in command("status")


@pytest.mark.parametrize("fields", [{"next_source_seqs": {9: 1}}, {"process_nonce": b"short"}])
def test_an_impossible_report_of_a_source_is_refused(server: AdminServer, fields: dict[str, object]) -> None:
    report = admin_pb2.SourceReport(feed="equities", **{"process_nonce": bytes(16), **fields})  # type: ignore[arg-type]
    with channel_as(server, "source") as channel, pytest.raises(grpc.RpcError) as refused:
        admin_pb2_grpc.AdapterRegistryStub(channel).ReportSource(report)
    assert status_of(refused.value)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_only_a_source_reports_as_one(server: AdminServer) -> None:
    report = admin_pb2.SourceReport(feed="equities", process_nonce=bytes(16))
    with channel_as(server, "adapter-a") as channel, pytest.raises(grpc.RpcError) as refused:
        admin_pb2_grpc.AdapterRegistryStub(channel).ReportSource(report)
    assert status_of(refused.value)[0] is grpc.StatusCode.PERMISSION_DENIED


def test_watch_prints_the_status_and_then_what_changes() -> None:
    replies = [admin_pb2.GetStatusReply() for _ in range(3)]
    for epoch, reply in zip((1, 1, 2), replies, strict=True):
        feed = reply.feeds.add(epoch=epoch, active_adapter_id=1)
        feed.feed.name = "equities"
    out, pauses = io.StringIO(), iter([None, None])

    def pause(_time_s: float) -> None:
        if next(pauses, "end") == "end":
            raise KeyboardInterrupt

    watch(iter(replies).__next__, is_json=False, out=out, pause=pause)
    page, changes = out.getvalue().split("lease term 0 ms\n")
    assert "feed equities: epoch 1" in page
    lines = [line[9:] for line in changes.splitlines()]
    assert lines == ["- equities: epoch 1, session 0", "+ equities: epoch 2, session 0"]


def test_watch_redraws_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    reply = admin_pb2.GetStatusReply()
    reply.feeds.add(epoch=5).feed.name = "equities"
    out = Terminal()

    def pause(_time_s: float) -> None:
        raise KeyboardInterrupt

    watch(lambda: reply, is_json=False, out=out, pause=pause)
    assert "\x1b[?1049h" in out.getvalue()  # the alternate screen
    assert "feed equities: epoch 5" in out.getvalue()


def test_a_person_is_asked_on_a_terminal(
    command: Command, monkeypatch: pytest.MonkeyPatch, adapters: dict[str, Adapter]
) -> None:
    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(confirmation.sys, "stdin", Keyboard("n\n"))
    assert "nothing was done" in command("drain", "equities", "c", "--reason", "x", status=2)
    monkeypatch.setattr(confirmation.sys, "stdin", Keyboard("y\n"))
    assert "c is drained" in command("drain", "equities", "c", "--reason", "x")
    assert adapters
