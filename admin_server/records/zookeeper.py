"""Access to ZooKeeper: settings, the client, and functions shared by all calls.

Nodes under the root, all JSON:

    identity                          fingerprint of the authority and cluster key that all servers share
    leader                            the active server; the node's version is the *generation*, the fencing token
    election/                         one ephemeral, numbered node per candidate
    incarnations, key_ids             the newest number used
    identities/<name>, certificates/<serial>, last_logins/<name>, token_keys/token_keys    sealed documents
    feeds/<id>/epochs, lease, failed, adapters/<id>, incarnations/<id>, keys/<channel>
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from tandemfeed.transport.settings_file import SettingsError

LOG = logging.getLogger("tandemfeed.admin_server.records.zookeeper")
DEFAULT_ROOT = "/tandemfeed"
SESSION_MS = 4_000  # the shortest session that ZooKeeper grants with its default tick of 2 s
CONNECT_TIMEOUT_S = 10.0
RETRIES_AT_START = {"max_tries": 5, "delay": 0.2, "max_delay": 2.0}
RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0}
HOSTS = re.compile(r"[^\s,:]+:\d{1,5}(,[^\s,:]+:\d{1,5})*")
ROOT = re.compile(r"(/[A-Za-z0-9._-]+)+")
Result = TypeVar("Result")
ZOOKEEPER_ERRORS = (KazooException, KazooTimeoutError)  # raised by calls of the client


class ZooKeeperRefused(OSError):
    """ZooKeeper does not answer, or refuses access; the text says what to do."""


class Conflict(Exception):
    """A transaction found an unexpected version of a node. Attributes: operation: its index in the transaction."""

    def __init__(self, operation: int) -> None:
        super().__init__(f"operation {operation} of the transaction found an unexpected version")
        self.operation = operation


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Where the records are.

    Attributes:
        hosts: host:port,host:port.
        root: the node that contains all others.
        credential: user:password for the digest scheme; empty: any ZooKeeper client may change the nodes.
        session_ms: another server takes over from one that is silent for this long.
    """

    hosts: str
    root: str = DEFAULT_ROOT
    credential: str = field(default="", repr=False)
    session_ms: int = SESSION_MS

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: with option and reason.
        """
        if not HOSTS.fullmatch(self.hosts):
            raise SettingsError(f"--zookeeper is {self.hosts!r}; it must have the form HOST:PORT,HOST:PORT")
        if not ROOT.fullmatch(self.root):
            raise SettingsError(f"--zookeeper-root is {self.root!r}; it must have the form /NAME/NAME")
        if not 500 <= self.session_ms <= 60_000:
            raise SettingsError(f"--zookeeper-session-ms is {self.session_ms}; it must be between 500 and 60000")

    @property
    def validity_ns(self) -> int:
        """How long a confirmation of leadership is valid: half a session, so that a short stall does no harm."""
        return self.session_ms * 1_000_000 // 2


def connect(settings: ZooKeeperSettings) -> KazooClient:
    """A started client with a session.

    Raises:
        ZooKeeperRefused: no answer, or no access to the root.
    """
    options: dict[str, Any] = {}
    if settings.credential:
        user, _, password = settings.credential.partition(":")
        options["auth_data"] = [("digest", settings.credential)]
        options["default_acl"] = [make_digest_acl(user, password, all=True)]
    else:
        LOG.warning("any client of ZooKeeper can change the lease records; set --zookeeper-auth-file to protect them")
    client = KazooClient(settings.hosts, settings.session_ms / 1_000, connection_retry=RECONNECT, **options)
    try:
        client.start(CONNECT_TIMEOUT_S)
    except KazooTimeoutError as silent:
        raise ZooKeeperRefused(
            f"ZooKeeper at {settings.hosts} did not answer within {CONNECT_TIMEOUT_S:g} s; "
            "start it, or correct --zookeeper"
        ) from silent

    def make_root() -> None:
        for each in ("", "/election", "/feeds"):
            client.ensure_path(settings.root + each)
        client.get_children(settings.root)

    try:
        KazooRetry(**RETRIES_AT_START)(make_root)
    except ZOOKEEPER_ERRORS as refused:
        client.stop()
        client.close()
        what = "correct --zookeeper-auth-file" if isinstance(refused, NoAuthError) else "see its log"
        raise ZooKeeperRefused(
            f"ZooKeeper at {settings.hosts} refused the use of {settings.root} ({type(refused).__name__}); {what}"
        ) from refused
    return client


def cluster_fingerprint(client: KazooClient, settings: ZooKeeperSettings) -> str:
    """Identifies the authority and cluster key that the cluster's servers share; "" before the first server started.

    Raises:
        ZooKeeperRefused: no answer.
    """
    row, _ = _at_start(settings, lambda: read(client, f"{settings.root}/identity", CONNECT_TIMEOUT_S))
    return "" if row is None else str(row["fingerprint"])


def note_fingerprint(client: KazooClient, settings: ZooKeeperSettings, own: str, folder: Path) -> None:
    """Check that this server has the cluster's authority and cluster key; the first server's become the cluster's.

    Raises:
        ZooKeeperRefused: this server has different ones, or ZooKeeper does not answer.
    """

    def create() -> None:
        with suppress(NodeExistsError):
            client.create(f"{settings.root}/identity", json.dumps({"fingerprint": own}).encode())

    _at_start(settings, create)
    if cluster_fingerprint(client, settings) != own:
        raise ZooKeeperRefused(
            f"{folder} has a different ca.pem or cluster.key than the cluster at {settings.hosts}{settings.root}; copy "
            "ca.pem, ca.key and cluster.key from another admin server's state folder"
        )


def _at_start(settings: ZooKeeperSettings, call: Callable[[], Result]) -> Result:
    """Make the call; repeat it if the connection breaks."""
    try:
        result: Result = KazooRetry(**RETRIES_AT_START)(call)
    except ZOOKEEPER_ERRORS as away:
        raise ZooKeeperRefused(f"ZooKeeper at {settings.hosts} failed ({type(away).__name__}); see its log") from away
    return result


def read(client: KazooClient, path: str, timeout_s: float) -> tuple[Any, int]:
    """(value, version) of a node; (None, -1) if it does not exist. The value of an empty node is None.

    Raises:
        KazooException, KazooTimeoutError.
    """
    try:
        data, stat = client.get_async(path).get(timeout=timeout_s)
    except NoNodeError:
        return None, -1
    return (json.loads(data) if data else None), stat.version


def write(transaction: TransactionRequest, path: str, value: Any, version: int) -> None:
    """Add the writing of a node to a transaction. It succeeds only if the node has this version; -1: does not exist."""
    data = json.dumps(value).encode()
    if version < 0:
        transaction.create(path, data)
    else:
        transaction.set_data(path, data, version)


def commit(transaction: TransactionRequest, timeout_s: float) -> list[Any]:
    """Commit a transaction; return the results of its operations.

    Raises:
        Conflict: nothing was changed, because an operation found an unexpected version.
        KazooException, KazooTimeoutError: it is unknown whether the transaction was applied.
    """
    return check(transaction.commit_async().get(timeout=timeout_s))


def check(results: list[Any]) -> list[Any]:
    """Return the results of a transaction's operations, unless one of them is an error.

    Raises:
        Conflict, KazooException: as `commit` does.
    """
    for place, result in enumerate(results):
        if isinstance(result, (BadVersionError, NoNodeError, NodeExistsError)):
            raise Conflict(place)
        if isinstance(result, Exception) and not isinstance(result, (RolledBackError, RuntimeInconsistency)):
            raise result
    return results
