"""The server's private folder: created at the first start, reused later, and readable only by the server's user.

It contains the development certificate authority and certificates, the cluster's key, the records and the audit log.
For development it also contains the secrets of identities, one file each, in `secrets/`; where that folder has been
removed, the server never writes a secret again.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization

from tandemfeed.admin_server.identity.verifiers import Verifier, make_secret, read_credentials, verifier_of
from tandemfeed.admin_server.records.authority import Authority
from tandemfeed.runtime.durable import PRIVATE_FOLDER, make_folder, remove_drafts, rename_file, replace_file
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, check_certificate
from tandemfeed.transport.process_shell import alone_with

CLUSTER_KEY_SIZE = 32
SHARED_BY_SERVERS = ("ca.pem", "ca.key", "cluster.key")  # the same in every admin server's folder


class StateFolder:
    """The folder's files; missing ones are created at the first start.

    Args:
        must_be_prepared: create no authority or cluster key, because the cluster's other servers have them.

    Raises:
        OSError: another server uses the folder, or it lacks files although `must_be_prepared` is set.
        WrongCertificate: server.crt was replaced by a certificate that is not an admin server's.
        SettingsError: credentials.json is invalid.

    Attributes:
        authority: issues the cluster's certificates.
        cluster_key: a secret of the admin servers, from which they derive what seals their records, and decoys.
        credentials: the verifiers in credentials.json, which the server imports; none without that file.
    """

    def __init__(self, path: Path, *, must_be_prepared: bool = False) -> None:
        self.path = path
        if must_be_prepared:
            _check_prepared(path)
        is_first_start = not (path / "cluster.key").exists()
        folders = (path, path / "certs", *([path / "secrets"] if is_first_start else []))
        for folder in folders:
            make_folder(folder)
            folder.chmod(PRIVATE_FOLDER)
        self._lock = ExitStack()  # two servers that share a folder would grant an epoch twice
        in_use = f"{path} is in use by another admin server; stop it, or choose another --state"
        self._lock.enter_context(alone_with(path / "server.lock", in_use))
        for folder in (*folders, path / "secrets"):
            remove_drafts(folder)
        self.authority = Authority(path)
        self.authority.issue(path / "server.crt", path / "server.key", "admin-server", [ADMIN_SERVER])
        check_certificate(self.server_certificate[0], ADMIN_SERVER)
        self.cluster_key = self._cluster_key()
        credentials = path / "credentials.json"
        self.credentials = read_credentials(credentials) if credentials.exists() else {}

    @property
    def server_certificate(self) -> tuple[bytes, bytes]:
        """(certificate chain, key), PEM."""
        return (self.path / "server.crt").read_bytes(), (self.path / "server.key").read_bytes()

    @property
    def fingerprint(self) -> str:
        """Identifies the authority and the cluster key; the same for all admin servers of a cluster."""
        digest = hashes.Hash(hashes.SHA256())
        digest.update(self.authority.certificate.public_bytes(serialization.Encoding.DER))
        digest.update(self.cluster_key)
        return digest.finalize().hex()

    def close(self) -> None:
        """Release the folder for another server."""
        self._lock.close()

    def note_imported(self) -> None:
        """The records have what credentials.json had, so that later changes of that file have no effect: rename it."""
        self.credentials = {}
        path = self.path / "credentials.json"
        if path.exists():
            rename_file(path, path.with_suffix(".json.imported"))

    def make_secret(self, identity: str) -> Verifier | None:
        """Write a new secret to `secrets/`; return its verifier. None if that folder has been removed."""
        folder = self.path / "secrets"
        if not folder.is_dir():
            return None
        secret = make_secret()
        replace_file(folder / f"{identity}.secret", secret.encode() + b"\n")
        return verifier_of(secret)

    def _cluster_key(self) -> bytes:
        path = self.path / "cluster.key"
        if not path.exists():
            replace_file(path, secrets.token_bytes(CLUSTER_KEY_SIZE))
        return path.read_bytes()


def _check_prepared(path: Path) -> None:
    missing = [name for name in SHARED_BY_SERVERS if not (path / name).exists()]
    if missing:
        raise OSError(
            f"{path} lacks {', '.join(missing)}, and this cluster already has an admin server; copy "
            f"{', '.join(SHARED_BY_SERVERS)} from its state folder"
        )
