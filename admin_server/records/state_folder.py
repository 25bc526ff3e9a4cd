"""The server's private folder: created at the first start, reused later, and readable only by the server's user.

It contains the development certificate authority and certificates, the token signing key, the salted verifiers of the
shared secrets, the lease store and the audit log. For development it also contains the secrets themselves, one file per
identity; an installation with its own identities removes `secrets/`.
"""

from __future__ import annotations

import base64
import datetime
import fcntl
import ipaddress
import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import msgspec
import scramp
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandemfeed.transport.settings_file import SettingsError

MECHANISM = "SCRAM-SHA-256"
SCRAM_ITERATIONS = 16_384  # RFC 7677 requires at least 4,096
SALT_SIZE = 32  # as scramp's own salts, so that a decoy salt has the same size
VALID_FOR = datetime.timedelta(days=825)
SHARED_BY_SERVERS = ("ca.pem", "ca.key", "token.key", "credentials.json")  # the same in every admin server's folder


class _Verifier(msgspec.Struct, forbid_unknown_fields=True):
    """An identity's row in credentials.json, as `hash_secret` makes it. Bytes are in base64."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class StateFolder:
    """The folder's files; missing ones are created at the first start.

    Args:
        must_be_prepared: create no authority, token key or secrets, because the cluster's other servers have them.

    Raises:
        OSError: another server uses the folder, or it lacks files although `must_be_prepared` is set.
        SettingsError: credentials.json is invalid.
    """

    def __init__(
        self, path: Path, identities: Iterable[str], listen_host: str, *, must_be_prepared: bool = False
    ) -> None:
        self.path = path
        if must_be_prepared:
            _check_prepared(path, identities := list(identities))
        for folder in (path, path / "certs", path / "secrets"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
        self._lock_fd = _lock(path / "server.lock")
        self._ca_key, self._ca = self._authority()
        self._issue("server", path / "server.crt", path / "server.key", listen_host)
        self.token_key = self._token_key()
        self._credentials_path = path / "credentials.json"
        self.credentials = self._make_credentials(list(identities))

    @property
    def server_certificate(self) -> tuple[bytes, bytes]:
        """(certificate chain, key), PEM."""
        return (self.path / "server.crt").read_bytes(), (self.path / "server.key").read_bytes()

    @property
    def fingerprint(self) -> str:
        """Identifies the authority and the token key; the same for all admin servers of a cluster."""
        digest = hashes.Hash(hashes.SHA256())
        digest.update(self._ca.public_bytes(serialization.Encoding.DER))
        digest.update(self.token_key.public_key().public_bytes_raw())
        return digest.finalize().hex()

    def close(self) -> None:
        """Release the folder for another server."""
        os.close(self._lock_fd)

    def verifier(self, identity: str) -> tuple[bytes, bytes, bytes, int] | None:
        """(salt, stored key, server key, iterations) of an identity; None if it has none."""
        row = self.credentials.get(identity)
        if row is None:
            return None
        salt, stored, server = (base64.b64decode(row[key]) for key in ("salt", "stored_key", "server_key"))
        return salt, stored, server, int(row["iterations"])

    def decoy_verifier(self, identity: str) -> tuple[bytes, bytes, bytes, int]:
        """A verifier that no secret matches, for an identity that does not exist.

        It has the size and shape of a real one and is the same at every start, so that callers cannot detect it.
        """
        seed = HKDF(hashes.SHA256(), SALT_SIZE + 64, None, b"made-up verifier " + identity.encode()).derive(
            self.token_key.private_bytes_raw()
        )
        return seed[:SALT_SIZE], seed[SALT_SIZE:-32], seed[-32:], SCRAM_ITERATIONS

    # ---- credentials ----

    def _make_credentials(self, identities: list[str]) -> dict[str, dict[str, str]]:
        known: dict[str, dict[str, str]] = {}
        if self._credentials_path.exists():
            known = _read_credentials(self._credentials_path)
        for identity in identities:
            self._issue(identity, self.path / "certs" / f"{identity}.crt", self.path / "certs" / f"{identity}.key")
            if identity not in known:
                secret = secrets.token_urlsafe(24)
                _write_private(self.path / "secrets" / f"{identity}.secret", secret.encode() + b"\n")
                known[identity] = hash_secret(secret)
        _write_private(self._credentials_path, json.dumps(known, indent=1).encode())
        return known

    def _token_key(self) -> Ed25519PrivateKey:
        path = self.path / "token.key"
        if not path.exists():
            _write_private(path, Ed25519PrivateKey.generate().private_bytes_raw())
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())

    # ---- certificates ----

    def _authority(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key_path, path = self.path / "ca.key", self.path / "ca.pem"
        if not path.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tandemfeed development authority")])
            certificate = (
                _builder(name, name, key)
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
                .sign(key, hashes.SHA256())
            )
            _write_private(key_path, _key_pem(key))
            _write_private(path, certificate.public_bytes(serialization.Encoding.PEM))
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)  # type: ignore[assignment]
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key, x509.load_pem_x509_certificate(path.read_bytes())

    def _issue(self, name: str, path: Path, key_path: Path, host: str = "127.0.0.1") -> None:
        if path.exists() and key_path.exists():
            return
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        certificate = (
            _builder(subject, self._ca.subject, key)
            .add_extension(x509.SubjectAlternativeName(_alternative_names(host)), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(self._ca_key, hashes.SHA256())
        )
        _write_private(key_path, _key_pem(key))
        _write_private(path, certificate.public_bytes(serialization.Encoding.PEM))


def hash_secret(secret: str) -> dict[str, str]:
    """The salted verifier of a secret, in the form of the credentials file."""
    salt, stored, server, iterations = scramp.ScramMechanism(MECHANISM).make_auth_info(
        secret, iteration_count=SCRAM_ITERATIONS, salt=secrets.token_bytes(SALT_SIZE)
    )
    pairs = (("salt", salt), ("stored_key", stored), ("server_key", server))
    row = {name: base64.b64encode(value).decode() for name, value in pairs}
    return row | {"iterations": str(iterations)}


def _read_credentials(path: Path) -> dict[str, dict[str, str]]:
    """The verifiers by identity. Refuses an invalid file, because administrators edit it."""
    advice = "it must be a JSON object with the output of `tandemfeed admin hash-secret` under each identity's name"
    place = str(path)
    try:
        known = msgspec.convert(json.loads(path.read_text()), dict[str, dict[str, str]])
        for identity, row in known.items():
            place = f"{path}: verifier of {identity!r}"
            msgspec.convert(row, _Verifier, strict=False)  # the number of iterations is a string
    except ValueError as bad:  # msgspec's errors too
        raise SettingsError(f"{place}: {bad}; {advice}") from bad
    return known


def _check_prepared(path: Path, identities: Iterable[str]) -> None:
    missing = [name for name in SHARED_BY_SERVERS if not (path / name).exists()]
    if missing:
        raise OSError(
            f"{path} lacks {', '.join(missing)}, and this cluster already has an admin server; copy "
            f"{', '.join(SHARED_BY_SERVERS)} from its state folder"
        )
    known = _read_credentials(path / "credentials.json")
    strangers = [identity for identity in identities if identity not in known]
    if strangers:
        raise OSError(
            f"{path / 'credentials.json'} has no verifier for {', '.join(strangers)}, which the policy names; create "
            "one with `tandemfeed admin hash-secret`, and add it to this file of every admin server"
        )


def _lock(path: Path) -> int:
    """Lock the folder, because two servers that share one would grant an epoch twice."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OSError(f"{path.parent} is in use by another admin server; stop it, or choose another --state") from None
    return descriptor


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


def _alternative_names(host: str) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.IPv4Address("127.0.0.1")),
    ]
    if host not in ("localhost", "127.0.0.1", ""):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically; only the server's user can read it at any time."""
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(path)
