"""What the server keeps of a secret (RFC 5802): enough to check a login, not enough to log in."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import msgspec
import scramp
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tandemfeed.transport.settings_file import SettingsError

MECHANISM = "SCRAM-SHA-256"
SCRAM_ITERATIONS = 16_384  # RFC 7677 requires at least 4,096
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 1_000_000  # every login pays for them at the client
SALT_SIZE = 32  # as scramp's own salts, so that a decoy salt has the same size
KEY_SIZE = 32  # SHA-256
SECRET_SIZE = 24  # bytes of a secret that the project makes


class Verifier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The salted verifier of a secret. As JSON, bytes are in base64."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __post_init__(self) -> None:
        sizes = {"salt": SALT_SIZE, "stored_key": KEY_SIZE, "server_key": KEY_SIZE}
        for name, size in sizes.items():
            if (found := len(getattr(self, name))) != size:
                raise ValueError(f"{name} has {found} bytes, expected {size}")
        if not ITERATIONS_MIN <= self.iterations <= ITERATIONS_MAX:
            raise ValueError(f"iterations is {self.iterations}; it must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}")

    def __repr__(self) -> str:
        return f"Verifier(iterations={self.iterations})"

    def for_scram(self) -> tuple[bytes, bytes, bytes, int]:
        """(salt, stored key, server key, iterations), as scramp takes them."""
        return self.salt, self.stored_key, self.server_key, self.iterations


def make_secret() -> str:
    """A new random secret."""
    return secrets.token_urlsafe(SECRET_SIZE)


def verifier_of(secret: str, *, salt: bytes = b"", iterations: int = SCRAM_ITERATIONS) -> Verifier:
    """The verifier of a secret. Args: salt: empty: a new random one."""
    made = scramp.ScramMechanism(MECHANISM).make_auth_info(
        secret, iteration_count=iterations, salt=salt or secrets.token_bytes(SALT_SIZE)
    )
    return Verifier(*made)


def decoy_verifier(identity: str, key: bytes) -> Verifier:
    """A verifier that no secret matches, for an identity that does not exist or has no secret.

    It has the size and shape of a real one and is the same at every start, so that callers cannot detect it.

    Args:
        key: known to the server only.
    """
    size = SALT_SIZE + 2 * KEY_SIZE
    seed = HKDF(hashes.SHA256(), size, None, b"made-up verifier " + identity.encode()).derive(key)
    return Verifier(seed[:SALT_SIZE], seed[SALT_SIZE:-KEY_SIZE], seed[-KEY_SIZE:], SCRAM_ITERATIONS)


def read_credentials(path: Path) -> dict[str, Verifier]:
    """The verifiers of a file credentials.json, by identity.

    Raises:
        SettingsError: it is invalid; administrators write such files.
    """
    advice = "it must be a JSON object with the output of `tandemfeed admin hash-secret` under each identity's name"
    place, found = str(path), {}
    try:
        for identity, row in msgspec.convert(json.loads(path.read_bytes()), dict[str, dict[str, str]]).items():
            place = f"{path}: verifier of {identity!r}"
            found[identity] = msgspec.convert(row, Verifier, strict=False)  # the number of iterations is a string
    except ValueError as bad:  # msgspec's errors too
        raise SettingsError(f"{place}: {bad}; {advice}") from bad
    return found


def credentials_row(verifier: Verifier) -> dict[str, str]:
    """A verifier in the form of credentials.json."""
    return {name: str(value) for name, value in msgspec.to_builtins(verifier).items()}
