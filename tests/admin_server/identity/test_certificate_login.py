"""Login by certificate, on the port that requires one; certificates are issued, listed and revoked by command."""

from __future__ import annotations

import base64
import datetime
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tandemfeed.admin_server.command.admin_command import main as admin
from tandemfeed.admin_server.identity.authentication import REFUSALS
from tandemfeed.admin_server.identity.login_limits import LoginLimits
from tandemfeed.admin_server.records.authority import Authority
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.client_lib import connect
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.credentials import CertificateFiles, CredentialUnusable
from tandemfeed.transport.calls.login import AuthenticationRefused, Login, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, WrongCertificate, adapter_server, check_certificate
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.cluster_files import CLUSTER, POLICY, ca_of, channel_as, running_server
from tests.admin_server.identity.logins import audit_of, operator_options, run

REFUSED = REFUSALS["certificate"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    with running_server(tmp_path_factory.mktemp("server"), listen_mutual_tls="127.0.0.1:0") as running:
        yield running


@pytest.fixture(autouse=True)
def forgive(server: AdminServer) -> None:
    """The tests share an address."""
    server.authentication.limits = LoginLimits()


def files_of(server: AdminServer, identity: str) -> CertificateFiles:
    """The certificate that the server made at its start."""
    folder = server.folder.path / "certs"
    return CertificateFiles(folder / f"{identity}.crt", folder / f"{identity}.key")


def issued(server: AdminServer, folder: Path, identity: str, *options: str) -> CertificateFiles:
    """The certificate that the command issues."""
    assert run(server, "cert", "issue", identity, "--out", str(folder), *options) == 0
    return CertificateFiles(folder / f"{identity}.crt", folder / f"{identity}.key")


def log_in(server: AdminServer, files: CertificateFiles, identity: str = "") -> Login:
    return login(server.endpoint, ca_of(server), identity, files)


def serial_of(files: CertificateFiles) -> str:
    return f"{x509.load_pem_x509_certificate(files.certificate.read_bytes()).serial_number:x}"


def test_a_certificate_logs_in_as_its_identity(server: AdminServer, tmp_path: Path) -> None:
    session = log_in(server, files_of(server, "reader"), "reader")
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, session.bearer) as channel:
        assert admin_pb2_grpc.StreamAdministrationStub(channel).ListFeeds(admin_pb2.ListFeedsRequest()).feeds
    log_in(server, issued(server, tmp_path, "reader"))
    line = audit_of(server, "authenticated")[-1]
    assert (line["identity"], line["way"]) == ("reader", "certificate")


def test_the_token_ends_with_the_certificate(server: AdminServer, tmp_path: Path) -> None:
    authority = server.folder.authority
    request_folder = tmp_path / "short"
    files = issued(server, request_folder, "reader", "--valid-days", "1")
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    assert authority.has_issued(certificate)
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(hours=22) < left <= datetime.timedelta(days=1)
    assert log_in(server, files).expires_unix_ns <= certificate.not_valid_after_utc.timestamp() * 1e9


def handshake(server: AdminServer, files: CertificateFiles) -> grpc.StatusCode | None:
    """How the second port answers a caller that does not check its own certificate first."""
    with open_channel(server.mutual_tls_endpoint, ca_of(server), ADMIN_SERVER, certificate=files.read()) as channel:
        stub = admin_pb2_grpc.AuthenticationStub(channel)
        try:
            stub.LogInWithCertificate(admin_pb2.LogInWithCertificateRequest(public_key=bytes(32)), timeout=20)
        except grpc.RpcError as error:
            code = error.code()
            assert isinstance(code, grpc.StatusCode)
            return code
    return None


def test_a_servers_certificate_does_not_log_in(server: AdminServer) -> None:
    assert handshake(server, files_of(server, "reader")) is None
    assert handshake(server, files_of(server, "adapter-a")) is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(CredentialUnusable, match="is not a client's certificate"):
        log_in(server, files_of(server, "adapter-a"))


def test_an_adapter_gets_a_second_certificate_to_log_in_with(server: AdminServer, tmp_path: Path) -> None:
    files = issued(server, tmp_path, "adapter-a", "--purpose", "client")
    session = log_in(server, files, "adapter-a")
    assert session.token
    with pytest.raises(WrongCertificate, match="must name"):
        check_certificate(files.certificate.read_bytes(), adapter_server("equities", "a"))


def test_a_certificate_of_another_authority_does_not_reach_the_service(server: AdminServer, tmp_path: Path) -> None:
    Authority(tmp_path).issue(tmp_path / "reader.crt", tmp_path / "reader.key", "reader", ())
    files = CertificateFiles(tmp_path / "reader.crt", tmp_path / "reader.key")
    assert handshake(server, files) is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(CredentialUnusable, match="was not issued by the authority in --ca"):
        log_in(server, files)


def test_a_caller_without_a_certificate_does_not_reach_the_second_port(server: AdminServer) -> None:
    with (
        open_channel(server.mutual_tls_endpoint, ca_of(server), ADMIN_SERVER) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        admin_pb2_grpc.AuthenticationStub(channel).GetLoginWays(admin_pb2.GetLoginWaysRequest(), timeout=20)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_certificate_that_the_records_do_not_have_is_refused(server: AdminServer, tmp_path: Path) -> None:
    """Such as one that was signed with a stolen key of the authority."""
    server.folder.authority.issue(tmp_path / "reader.crt", tmp_path / "reader.key", "reader", ())
    with pytest.raises(AuthenticationRefused) as refused:
        log_in(server, CertificateFiles(tmp_path / "reader.crt", tmp_path / "reader.key"))
    assert str(refused.value) == REFUSED
    assert audit_of(server, "authentication refused")[-1]["why"] == "the records have no such certificate"


def test_a_revoked_certificate_is_refused_and_its_tokens_end(server: AdminServer, tmp_path: Path) -> None:
    files, other = issued(server, tmp_path / "one", "stranger"), issued(server, tmp_path / "two", "stranger")
    session = log_in(server, files)
    assert run(server, "cert", "revoke", serial_of(files).upper(), "--reason", "the laptop is lost", "--yes") == 0
    with pytest.raises(AuthenticationRefused) as refused:
        log_in(server, files)
    assert str(refused.value) == REFUSED
    with (
        open_channel(server.endpoint, ca_of(server), ADMIN_SERVER, session.bearer) as channel,
        pytest.raises(grpc.RpcError, match="log in again") as ended,
    ):
        admin_pb2_grpc.StreamAdministrationStub(channel).ListFeeds(admin_pb2.ListFeedsRequest())
    assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
    log_in(server, other)
    assert run(server, "cert", "revoke", serial_of(files), "--reason", "again", "--yes") == 2
    crl = x509.load_pem_x509_crl((server.folder.path / "crl.pem").read_bytes())
    assert crl.get_revoked_certificate_by_serial_number(int(serial_of(files), 16)) is not None
    assert crl.get_revoked_certificate_by_serial_number(int(serial_of(other), 16)) is None
    assert crl.is_signature_valid(server.folder.authority.certificate.public_key())  # type: ignore[arg-type]


def test_revoking_by_name_revokes_all_of_an_identity(server: AdminServer, tmp_path: Path) -> None:
    files = [issued(server, tmp_path / str(number), "adapter-c", "--purpose", "client") for number in range(2)]
    assert run(server, "cert", "revoke", "adapter-c", "--reason", "retired", "--yes") == 0
    for each in files:
        with pytest.raises(AuthenticationRefused):
            log_in(server, each)
    assert run(server, "cert", "revoke", "nobody", "--reason", "retired", "--yes") == 2


def test_revoking_a_servers_certificate_disables_its_identity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TLS of gRPC for Python does not check whether the server that it calls has a revoked certificate."""
    with running_server(tmp_path) as server:
        assert run(server, "cert", "revoke", "adapter-a", "--reason", "the key was copied", "--yes") == 0
        assert "adapter-a is disabled" in capsys.readouterr().out
        with pytest.raises(AuthenticationRefused):
            channel_as(server, "adapter-a")
        issued(server, tmp_path / "new", "adapter-a")
        assert run(server, "identity", "enable", "adapter-a") == 0
        channel_as(server, "adapter-a").close()


def test_an_issued_certificate_has_the_purpose_that_the_cluster_gives_its_identity(
    server: AdminServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = issued(server, tmp_path, "adapter-b")
    check_certificate(files.certificate.read_bytes(), adapter_server("equities", "b"))
    assert files.private_key.stat().st_mode & 0o777 == 0o600
    for words, complaint in (
        (["reader", "--purpose", "server"], "reader serves nothing"),
        (["nobody"], "the policy has no identity 'nobody'"),
        (["reader", "--valid-days", "900"], "at most 825"),
    ):
        assert run(server, "cert", "issue", *words, "--out", str(tmp_path / "refused")) == 2
        assert complaint in capsys.readouterr().err
    assert not list((tmp_path / "refused").iterdir()), "a key without a certificate is left"
    assert run(server, "cert", "list") == 0
    assert serial_of(files)[:20] in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize("sent", [b"", b"nonsense", b"not signed", b"weak"])
def test_an_invalid_signing_request_is_refused(server: AdminServer, sent: bytes) -> None:
    key = ec.generate_private_key(ec.SECP192R1() if sent == b"weak" else ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    pem = {
        b"weak": request.public_bytes(serialization.Encoding.PEM),
        b"not signed": _with_a_changed_signature(request),
    }.get(sent, sent)
    with channel_as(server, "operator") as channel, pytest.raises(grpc.RpcError, match="signing request") as refused:
        admin_pb2_grpc.IdentityAdministrationStub(channel).IssueCertificate(
            admin_pb2.IssueCertificateRequest(name="reader", signing_request=pem)
        )
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def _with_a_changed_signature(request: x509.CertificateSigningRequest) -> bytes:
    der = bytearray(request.public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    text = base64.encodebytes(bytes(der)).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{text}-----END CERTIFICATE REQUEST-----\n".encode()


def test_the_ordinary_port_asks_for_no_certificate(server: AdminServer) -> None:
    with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) as channel:
        stub = admin_pb2_grpc.AuthenticationStub(channel)
        with pytest.raises(grpc.RpcError, match="this port asks for no certificate") as refused:
            stub.LogInWithCertificate(admin_pb2.LogInWithCertificateRequest(public_key=bytes(32)))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_server_without_the_port_says_so(tmp_path: Path) -> None:
    with (
        running_server(tmp_path) as server,
        pytest.raises(AuthenticationRefused, match="start it with --listen-mutual-tls"),
    ):
        log_in(server, files_of(server, "reader"))


def test_the_python_client_and_the_command_log_in_with_a_certificate(server: AdminServer) -> None:
    files = files_of(server, "reader")
    with connect(
        admin=server.endpoint, ca=ca_of(server), certificate_file=files.certificate, key_file=files.private_key
    ):
        pass
    operator = files_of(server, "operator")
    options = operator_options(server)[:4]
    assert admin(["feeds", *options, "--certificate-file", str(operator.certificate), "--key-file",
                 str(operator.private_key)]) == 0  # fmt: skip


def test_the_command_says_what_is_wrong_with_its_certificate(
    server: AdminServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Authority(tmp_path).issue(tmp_path / "reader.crt", tmp_path / "reader.key", "reader", ())
    files = ["--certificate-file", str(tmp_path / "reader.crt"), "--key-file", str(tmp_path / "reader.key")]
    with pytest.raises(SystemExit, match="2"):
        admin(["feeds", *operator_options(server)[:4], *files])
    assert "was not issued by the authority in --ca" in capsys.readouterr().err


def test_a_source_serves_only_the_feeds_that_name_it(tmp_path: Path) -> None:
    second = (
        CLUSTER.replace("feed_id = 1", "feed_id = 2").replace('"equities', '"bonds').replace("239.192.", "239.193.")
    )
    second = second.replace(":50", ":60").replace('"open"', '"sealed"\nsource_identity = "source"')
    policy = POLICY + '[identity.other-source]\nroles = ["source"]\n'
    with running_server(tmp_path, cluster_text=CLUSTER + second, policy_text=policy) as server:
        names = {
            name: x509.load_pem_x509_certificate(files_of(server, name).certificate.read_bytes())
            .extensions.get_extension_for_class(x509.SubjectAlternativeName)
            .value.get_values_for_type(x509.DNSName)
            for name in ("source", "other-source")
        }
        assert names == {
            "source": ["source.equities.tandemfeed.internal", "source.bonds.tandemfeed.internal"],
            "other-source": ["source.equities.tandemfeed.internal"],
        }
        with channel_as(server, "source") as channel:
            stub = admin_pb2_grpc.AdapterRegistryStub(channel)
            assert stub.GetSourceKeys(admin_pb2.SourceKeysRequest(feed="bonds")).keys
        with channel_as(server, "other-source") as channel:
            stub = admin_pb2_grpc.AdapterRegistryStub(channel)
            assert stub.DescribeFeed(admin_pb2.DescribeFeedRequest(feed="equities")).name == "equities"
            for call in (
                lambda: stub.DescribeFeed(admin_pb2.DescribeFeedRequest(feed="bonds")),
                lambda: stub.GetSourceKeys(admin_pb2.SourceKeysRequest(feed="bonds")),
            ):
                with pytest.raises(grpc.RpcError, match="no feed 'bonds'; available to you: equities") as refused:
                    call()
                assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_an_expired_certificate_is_refused(
    server: AdminServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a connection that was made while it was valid."""
    files = issued(server, tmp_path, "reader", "--valid-days", "1")
    monkeypatch.setattr("tandemfeed.admin_server.identity.certificate_login.time.time", lambda: time.monotonic() + 4e9)
    with pytest.raises(AuthenticationRefused) as refused:
        log_in(server, files)
    assert str(refused.value) == REFUSED
    assert audit_of(server, "authentication refused")[-1]["why"] == "the certificate has expired"
