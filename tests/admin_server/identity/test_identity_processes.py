"""Identities outlive the server's process: it is killed, and another server takes over."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography import x509

from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.credentials import CertificateFiles, SecretFile
from tandemfeed.transport.calls.login import AuthenticationRefused, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.cluster_files import CLUSTER, ca_of
from tests.admin_server.identity.logins import run
from tests.admin_server.records.zookeeper_pair import Pair, await_serving
from tests.admin_server.records.zookeeper_server import needs_zookeeper, running_zookeeper
from tests.admin_server.test_admin_process import ServerProcess, server_process

pytestmark = pytest.mark.processes


def change(server: ServerProcess, folder: Path) -> None:
    """Rotate, disable, issue and revoke by command; the server may be killed as soon as this returns."""
    assert run(server, "identity", "rotate", "reader", "--out", str(folder / "reader.secret")) == 0
    assert run(server, "identity", "disable", "stranger", "--reason", "left") == 0
    assert run(server, "cert", "issue", "operator", "--out", str(folder / "good")) == 0
    assert run(server, "cert", "issue", "operator", "--out", str(folder / "revoked")) == 0
    assert run(server, "cert", "revoke", serial_in(folder / "revoked" / "operator.crt"), "--reason", "lost") == 0


def serial_in(path: Path) -> str:
    return f"{x509.load_pem_x509_certificate(path.read_bytes()).serial_number:x}"


def check(addresses: str, server: ServerProcess, secrets: Path, folder: Path) -> None:
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
    with pytest.raises(AuthenticationRefused):
        login(addresses, ca, "operator", revoked)
    with open_channel(server.endpoint, ca, ADMIN_SERVER, session.bearer) as channel:
        listed = admin_pb2_grpc.IdentityAdministrationStub(channel).ListIdentities(admin_pb2.ListIdentitiesRequest())
    assert {each.name for each in listed.identities if each.is_disabled} == {"stranger"}


def test_what_was_acknowledged_survives_a_kill_of_the_server(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        change(server, tmp_path)
        server.kill()
    with server_process(tmp_path, "--listen-mutual-tls", "127.0.0.1:0") as server:
        check(server.endpoint, server, tmp_path / "state" / "secrets", tmp_path)


@needs_zookeeper
def test_another_server_has_the_identities_and_certificates(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper, ExitStack() as opened:
        pair = Pair(tmp_path, zookeeper, CLUSTER, opened, "--listen-mutual-tls", "127.0.0.1:0")
        change(pair.first, tmp_path)
        pair.first.kill()
        await_serving(pair.second)
        check(pair.addresses, pair.second, tmp_path / "first" / "state" / "secrets", tmp_path)
