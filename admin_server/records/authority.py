"""The cluster's certificate authority: creates itself at the first start, and issues certificates for one purpose each.

A server's certificate carries the names of what it serves (`transport.calls.server_names`) and may not authenticate a
client; a client's carries its identity, and may not serve. The authority must never put a server's name into the
certificate of an identity that is not configured as this server, because callers rely on the name alone.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = datetime.timedelta(days=825)
COMMON_NAME_LENGTH_MAX = 64  # RFC 5280
IDENTITY_URI = "tandemfeed:identity/"


class Authority:
    """The authority in a folder: `ca.pem` and `ca.key`.

    Attributes:
        certificate: the authority's own.
    """

    def __init__(self, folder: Path) -> None:
        key_path, path = folder / "ca.key", folder / "ca.pem"
        if not path.exists():
            _create(key_path, path)
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self.certificate = x509.load_pem_x509_certificate(path.read_bytes())

    def issue(self, path: Path, key_path: Path, identity: str, server_names: Sequence[str]) -> None:
        """Ensure that the files have a certificate for this purpose and its key.

        What this authority issued for another purpose, or before certificates had one, is replaced; what another
        authority issued is not.

        Args:
            server_names: what the identity serves; empty: it serves nothing, and gets a client's certificate.
        """
        extensions = _server_extensions(server_names) if server_names else _client_extensions(identity)
        if path.exists() and key_path.exists() and not self._is_for_another_purpose(path, extensions):
            return
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(identity), self.certificate.subject, key).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        write_private(key_path, _key_pem(key))
        write_private(path, certificate.public_bytes(serialization.Encoding.PEM))

    def _is_for_another_purpose(self, path: Path, extensions: Sequence[x509.ExtensionType]) -> bool:
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError as bad:
            raise OSError(f"{path} has no certificate in PEM format: {bad}; remove the file to get a new one") from bad
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        found = {extension.value for extension in certificate.extensions}
        return not set(extensions) <= found


def _server_extensions(server_names: Sequence[str]) -> list[x509.ExtensionType]:
    return [
        x509.SubjectAlternativeName([x509.DNSName(name) for name in server_names]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    ]


def _client_extensions(identity: str) -> list[x509.ExtensionType]:
    return [
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(IDENTITY_URI + identity)]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
    ]


def _create(key_path: Path, path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("tandemfeed development authority")
    certificate = (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(key_path, _key_pem(key))
    write_private(path, certificate.public_bytes(serialization.Encoding.PEM))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:COMMON_NAME_LENGTH_MAX])])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID_FOR)
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically; only the server's user can read it at any time."""
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(path)
