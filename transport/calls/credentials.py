"""What a process logs in with: a shared secret, a client certificate, or a signed token of an outside issuer.

Files are read at each login, so that their content can be renewed while the process runs. A trailing line ending, also
one of Windows, does not belong to a secret or token.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

IDENTITY_URI = "tandemfeed:identity/"  # in a client's certificate, followed by the name


class CredentialUnusable(OSError):
    """A file with a secret, certificate or token cannot be read, or is not one; the text says which."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A shared secret."""

    path: Path

    def read(self) -> str:
        """The secret."""
        return read_text(self.path)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A signed token of an outside issuer."""

    path: Path

    def read(self) -> str:
        """The token."""
        return read_text(self.path)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A client's certificate and its private key, both in PEM format."""

    certificate: Path
    private_key: Path

    def read(self) -> tuple[bytes, bytes]:
        """(certificate, key)."""
        return _read(self.certificate), _read(self.private_key)

    def check(self, ca_pem: bytes, now: datetime | None = None) -> None:
        """Say what is wrong with the certificate: a server refuses it in the TLS handshake, without a reason.

        Args:
            now: the wall clock's time; None: that of this host.

        Raises:
            CredentialUnusable: it is not a client's, not of this authority, or not valid now.
        """
        self.identity()
        certificate, now = self._load(), now or datetime.now(UTC)
        try:
            certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca_pem))
        except (ValueError, TypeError, InvalidSignature) as foreign:
            raise CredentialUnusable(f"{self.certificate} was not issued by the authority in --ca") from foreign
        if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
            first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            raise CredentialUnusable(f"{self.certificate} is valid from {first} to {last}; this host's time is {now}")

    def identity(self) -> str:
        """The identity that the certificate names."""
        names = identities_in(self._load())
        if len(names) != 1:
            raise CredentialUnusable(
                f"{self.certificate} is not a client's certificate; `tandemfeed admin cert issue NAME --purpose client "
                "--out DIR` makes one"
            )
        return names[0]

    def _load(self) -> x509.Certificate:
        try:
            return x509.load_pem_x509_certificate(_read(self.certificate))
        except ValueError as bad:
            raise CredentialUnusable(f"{self.certificate} has no certificate in PEM format: {bad}") from bad


Credential = str | SecretFile | CertificateFiles | TokenFile  # text: the secret itself


def to_words(credential: Credential) -> dict[str, str]:
    """A credential as JSON, for a process that logs in as this one."""
    match credential:
        case str():
            return {"secret": credential}
        case SecretFile():
            return {"secret_file": str(credential.path)}
        case TokenFile():
            return {"token_file": str(credential.path)}
        case CertificateFiles():
            return {"certificate": str(credential.certificate), "private_key": str(credential.private_key)}


def from_words(words: dict[str, str]) -> Credential:
    """The credential that `to_words` turned into JSON."""
    match words:
        case {"secret": secret}:
            return secret
        case {"secret_file": path}:
            return SecretFile(Path(path))
        case {"token_file": path}:
            return TokenFile(Path(path))
    return CertificateFiles(Path(words["certificate"]), Path(words["private_key"]))


def identities_in(certificate: x509.Certificate) -> list[str]:
    """The identities that a certificate names; a client's has one."""
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    uris = alternatives.get_values_for_type(x509.UniformResourceIdentifier)
    return [uri.removeprefix(IDENTITY_URI) for uri in uris if uri.startswith(IDENTITY_URI)]


def read_text(path: Path) -> str:
    """The text in a file, without spaces and line endings around it.

    Raises:
        CredentialUnusable: it cannot be read, or is empty.
    """
    try:
        text = _read(path).decode().strip()
    except UnicodeDecodeError as bad:
        raise CredentialUnusable(f"{path} is not text in UTF-8: {bad.reason}") from bad
    if not text:
        raise CredentialUnusable(f"{path} is empty")
    return text


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as missing:
        raise CredentialUnusable(f"cannot read {path}: {(missing.strerror or str(missing)).lower()}") from missing
