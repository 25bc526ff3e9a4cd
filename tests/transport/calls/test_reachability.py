"""The reason why a server cannot be reached is one sentence that names the address and says what to do."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tandemfeed.admin_server.command.admin_command import main as admin
from tandemfeed.transport.calls.reachability import (
    FIRST_TRY_S,
    Unreachable,
    call_or_explain,
    failure_text,
    why_unreachable,
)
from tandemfeed.transport.calls.server_names import ADMIN_SERVER

DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority, and servers with certificates that it signs."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        self.pem = self._certificate(self._name, self._key, -DAY, DAY, is_authority=True)

    @contextlib.contextmanager
    def server(
        self, *, begins: datetime.timedelta = -DAY, ends: datetime.timedelta = DAY, name: str = ADMIN_SERVER
    ) -> Iterator[str]:
        """The address of a TLS server whose certificate is valid for this time and server."""
        key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
        pem = self._certificate(subject, key, begins, ends, name=name)
        pem += key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = self._folder / "server.pem"
        file.write_bytes(pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        with listening(context) as address:
            yield address

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime.timedelta,
        ends: datetime.timedelta, *, name: str = ADMIN_SERVER, is_authority: bool = False,
    ) -> bytes:  # fmt: skip
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)


@contextlib.contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[str]:
    """The address of a server that shakes hands by TLS, or answers in plain text, once."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            if context is None:
                connection.sendall(b"220 not TLS\r\n")
                connection.recv(4_096)
                return
            with contextlib.suppress(OSError):  # the peer may not accept the certificate
                context.wrap_socket(connection, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(20)


def test_nothing_is_wrong_with_a_server_that_the_authority_signed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with authority.server() as address:
        assert why_unreachable(address, authority.pem) is None


def test_each_fault_has_a_sentence_of_its_own(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path)
    said = []
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    said.append((why_unreachable(f"127.0.0.1:{port}", authority.pem), "no server listens there"))
    said.append((why_unreachable("no-such-host.invalid:7400", authority.pem), "cannot be resolved"))
    with authority.server() as address:
        said.append((why_unreachable(address, other.pem), "is not signed by this CA"))
    with authority.server(begins=DAY / 2) as address:
        said.append((why_unreachable(address, authority.pem), "check the clocks"))
    with authority.server(ends=-DAY / 2) as address:
        said.append((why_unreachable(address, authority.pem), "check the clocks"))
    with authority.server(name="localhost") as address:
        said.append((why_unreachable(address, authority.pem), "is not an admin server's"))
    with listening(None) as address:
        said.append((why_unreachable(address, authority.pem), "does not speak TLS"))
    for sentence, part in said:
        assert sentence is not None
        assert part in sentence
        assert ":" in sentence.split(" ")[0]  # the address


class CallFailed(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """A failed call, as gRPC raises it."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


def test_the_text_of_a_failed_call_names_what_is_wrong_with_each_address(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    late = CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    with authority.server() as good:
        said = failure_text(late, f"no-such-host.invalid:1, {good}", authority.pem)
    assert said == (
        "no-such-host.invalid:1: the host name no-such-host.invalid cannot be resolved; check the name; "
        f"{good}: a connection can be made, but no answer came in time; the server or this host may be overloaded"
    )
    refused = CallFailed(grpc.StatusCode.PERMISSION_DENIED, "lacks the right")
    assert failure_text(refused, "no-such-host.invalid:1", authority.pem) == "PERMISSION_DENIED: lacks the right"


def test_a_server_that_accepts_connections_but_is_paused_counts_as_reachable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as paused:
        assert why_unreachable(f"127.0.0.1:{paused.getsockname()[1]}", Authority(tmp_path).pem, timeout_s=0.1) is None


def test_a_busy_server_gets_the_whole_time_limit_and_a_wrong_address_is_reported_early(tmp_path: Path) -> None:
    limits = []

    def late_at_first(timeout_s: float) -> str:
        limits.append(timeout_s)
        if len(limits) == 1:
            raise CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, "")
        return "answer"

    authority = Authority(tmp_path)
    with authority.server() as good:
        assert call_or_explain(late_at_first, ("no-such-host.invalid:1", good), authority.pem, timeout_s=10) == "answer"
    assert limits == [FIRST_TRY_S, 10 - FIRST_TRY_S]
    limits.clear()
    with pytest.raises(Unreachable, match="cannot be resolved"):
        call_or_explain(late_at_first, ("no-such-host.invalid:1",), authority.pem, timeout_s=10)
    assert limits == [FIRST_TRY_S]


def test_a_refusal_ends_the_first_call() -> None:
    def refuse(_timeout_s: float) -> str:
        raise CallFailed(grpc.StatusCode.PERMISSION_DENIED, "lacks the right")

    with pytest.raises(CallFailed):
        call_or_explain(refuse, ("no-such-host.invalid:1",), b"", timeout_s=10)


def test_an_admin_command_says_why_no_server_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.pem").write_bytes(Authority(tmp_path).pem)
    (tmp_path / "secret").write_text("secret")
    files = [f"--ca={tmp_path / 'ca.pem'}", f"--secret-file={tmp_path / 'secret'}"]
    with pytest.raises(SystemExit) as ended:
        admin(["feeds", "--admin=no-such-host.invalid:7400", "--identity=operator", *files])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("cannot be resolved; check the name")


def test_a_ca_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    with Authority(tmp_path).server() as address:
        assert "has no certificate in PEM format" in str(why_unreachable(address, b"not a certificate"))
