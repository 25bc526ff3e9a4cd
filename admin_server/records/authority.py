"""The cluster's certificate authority: creates itself at the first start, and issues certificates for one purpose each.

A server's certificate carries the names of what it serves (`transport.calls.server_names`) and may not authenticate a
client; a client's carries its identity, and may not serve. The authority must never put a server's name into the
certificate of an identity that is not configured as this server, because callers rely on the name alone.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandemfeed.runtime.durable import replace_file
from tandemfeed.transport.calls.credentials import IDENTITY_URI

VALID_FOR = datetime.timedelta(days=825)
COMMON_NAME_LENGTH_MAX = 64  # RFC 5280
LIST_VALID_FOR = datetime.timedelta(days=30)  # a revocation list is written at each start and each revocation
EC_KEY_BITS_MIN, RSA_KEY_BITS_MIN = 256, 2_048


@dataclass(frozen=True, slots=True)
class Revocation:
    """A certificate that is not valid any more."""

    serial_number: int
    at_unix_ns: int


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
        extensions = server_extensions(server_names) if server_names else client_extensions(identity)
        if path.exists() and key_path.exists() and not self._is_for_another_purpose(path, extensions):
            return
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certify(key.public_key(), identity, extensions, VALID_FOR)
        replace_file(key_path, key_pem(key))  # first: a certificate whose key is missing is issued again
        replace_file(path, self.pem(certificate))

    def sign(
        self,
        signing_request: bytes,
        identity: str,
        extensions: Sequence[x509.ExtensionType],
        valid_for: datetime.timedelta,
    ) -> x509.Certificate:
        """A certificate for the key of a signing request (PKCS #10, PEM). Nothing else of the request is used.

        Raises:
            ValueError: the request is not readable, not signed with its key, or has a weak key.
        """
        try:
            request = x509.load_pem_x509_csr(signing_request)
            is_signed = request.is_signature_valid
        except (ValueError, TypeError, UnsupportedAlgorithm) as bad:
            raise ValueError(f"the signing request cannot be read: {bad}; expected PKCS #10 in PEM format") from bad
        if not is_signed:
            raise ValueError("the signing request is not signed with the key in it")
        return self._certify(_strong(request.public_key()), identity, extensions, valid_for)

    def has_issued(self, certificate: x509.Certificate) -> bool:
        """Whether this authority has signed a certificate."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def revocation_list(self, revoked: Iterable[Revocation]) -> bytes:
        """The revocation list (CRL) of these certificates, in PEM format."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now)
            .next_update(now + LIST_VALID_FOR)
            .add_extension(x509.CRLNumber(time.time_ns()), critical=False)
        )
        for each in revoked:
            when = datetime.datetime.fromtimestamp(each.at_unix_ns // 1_000_000_000, datetime.UTC)
            entry = x509.RevokedCertificateBuilder().serial_number(each.serial_number).revocation_date(when).build()
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    @staticmethod
    def pem(certificate: x509.Certificate) -> bytes:
        """A certificate in PEM format."""
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _certify(
        self,
        public_key: CertificatePublicKeyTypes,
        identity: str,
        extensions: Sequence[x509.ExtensionType],
        valid_for: datetime.timedelta,
    ) -> x509.Certificate:
        builder = _builder(_name(identity), self.certificate.subject, public_key, valid_for).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _is_for_another_purpose(self, path: Path, extensions: Sequence[x509.ExtensionType]) -> bool:
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError as bad:
            raise OSError(f"{path} has no certificate in PEM format: {bad}; remove the file to get a new one") from bad
        if not self.has_issued(certificate):
            return False
        found = {extension.value for extension in certificate.extensions}
        return not set(extensions) <= found


def server_extensions(server_names: Sequence[str]) -> list[x509.ExtensionType]:
    """What makes a certificate one for a server with these names, and for nothing else."""
    return [
        x509.SubjectAlternativeName([x509.DNSName(name) for name in server_names]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    ]


def client_extensions(identity: str) -> list[x509.ExtensionType]:
    """What makes a certificate one for a client with this identity, and for nothing else."""
    return [
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(IDENTITY_URI + identity)]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
    ]


def _create(key_path: Path, path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("tandemfeed development authority")
    certificate = (
        _builder(name, name, key.public_key(), VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    replace_file(key_path, key_pem(key))  # first: without its certificate, it is replaced at the next start
    replace_file(path, certificate.public_bytes(serialization.Encoding.PEM))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:COMMON_NAME_LENGTH_MAX])])


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: CertificatePublicKeyTypes, valid_for: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + valid_for)
    )


def _strong(key: CertificatePublicKeyTypes) -> CertificatePublicKeyTypes:
    """The key of a request, if it is strong enough."""
    match key:
        case ec.EllipticCurvePublicKey() if key.key_size >= EC_KEY_BITS_MIN:
            return key
        case rsa.RSAPublicKey() if key.key_size >= RSA_KEY_BITS_MIN:
            return key
    raise ValueError(
        f"the key of the signing request must be an elliptic curve's of at least {EC_KEY_BITS_MIN} bits, or RSA of at "
        f"least {RSA_KEY_BITS_MIN} bits"
    )


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key in PEM format (PKCS #8)."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
