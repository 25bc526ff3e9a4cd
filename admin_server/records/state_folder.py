"""The server's private folder: created at the first start, reused later, and readable only by the server's user.

It contains the development certificate authority and certificates, the token signing key, the salted verifiers of the
shared secrets, the lease store and the audit log. For development it also contains the secrets themselves, one file per
identity; an installation with its own identities removes `secrets/`.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import scramp
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tandemfeed.admin_server.records.authority import Authority, write_private
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, check_certificate
from tandemfeed.transport.process_shell import alone_with
from tandemfeed.transport.settings_file import SettingsError

MECHANISM = "SCRAM-SHA-256"
SCRAM_ITERATIONS = 16_384  # RFC 7677 requires at least 4,096
SALT_SIZE = 32  # as scramp's own salts, so that a decoy salt has the same size
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
        server_names: identity -> the names of what it serves; none for a client.
        must_be_prepared: create no authority, token key or secrets, because the cluster's other servers have them.

    Raises:
        OSError: another server uses the folder, or it lacks files although `must_be_prepared` is set.
        WrongCertificate: server.crt was replaced by a certificate that is not an admin server's.
        SettingsError: credentials.json is invalid.
    """

    def __init__(
        self, path: Path, server_names: Mapping[str, Sequence[str]], *, must_be_prepared: bool = False
    ) -> None:
        self.path = path
        if must_be_prepared:
            _check_prepared(path, server_names)
        for folder in (path, path / "certs", path / "secrets"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
        self._lock = ExitStack()  # two servers that share a folder would grant an epoch twice
        in_use = f"{path} is in use by another admin server; stop it, or choose another --state"
        self._lock.enter_context(alone_with(path / "server.lock", in_use))
        self._authority = Authority(path)
        self._authority.issue(path / "server.crt", path / "server.key", "admin-server", [ADMIN_SERVER])
        check_certificate(self.server_certificate[0], ADMIN_SERVER)
        self.token_key = self._token_key()
        self._credentials_path = path / "credentials.json"
        self.credentials = self._make_credentials(server_names)

    @property
    def server_certificate(self) -> tuple[bytes, bytes]:
        """(certificate chain, key), PEM."""
        return (self.path / "server.crt").read_bytes(), (self.path / "server.key").read_bytes()

    @property
    def fingerprint(self) -> str:
        """Identifies the authority and the token key; the same for all admin servers of a cluster."""
        digest = hashes.Hash(hashes.SHA256())
        digest.update(self._authority.certificate.public_bytes(serialization.Encoding.DER))
        digest.update(self.token_key.public_key().public_bytes_raw())
        return digest.finalize().hex()

    def close(self) -> None:
        """Release the folder for another server."""
        self._lock.close()

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

    def _make_credentials(self, server_names: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
        known: dict[str, dict[str, str]] = {}
        if self._credentials_path.exists():
            known = _read_credentials(self._credentials_path)
        certificates = self.path / "certs"
        for identity, names in server_names.items():
            self._authority.issue(certificates / f"{identity}.crt", certificates / f"{identity}.key", identity, names)
            if identity not in known:
                secret = secrets.token_urlsafe(24)
                write_private(self.path / "secrets" / f"{identity}.secret", secret.encode() + b"\n")
                known[identity] = hash_secret(secret)
        write_private(self._credentials_path, json.dumps(known, indent=1).encode())
        return known

    def _token_key(self) -> Ed25519PrivateKey:
        path = self.path / "token.key"
        if not path.exists():
            write_private(path, Ed25519PrivateKey.generate().private_bytes_raw())
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())


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
