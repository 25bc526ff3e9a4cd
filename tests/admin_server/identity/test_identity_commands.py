"""`tandemfeed admin identity`: what a command changes counts immediately, and survives the server."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import jwt
import pytest

from tandemfeed.admin_server.identity import commands
from tandemfeed.admin_server.identity.authentication import REFUSALS
from tandemfeed.admin_server.identity.login_limits import PAIR_ALLOWANCE
from tandemfeed.admin_server.identity.verifiers import credentials_row, verifier_of
from tandemfeed.admin_server.policy.rules import IdentitySettings
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.credentials import SecretFile
from tandemfeed.transport.calls.login import AuthenticationRefused, Login, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import CLUSTER, POLICY, ca_of, channel_as, running_server, secret_of
from tests.admin_server.identity.logins import audit_of, run
from tests.admin_server.subscriber_by_hand import SubscriberCall, keys_of

NEW = '[identity.newcomer]\nroles = ["client"]\nsubscribe = ["equities.#"]\n'
SEALED = CLUSTER.replace('"open"', '"sealed"')
Printed = pytest.CaptureFixture[str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path) as running:
        yield running


def log_in(server: AdminServer, identity: str, secret: str | Path) -> Login:
    credential = SecretFile(secret) if isinstance(secret, Path) else secret
    return login(server.endpoint, ca_of(server), identity, credential)


def let_in(server: AdminServer) -> None:
    """Add the newcomer to the policy of a running server."""
    server.policy.path.write_text(POLICY + NEW)
    assert run(server, "policy", "reload") == 0


def test_a_new_identity_logs_in_without_a_restart(server: AdminServer, tmp_path: Path, capsys: Printed) -> None:
    file = tmp_path / "newcomer.secret"
    assert run(server, "identity", "add", "newcomer", "--out", str(file)) == 2
    assert "the policy has no identity 'newcomer'" in capsys.readouterr().err
    assert not file.exists(), "a secret that no server knows is left"
    let_in(server)
    assert run(server, "identity", "add", "newcomer", "--out", str(file)) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert log_in(server, "newcomer", file).token
    assert file.read_text().strip() not in capsys.readouterr().out
    assert run(server, "identity", "add", "newcomer") == 2
    assert "ALREADY_EXISTS: newcomer has a secret already" in capsys.readouterr().err
    assert audit_of(server, "identity added")[-1]["by"] == "operator"


class Failed(grpc.RpcError):
    """A call that ended with a status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__(code.name)
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


@pytest.mark.parametrize(
    ("failure", "is_kept"),
    [
        (Failed(grpc.StatusCode.ALREADY_EXISTS), False),
        (Failed(grpc.StatusCode.PERMISSION_DENIED), False),
        (AuthenticationRefused("wrong secret"), False),
        (Failed(grpc.StatusCode.UNAVAILABLE), True),
        (Failed(grpc.StatusCode.DEADLINE_EXCEEDED), True),
        (KeyboardInterrupt(), True),
    ],
)
def test_the_file_of_a_secret_is_kept_if_the_server_may_have_accepted_it(
    tmp_path: Path, capsys: Printed, failure: BaseException, *, is_kept: bool
) -> None:
    path = tmp_path / "newcomer.secret"
    with pytest.raises(type(failure)), commands._private_file(path, b"secret\n"):
        raise failure
    assert path.exists() == is_kept
    assert ("is kept, because the server may have accepted it" in capsys.readouterr().err) == is_kept


def test_a_secret_whose_first_request_was_answered_in_vain_is_added_once(server: AdminServer) -> None:
    let_in(server)
    verifier = verifier_of("correct horse")
    for _ in range(2):
        server.identities.add("newcomer", verifier, by="operator")
    assert [each["identity"] for each in audit_of(server, "identity added")].count("newcomer") == 1
    assert log_in(server, "newcomer", "correct horse").token


def test_a_secret_is_shown_once_or_taken_from_a_file(server: AdminServer, tmp_path: Path, capsys: Printed) -> None:
    let_in(server)
    capsys.readouterr()
    assert run(server, "identity", "add", "newcomer", "--json") == 0
    secret = json.loads(capsys.readouterr().out)["secret"]
    assert log_in(server, "newcomer", secret).token
    assert secret not in (server.folder.path / "audit.jsonl").read_text()
    (tmp_path / "mine").write_bytes(b"correct horse\r\n")
    assert run(server, "identity", "rotate", "newcomer", "--from", str(tmp_path / "mine")) == 0
    assert "correct horse" not in capsys.readouterr().out
    assert log_in(server, "newcomer", "correct horse").token


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n", b"\n\n", b" \n"])
def test_a_secret_file_may_end_with_a_newline_or_not(server: AdminServer, tmp_path: Path, ending: bytes) -> None:
    (tmp_path / "secret").write_bytes(secret_of(server, "reader").encode() + ending)
    assert log_in(server, "reader", tmp_path / "secret").token


def test_rotation_without_overlap_ends_the_former_secret_and_its_tokens(server: AdminServer, capsys: Printed) -> None:
    former = secret_of(server, "reader")
    session = log_in(server, "reader", former)
    assert run(server, "identity", "rotate", "reader", "--json") == 0
    secret = json.loads(capsys.readouterr().out)["secret"]
    with pytest.raises(AuthenticationRefused):
        log_in(server, "reader", former)
    with (
        open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, session.bearer) as channel,
        pytest.raises(grpc.RpcError, match="was replaced or revoked; log in again"),
    ):
        admin_pb2_grpc.StreamAdministrationStub(channel).ListFeeds(admin_pb2.ListFeedsRequest())
    fresh = log_in(server, "reader", secret)
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, fresh.bearer) as channel:
        admin_pb2_grpc.StreamAdministrationStub(channel).ListFeeds(admin_pb2.ListFeedsRequest())


def test_rotation_with_overlap_keeps_the_former_secret_for_that_time(server: AdminServer, capsys: Printed) -> None:
    former = secret_of(server, "reader")
    assert run(server, "identity", "rotate", "reader", "--overlap", "1h", "--json") == 0
    secret = json.loads(capsys.readouterr().out)["secret"]
    for valid in (former, secret):
        assert log_in(server, "reader", valid).token
    with pytest.raises(AuthenticationRefused):
        log_in(server, "reader", "neither")
    assert run(server, "identity", "list") == 0
    assert "former secret until" in " ".join(capsys.readouterr().out.split())
    record = server.identities.record_of("reader")
    server.identities._now_unix_ns = lambda: record.former_until_unix_ns
    with pytest.raises(AuthenticationRefused):
        log_in(server, "reader", former)
    assert log_in(server, "reader", secret).token


def test_a_disabled_identity_loses_streams_tokens_and_keys_and_returns_when_it_is_enabled(
    server: AdminServer, capsys: Printed
) -> None:
    with channel_as(server, "reader") as channel:
        stub = admin_pb2_grpc.StreamAdministrationStub(channel)
        call = SubscriberCall(channel)
        keys = {key.key_id for key in keys_of(call.subscribe())}
        assert run(server, "identity", "disable", "reader", "--reason", "left the company", "--yes") == 0
        assert call.next().revoked.is_last
        with pytest.raises(grpc.RpcError, match="reader is disabled"):
            call.next()
        with pytest.raises(grpc.RpcError, match="reader is disabled") as refused:
            stub.ListFeeds(admin_pb2.ListFeedsRequest())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(AuthenticationRefused) as denied:
            channel_as(server, "reader")
        assert REFUSALS["secret"] in str(denied.value)
        new_keys = {key.key_id for key in server.brokers["equities"].key_ring.keys([1])}
        assert new_keys - keys
        capsys.readouterr()
        assert run(server, "policy", "explain", "reader", "equities.ticks") == 0
        assert "reader may not subscribe to topic equities.ticks: it is disabled" in capsys.readouterr().out
        assert run(server, "identity", "enable", "reader") == 0
        with pytest.raises(grpc.RpcError, match="log in again"):
            stub.ListFeeds(admin_pb2.ListFeedsRequest())
    with channel_as(server, "reader") as channel:
        assert admin_pb2_grpc.StreamAdministrationStub(channel).ListFeeds(admin_pb2.ListFeedsRequest()).feeds
    assert run(server, "identity", "enable", "reader") == 2
    assert run(server, "identity", "disable", "operator", "--reason", "a slip", "--yes") == 2
    assert "operator is the identity that you use" in capsys.readouterr().err


def test_an_identity_that_is_disabled_while_it_logs_in_gets_no_token(server: AdminServer) -> None:
    prepare = server.authentication._prepare_token

    def prepare_and_disable(identity: IdentitySettings) -> int:
        server.authentication._prepare_token = prepare
        noted = prepare(identity)
        server.identities.disable("reader", "left", by="operator")
        return noted

    secret = secret_of(server, "reader")
    server.authentication._prepare_token = prepare_and_disable
    with pytest.raises(AuthenticationRefused, match="disabled, or removed from the policy, meanwhile"):
        log_in(server, "reader", secret)


def test_a_token_states_the_rights_of_the_policy_that_came_into_force_during_the_login(server: AdminServer) -> None:
    prepare = server.authentication._prepare_token

    def prepare_and_take_the_topic_away(identity: IdentitySettings) -> int:
        server.authentication._prepare_token = prepare
        noted = prepare(identity)
        server.policy.path.write_text(POLICY.replace("equities.#", "bonds.#"))
        assert server.policy.reload("operator")
        return noted

    server.authentication._prepare_token = prepare_and_take_the_topic_away
    token = log_in(server, "reader", secret_of(server, "reader")).token
    assert jwt.decode(token, options={"verify_signature": False})["topics"] == []


def test_a_disabled_identity_has_lost_its_rights_before_its_calls_are_refused(
    server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    end, refuse = server.policy.disable, server.brokers["equities"].refuse_tokens

    def end_rights(disabled: frozenset[str]) -> None:
        assert server.identities.why_refused("reader", 0) is None
        order.append("rights end")
        end(disabled)

    monkeypatch.setattr(server.policy, "disable", end_rights)
    monkeypatch.setattr(server.brokers["equities"], "refuse_tokens", lambda name: (order.append(name), refuse(name)))
    server.identities.disable("reader", "left the company", by="operator")
    assert order == ["rights end", "reader"]
    assert server.identities.why_refused("reader", 0) == "reader is disabled"


def test_a_disabled_adapter_loses_its_lease_and_the_keys_of_its_feed(tmp_path: Path) -> None:
    with running_server(tmp_path, cluster_text=SEALED) as server:
        active, backup = Adapter(server, "a"), Adapter(server, "b")
        epoch = active.await_order("lease_granted").lease_granted.epoch
        backup.report(ReplicaState.SYNCHRONIZED, 50)
        ring = server.brokers["equities"].key_ring
        before = {each.key_id for each in (*ring.keys([1]), *ring.source_keys())}
        assert run(server, "identity", "disable", "adapter-a", "--reason", "stolen", "--yes") == 0
        assert backup.await_order("lease_granted").lease_granted.epoch > epoch
        after = [{each.key_id for each in keys} - before for keys in (ring.keys([1]), ring.source_keys())]
        assert all(after), "the disabled adapter knows every key"
        with pytest.raises(AuthenticationRefused):
            Adapter(server, "a")
        backup.vanish()


def test_a_source_that_loses_its_role_gets_no_key_with_the_token_that_states_it(tmp_path: Path) -> None:
    with running_server(tmp_path, cluster_text=SEALED) as server, channel_as(server, "source") as channel:
        stub = admin_pb2_grpc.AdapterRegistryStub(channel)
        (former,) = stub.GetSourceKeys(admin_pb2.SourceKeysRequest(feed="equities")).keys
        source = '[identity.source]\nroles = ["source"]'
        server.policy.path.write_text(POLICY.replace(source, source.replace('source"]', 'client"]')))
        assert server.policy.reload("operator")
        with pytest.raises(grpc.RpcError, match="is not the source of feed"):
            stub.GetSourceKeys(admin_pb2.SourceKeysRequest(feed="equities"))
        with pytest.raises(grpc.RpcError, match='lacks the role "source"'):
            stub.ReportSource(admin_pb2.SourceReport(feed="equities", process_nonce=bytes(16)))
        keys = server.brokers["equities"].key_ring.source_keys()
        assert keys[-1].key_id != former.key_id


def test_a_disabled_source_loses_the_key_of_its_feed(tmp_path: Path) -> None:
    with running_server(tmp_path, cluster_text=SEALED) as server:
        ring = server.brokers["equities"].key_ring
        with channel_as(server, "source") as channel:
            request = admin_pb2.SourceKeysRequest(feed="equities")
            given = admin_pb2_grpc.AdapterRegistryStub(channel).GetSourceKeys(request).keys
        before = {each.key_id for each in given}
        assert run(server, "identity", "disable", "source", "--reason", "stolen", "--yes") == 0
        assert {each.key_id for each in ring.source_keys()} - before


def test_the_list_shows_ways_states_and_last_logins(
    server: AdminServer, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(server, "identity", "disable", "stranger", "--reason", "test", "--yes") == 0
    capsys.readouterr()
    assert run(server, "identity", "list") == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "by secret" in lines["operator"]
    assert "secret, certificate" in lines["reader"]
    assert "never" in lines["reader"]
    assert "disabled" in lines["stranger"]


def test_only_those_who_administer_every_feed_may_use_the_commands(tmp_path: Path) -> None:
    policy = POLICY + '[[rule]]\nto = ["reader"]\nactions = ["administer"]\nfeeds = ["equities"]\n'
    second = CLUSTER.replace("feed_id = 1", "feed_id = 2").replace('"equities', '"bonds').replace(":50", ":60")
    with (
        running_server(tmp_path, cluster_text=CLUSTER + second, policy_text=policy) as server,
        channel_as(server, "reader") as channel,
    ):
        stub = admin_pb2_grpc.IdentityAdministrationStub(channel)
        for call in (
            lambda: stub.ListIdentities(admin_pb2.ListIdentitiesRequest()),
            lambda: stub.AddIdentity(admin_pb2.AddIdentityRequest(name="reader")),
            lambda: stub.RotateIdentity(admin_pb2.RotateIdentityRequest(name="operator")),
            lambda: stub.DisableIdentity(admin_pb2.DisableIdentityRequest(name="operator", reason="x")),
            lambda: stub.EnableIdentity(admin_pb2.EnableIdentityRequest(name="operator")),
            lambda: stub.IssueCertificate(admin_pb2.IssueCertificateRequest(name="operator")),
            lambda: stub.RevokeCertificates(admin_pb2.RevokeCertificatesRequest(which="operator", reason="x")),
            lambda: stub.ListCertificates(admin_pb2.ListCertificatesRequest()),
        ):
            with pytest.raises(grpc.RpcError, match="may not administer every feed") as refused:
                call()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_every_login_is_checked_in_the_same_steps(server: AdminServer, capsys: Printed) -> None:
    """So the time that an answer takes tells neither whether an identity exists nor in which state it is."""
    assert run(server, "identity", "disable", "stranger", "--reason", "test", "--yes") == 0
    assert run(server, "identity", "rotate", "operator", "--overlap", "1h", "--json") == 0
    capsys.readouterr()
    for identity in ("reader", "stranger", "operator", "unknown"):
        first, second = server.identities.verifiers(identity)
        assert (first.salt, first.iterations) == (second.salt, second.iterations)
    assert len({server.identities.verifiers(name)[0].iterations for name in ("reader", "unknown")}) == 1


def test_an_invalid_verifier_is_refused(server: AdminServer) -> None:
    with channel_as(server, "operator") as channel:
        stub = admin_pb2_grpc.IdentityAdministrationStub(channel)
        good = verifier_of("x")
        for iterations, salt in ((1, good.salt), (good.iterations, b"short")):
            verifier = admin_pb2.SecretVerifier(
                salt=salt, stored_key=good.stored_key, server_key=good.server_key, iterations=iterations
            )
            with pytest.raises(grpc.RpcError, match="the verifier is invalid") as refused:
                stub.RotateIdentity(admin_pb2.RotateIdentityRequest(name="reader", verifier=verifier))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_too_many_wrong_secrets_delay_this_identity_here_and_an_unknown_one_alike(server: AdminServer) -> None:
    texts = []
    for identity in ("reader", "unknown"):
        for _ in range(PAIR_ALLOWANCE.failure_count_max):
            with pytest.raises(AuthenticationRefused):
                log_in(server, identity, "wrong")
        with pytest.raises(
            grpc.RpcError, match=r"too many failed logins from this address; try again in \d+ s"
        ) as told:
            log_in(server, identity, secret_of(server, "reader"))
        assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        texts.append(str(told.value.details()).rpartition(" in ")[0])
    assert texts[0] == texts[1]
    assert log_in(server, "operator", secret_of(server, "operator")).token


def test_parallel_guesses_are_not_more_than_the_limit(server: AdminServer) -> None:
    codes: list[object] = []

    def guess() -> None:
        try:
            log_in(server, "reader", "wrong")
        except AuthenticationRefused:
            codes.append("checked")
        except grpc.RpcError as slowed:
            codes.append(slowed.code())

    guesses = [threading.Thread(target=guess) for _ in range(20)]
    for each in guesses:
        each.start()
    for each in guesses:
        each.join()
    assert codes.count("checked") <= PAIR_ALLOWANCE.failure_count_max + 2  # forgiven while a slow machine tried
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes


def test_changes_survive_a_restart_and_secrets_are_not_made_again(tmp_path: Path, capsys: Printed) -> None:
    with running_server(tmp_path) as server:
        assert run(server, "identity", "rotate", "reader", "--json") == 0
        secret = json.loads(capsys.readouterr().out)["secret"]
        assert run(server, "identity", "disable", "stranger", "--reason", "test", "--yes") == 0
        shutil.copy(server.folder.path / "secrets" / "operator.secret", tmp_path)
        shutil.rmtree(server.folder.path / "secrets")
    with running_server(tmp_path, policy_text=POLICY + NEW) as server:
        assert log_in(server, "reader", secret).token
        with pytest.raises(AuthenticationRefused):
            log_in(server, "stranger", "any")
        assert not (server.folder.path / "secrets").exists()
        assert server.identities.record_of("newcomer").verifier is None


def test_the_credentials_of_an_earlier_version_are_imported_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    row = {"reader": credentials_row(verifier_of("from before"))}
    (state / "credentials.json").write_text(json.dumps(row))
    with running_server(tmp_path) as server:
        assert log_in(server, "reader", "from before").token
        assert not (state / "credentials.json").exists()
        assert (state / "credentials.json.imported").exists()
        assert not (state / "secrets" / "reader.secret").exists()
        assert log_in(server, "operator", secret_of(server, "operator")).token
