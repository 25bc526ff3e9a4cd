"""Identities outlive the server's process: it is killed, and another server takes over."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandemfeed.transport.calls.admin_servers import AdminServers, ask_active
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.credentials import CertificateFiles, SecretFile
from tandemfeed.transport.calls.login import AuthenticationRefused, Login, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.cluster_files import CLUSTER, ca_of, secret_of
from tests.admin_server.identity.logins import run
from tests.admin_server.records.zookeeper_pair import SERVING, WAIT_S, Pair, await_serving
from tests.admin_server.records.zookeeper_server import needs_zookeeper, running_zookeeper
from tests.admin_server.test_admin_process import ServerProcess, server_process

pytestmark = pytest.mark.processes


def change(server: ServerProcess, folder: Path) -> Login:
    """Rotate, disable, issue and revoke by command; the server may be killed as soon as this returns.

    Returns:
        A login of the source from before all that.
    """
    before = login(server.endpoint, ca_of(server), "source", secret_of(server, "source"))
    assert run(server, "keys", "rotate-tokens") == 0
    assert run(server, "identity", "rotate", "reader", "--out", str(folder / "reader.secret")) == 0
    assert run(server, "identity", "disable", "stranger", "--reason", "left", "--yes") == 0
    assert run(server, "cert", "issue", "operator", "--out", str(folder / "good")) == 0
    assert run(server, "cert", "issue", "operator", "--out", str(folder / "revoked")) == 0
    assert (
        run(server, "cert", "revoke", serial_in(folder / "revoked" / "operator.crt"), "--reason", "lost", "--yes") == 0
    )
    return before


def serial_in(path: Path) -> str:
    return f"{x509.load_pem_x509_certificate(path.read_bytes()).serial_number:x}"


def token_keys(server: ServerProcess, session: Login) -> list[admin_pb2.TokenKeyStatus]:
    """The keys of tokens that a server accepts, as this login may ask."""
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, session.bearer) as channel:
        return list(admin_pb2_grpc.OperationsStub(channel).ListKeys(admin_pb2.ListKeysRequest()).token_keys)


def check(addresses: str, server: ServerProcess, secrets: Path, folder: Path, before: Login) -> None:
    """What `change` has acknowledged is in force."""
    ca = ca_of(server)
    assert login(addresses, ca, "reader", SecretFile(folder / "reader.secret")).token
    for identity in ("reader", "stranger"):  # the former secret; the disabled identity's
        with pytest.raises(AuthenticationRefused):
            login(addresses, ca, identity, SecretFile(secrets / f"{identity}.secret"))
    good, revoked = (
        CertificateFiles(folder / name / "operator.crt", folder / name / "operator.key") for name in ("good", "revoked")
    )
    session = login(addresses, ca, "operator", good)
    assert len(token_keys(server, session)) == 2, "the one that signed before the rotation, and its successor"
    with open_channel(server.endpoint, ca, ADMIN_SERVER, before.bearer) as channel:
        described = admin_pb2_grpc.AdapterRegistryStub(channel).DescribeFeed(
            admin_pb2.DescribeFeedRequest(feed="equities")
        )
    assert len(described.token_keys) == 2
    with pytest.raises(AuthenticationRefused):
        login(addresses, ca, "operator", revoked)
    with open_channel(server.endpoint, ca, ADMIN_SERVER, session.bearer) as channel:
        listed = admin_pb2_grpc.IdentityAdministrationStub(channel).ListIdentities(admin_pb2.ListIdentitiesRequest())
    assert {each.name for each in listed.identities if each.is_disabled} == {"stranger"}


def test_what_was_acknowledged_survives_a_kill_of_the_server(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        before = change(server, tmp_path)
        server.kill()
    with server_process(tmp_path, "--listen-mutual-tls", "127.0.0.1:0") as server:
        check(server.endpoint, server, tmp_path / "state" / "secrets", tmp_path, before)


@needs_zookeeper
def test_another_server_has_the_identities_and_certificates(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper, ExitStack() as opened:
        pair = Pair(tmp_path, zookeeper, CLUSTER, opened, "--listen-mutual-tls", "127.0.0.1:0")
        before = change(pair.first, tmp_path)
        pair.first.kill()
        await_serving(pair.second)
        check(pair.addresses, pair.second, tmp_path / "first" / "state" / "secrets", tmp_path, before)


@needs_zookeeper
def test_dropping_the_keys_of_tokens_ends_every_call_of_two_servers(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper, ExitStack() as opened:
        pair = Pair(tmp_path, zookeeper, CLUSTER, opened)
        secret = secret_of(pair.first, "operator")
        before = login(pair.addresses, ca_of(pair.first), "operator", secret)
        with open_channel(pair.first.endpoint, ca_of(pair.first), ADMIN_SERVER) as channel:
            watched = health_pb2.HealthCheckRequest(service="tandemfeed.v1.AdapterRegistry")
            states = health_pb2_grpc.HealthStub(channel).Watch(watched, timeout=WAIT_S)
            assert next(states).status == SERVING
            assert run(pair.first, "keys", "rotate-tokens", "--now", "--reason", "stolen", "--yes") == 0
            assert next(states).status != SERVING
        after = login(pair.addresses, ca_of(pair.first), "operator", secret, timeout_s=WAIT_S)
        for server in (pair.first, pair.second):
            with pytest.raises(grpc.RpcError, match=r"a key that is not accepted|standby"):
                token_keys(server, before)
        servers = AdminServers(pair.addresses)

        def ask(address: str, timeout_s: float) -> admin_pb2.ListKeysReply:
            with open_channel(address, ca_of(pair.first), ADMIN_SERVER, after.bearer) as channel:
                request = admin_pb2.ListKeysRequest()
                return admin_pb2_grpc.OperationsStub(channel).ListKeys(request, timeout=timeout_s)

        assert len(ask_active(servers, ask, WAIT_S).token_keys) == 1
