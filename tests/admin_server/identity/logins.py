"""What the tests of identities share: running commands, issuing certificates and tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from tandemfeed.admin_server.command.admin_command import main as admin
from tests.admin_server.cluster_files import Server

ISSUER, AUDIENCE = "https://sso.example.com", "tandemfeed"


def operator_options(server: Server) -> list[str]:
    """The options with which the operator logs in."""
    folder = server.folder.path
    options = ["--admin", server.endpoint, "--ca", str(folder / "ca.pem"), "--identity", "operator"]
    return [*options, "--secret-file", str(folder / "secrets" / "operator.secret")]


def run(server: Server, *arguments: str) -> int | str:
    """Run `tandemfeed admin` as the operator; return its status, or its complaint."""
    try:
        return admin([*arguments, *operator_options(server)])
    except SystemExit as exited:
        return exited.code or 0


def audit_of(server: Server, event: str) -> list[dict[str, Any]]:
    """The lines of an event in the audit log."""
    lines = (server.folder.path / "audit.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == event]


class ToyIssuer:
    """An outside issuer with one key, written as a JWKS file and as the server's file of issuers."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.keys_file, self.file = folder / "keys.json", folder / "issuers.toml"
        self.rotate("first")
        values = {
            "issuer": ISSUER,
            "audience": AUDIENCE,
            "keys": str(self.keys_file),
            "algorithms": ["ES256"],
            **settings,
        }
        self.file.write_text("[[issuer]]\n" + "".join(f"{key} = {json.dumps(each)}\n" for key, each in values.items()))

    def rotate(self, key_id: str, *, keeps: bool = False) -> None:
        """Sign with a new key from now on."""
        kept = json.loads(self.keys_file.read_text())["keys"] if keeps else []
        self.key, self.key_id = ec.generate_private_key(ec.SECP256R1()), key_id
        draft = self.keys_file.with_suffix(".new")
        draft.write_text(json.dumps({"keys": [*kept, self.public_jwk()]}))
        draft.rename(self.keys_file)

    def public_jwk(self) -> dict[str, Any]:
        """The present key as the JWKS publishes it."""
        row: dict[str, Any] = jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {**row, "kid": self.key_id, "use": "sig"}

    def token(
        self, subject: str = "reader", *, key: Any = None, algorithm: str = "ES256", valid_s: float = 600, **claims: Any
    ) -> str:
        """A token. Args: claims: those to change; None removes one."""
        now = int(time.time())
        said = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": int(now + valid_s), **claims}
        said = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(said, self.key if key is None else key, algorithm=algorithm, headers={"kid": self.key_id})
