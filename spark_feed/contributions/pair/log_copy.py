"""The copy of the holder's log that a standby keeps, and the service that a holder keeps it with.

The follower acknowledges what is on its disk. Before a standby opens its copy as the new holder, it has stopped
following: the former holder's records are never acknowledged again.
"""

from __future__ import annotations

import logging
import shutil
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tandemfeed.journal.replication import (
    FollowerKeys,
    FollowerState,
    LeaderKeys,
    LeaderStatus,
    Limits,
    ReplicationFollower,
    ReplicationLeader,
)
from tandemfeed.journal.replication.follower.follower_journal import LEADER_NAME
from tandemfeed.spark_feed.contributions.contribution_log import log_folder

LOG = logging.getLogger(__name__)
MS = 1_000_000
# A holder without its standby must know it soon: until then, its contributors wait.
LIMITS = Limits(
    heartbeat_interval_ns=200 * MS, silence_ns_max=800 * MS, backoff_ns_min=50 * MS, backoff_ns_max=500 * MS
)
UNUSABLE = (FollowerState.DIVERGED, FollowerState.REFUSED)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A gateway's keys for replication (CURVE)."""

    public: bytes
    secret: bytes = field(repr=False)


class Leader(NamedTuple):
    """Where a holder replicates its log."""

    endpoint: str
    key: str


def followers_of(keys: KeyPair, follower_keys: Iterable[str]) -> LeaderKeys:
    """What a leader needs, to admit these followers."""
    return LeaderKeys(keys.secret, frozenset(each.encode() for each in follower_keys))


def serve_log(
    folder: Path, listen: str, keys: KeyPair, follower_keys: Iterable[str], on_status: Callable[[LeaderStatus], None]
) -> ReplicationLeader:
    """Replicate the log of a session's folder to these followers.

    Args:
        listen: "HOST:PORT"; port 0: any.

    Raises:
        OSError: the address cannot be bound.
    """
    host, _, port = listen.rpartition(":")
    address = socket.getaddrinfo(host.strip("[]"), None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    bind = f"tcp://{address}:{port if int(port) else '*'}"
    allowed = followers_of(keys, follower_keys)
    return ReplicationLeader(log_folder(folder), bind, keys=allowed, limits=LIMITS, on_status=on_status).start()


class LogCopy:
    """Follows the present holder. Use it in one thread.

    Args:
        on_set_aside: called before the copy is given up: no term may be granted to it any more.
    """

    def __init__(self, folder: Path, keys: KeyPair, on_set_aside: Callable[[], None]) -> None:
        self._folder, self._keys, self._on_set_aside = folder, keys, on_set_aside
        self._leader: Leader | None = None
        self._follower: ReplicationFollower | None = None

    @property
    def is_following(self) -> bool:
        """Whether it has a leader."""
        return self._follower is not None

    def follow(self, leader: Leader) -> None:
        """Follow this leader from now on. A copy that differs from the leader's log is set aside, and made anew."""
        if self._follower is not None and self._follower.status.state in UNUSABLE:
            reason = self._follower.status.reason
            self.stop()
            self._on_set_aside()
            self._set_aside(reason)
        if leader == self._leader:
            return
        self.stop()
        log = log_folder(self._folder)
        (log / LEADER_NAME).unlink(missing_ok=True)  # any holder is followed that the admin server names
        keys = FollowerKeys(leader.key.encode(), self._keys.public, self._keys.secret)
        self._follower = ReplicationFollower(
            log, leader.endpoint, keys=keys, durable=True, adopt=True, limits=LIMITS
        ).start()
        self._leader = leader

    def stop(self) -> None:
        """Stop following: from now on nothing is acknowledged."""
        if self._follower is not None:
            self._follower.stop()
        self._follower = self._leader = None

    def _set_aside(self, reason: str) -> None:
        log = log_folder(self._folder)
        aside = log.with_name(f"{log.name}.set-aside")
        LOG.warning("the copy differs from the holder's log; making it anew", extra={"kept": str(aside), "why": reason})
        shutil.rmtree(aside, ignore_errors=True)
        log.rename(aside)
