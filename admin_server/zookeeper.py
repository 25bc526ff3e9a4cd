"""The way to ZooKeeper: settings, the client, and what every call of it has in common.

Nodes under the root, all JSON:

    identity                          fingerprint of the authority and token key that all servers share
    leader                            who leads; the node's version is the *generation*, the fencing token
    election/                         one ephemeral, numbered node per server that stands
    incarnations, key_ids             the newest number given
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

from admin_server.settings import SettingsError

LOG = logging.getLogger("admin_server.zookeeper")
DEFAULT_ROOT = "/tandemfeed"
SESSION_MS = 4_000  # the shortest that a ZooKeeper with its usual tick of 2 s gives
CONNECT_TIMEOUT_S = 10.0
RETRIES_AT_START = {"max_tries": 5, "delay": 0.2, "max_delay": 2.0}
RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0}
HOSTS = re.compile(r"[^\s,:]+:\d{1,5}(,[^\s,:]+:\d{1,5})*")
ROOT = re.compile(r"(/[A-Za-z0-9._-]+)+")
Result = TypeVar("Result")
AWAY = (KazooException, KazooTimeoutError)  # what a call of the client raises


class ZooKeeperRefused(OSError):
    """ZooKeeper does not answer, or not to us; the text says what to do."""


class Conflict(Exception):
    """A transaction found a node other than expected. Attributes: operation: which, counted from 0."""

    def __init__(self, operation: int) -> None:
        super().__init__(f"operation {operation} found another version")
        self.operation = operation


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Where the records are.

    Attributes:
        hosts: host:port,host:port.
        root: node that everything is under.
        credential: user:password for the digest scheme; empty: nodes anybody may change.
        session_ms: after this long without a sign of a server, another takes over.
    """

    hosts: str
    root: str = DEFAULT_ROOT
    credential: str = field(default="", repr=False)
    session_ms: int = SESSION_MS

    def __post_init__(self) -> None:
        """Check.

        Raises:
            SettingsError: with option and reason.
        """
        if not HOSTS.fullmatch(self.hosts):
            raise SettingsError(f"--zookeeper: {self.hosts!r} does not have the form HOST:PORT,HOST:PORT")
        if not ROOT.fullmatch(self.root):
            raise SettingsError(f"--zookeeper-root: {self.root!r} does not have the form /NAME/NAME")
        if not 500 <= self.session_ms <= 60_000:
            raise SettingsError(f"--zookeeper-session-ms: {self.session_ms} is not within 500 and 60000")

    @property
    def validity_ns(self) -> int:
        """How long a confirmation of leadership is good for: half a session, so that a short stall costs nothing."""
        return self.session_ms * 1_000_000 // 2


def connect(settings: ZooKeeperSettings) -> KazooClient:
    """A started client with a session.

    Raises:
        ZooKeeperRefused: no answer, or no right to use the root.
    """
    options: dict[str, Any] = {}
    if settings.credential:
        user, _, password = settings.credential.partition(":")
        options["auth_data"] = [("digest", settings.credential)]
        options["default_acl"] = [make_digest_acl(user, password, all=True)]
    else:
        LOG.warning("anybody who reaches ZooKeeper may take leases away: give --zookeeper-auth-file")
    client = KazooClient(settings.hosts, settings.session_ms / 1_000, connection_retry=RECONNECT, **options)
    try:
        client.start(CONNECT_TIMEOUT_S)
    except KazooTimeoutError as silent:
        raise ZooKeeperRefused(
            f"ZooKeeper at {settings.hosts} does not answer within {CONNECT_TIMEOUT_S:g} s: "
            "start it, or correct --zookeeper"
        ) from silent

    def make_root() -> None:
        for each in ("", "/election", "/feeds"):
            client.ensure_path(settings.root + each)
        client.get_children(settings.root)

    try:
        KazooRetry(**RETRIES_AT_START)(make_root)
    except AWAY as refused:
        client.stop()
        client.close()
        what = "give the right --zookeeper-auth-file" if isinstance(refused, NoAuthError) else "see its log"
        raise ZooKeeperRefused(
            f"ZooKeeper at {settings.hosts}: {settings.root}: {type(refused).__name__}: {what}"
        ) from refused
    return client


def cluster_fingerprint(client: KazooClient, settings: ZooKeeperSettings) -> str:
    """Names the authority and token key that the cluster's servers share; "" before the first server came.

    Raises:
        ZooKeeperRefused: no answer.
    """
    row, _ = _at_start(settings, lambda: read(client, f"{settings.root}/identity", CONNECT_TIMEOUT_S))
    return "" if row is None else str(row["fingerprint"])


def note_fingerprint(client: KazooClient, settings: ZooKeeperSettings, own: str, folder: Path) -> None:
    """See that this server shares authority and token key with the others; the first one says which they are.

    Raises:
        ZooKeeperRefused: it has others, or no answer.
    """

    def tell() -> None:
        with suppress(NodeExistsError):
            client.create(f"{settings.root}/identity", json.dumps({"fingerprint": own}).encode())

    _at_start(settings, tell)
    if cluster_fingerprint(client, settings) != own:
        raise ZooKeeperRefused(
            f"{folder}: its ca.pem and token.key are not those of the cluster at {settings.hosts}{settings.root}: copy "
            "ca.pem, ca.key, token.key and credentials.json from another admin server's state folder"
        )


def _at_start(settings: ZooKeeperSettings, call: Callable[[], Result]) -> Result:
    """Call, again if the connection breaks meanwhile."""
    try:
        result: Result = KazooRetry(**RETRIES_AT_START)(call)
    except AWAY as away:
        raise ZooKeeperRefused(f"ZooKeeper at {settings.hosts}: {type(away).__name__}: see its log") from away
    return result


def read(client: KazooClient, path: str, timeout_s: float) -> tuple[Any, int]:
    """(value, version) of a node; (None, -1) if there is none; the value of an empty one is None.

    Raises:
        KazooException, KazooTimeoutError.
    """
    try:
        data, stat = client.get_async(path).get(timeout=timeout_s)
    except NoNodeError:
        return None, -1
    return (json.loads(data) if data else None), stat.version


def write(transaction: TransactionRequest, path: str, value: Any, version: int) -> None:
    """Add the writing of a node to a transaction: only if it still has the version that was read; -1: has none."""
    data = json.dumps(value).encode()
    if version < 0:
        transaction.create(path, data)
    else:
        transaction.set_data(path, data, version)


def commit(transaction: TransactionRequest, timeout_s: float) -> list[Any]:
    """Commit; the results of its operations.

    Raises:
        Conflict: nothing was changed; it says which operation found another version.
        KazooException, KazooTimeoutError: it may have been applied or not.
    """
    return check(transaction.commit_async().get(timeout=timeout_s))


def check(results: list[Any]) -> list[Any]:
    """The results of a transaction's operations, if they are no errors.

    Raises:
        Conflict, KazooException: as `commit` does.
    """
    for place, result in enumerate(results):
        if isinstance(result, (BadVersionError, NoNodeError, NodeExistsError)):
            raise Conflict(place)
        if isinstance(result, Exception) and not isinstance(result, (RolledBackError, RuntimeInconsistency)):
            raise result
    return results
