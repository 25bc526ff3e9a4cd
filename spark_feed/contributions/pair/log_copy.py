"""The copy of the holder's log that a standby keeps, and the service that a holder keeps it with.

The follower acknowledges what is on its disk. Before a standby opens its copy as the new holder, it has stopped
following: the former holder's records are never acknowledged again. Invariant: a follower that failed, or whose copy is
gone, is never taken for one that follows; it is made again.
"""

from __future__ import annotations

import logging
import shutil
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from tandemfeed.journal import JournalError
from tandemfeed.journal.replication import (
    FollowerKeys,
    FollowerState,
    FollowerStatus,
    LeaderKeys,
    LeaderStatus,
    Limits,
    ReplicationFollower,
    ReplicationLeader,
)
from tandemfeed.journal.replication.follower.follower_journal import LEADER_NAME
from tandemfeed.runtime.durable import remove_file, rename_file
from tandemfeed.spark_feed.contributions.contribution_log import copy_id, log_folder
from tandemfeed.spark_feed.sharing import make

LOG = logging.getLogger(__name__)
MS = 1_000_000
# A holder without its standby must know it soon: until then, its contributors wait.
LIMITS = Limits(
    heartbeat_interval_ns=200 * MS, silence_ns_max=800 * MS, backoff_ns_min=50 * MS, backoff_ns_max=500 * MS
)
# How long after a failure the next follower starts.
RETRY_NS_MIN, RETRY_NS_MAX = 250 * MS, 8_000 * MS
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


class Follower(Protocol):
    """A `ReplicationFollower` that was started."""

    @property
    def status(self) -> FollowerStatus:
        """The current status."""
        ...

    def stop(self) -> None:
        """Stop following."""
        ...


class LogCopy:
    """Follows the present holder. Owner: one thread.

    Args:
        on_set_aside: called before the copy is given up: no term may be granted to it any more.
        start: starts a follower of a leader.
        clock_ns: monotonic time.

    Attributes:
        failure: why nothing is copied at present, for people; empty: the follower runs.
    """

    def __init__(
        self,
        folder: Path,
        keys: KeyPair,
        on_set_aside: Callable[[], None],
        start: Callable[[Path, KeyPair, Leader], Follower] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._folder, self._keys, self._on_set_aside = folder, keys, on_set_aside
        self._start, self._clock_ns = start or start_follower, clock_ns
        self._leader: Leader | None = None
        self._follower: Follower | None = None
        self._copy = b""  # that the follower has made or opened
        self._retry_at_ns, self._pause_ns = 0, RETRY_NS_MIN
        self.failure = ""

    @property
    def is_following(self) -> bool:
        """Whether a follower runs."""
        return self._follower is not None

    def follow(self, leader: Leader) -> None:
        """Follow this leader from now on; call it often. A copy that differs from the leader's log is set aside and
        made again. A follower that failed is started again, after pauses that grow."""
        if self._follower is not None:
            self._check(self._follower)
        if leader != self._leader:
            self.stop()
            self._leader, self._retry_at_ns, self._pause_ns = leader, 0, RETRY_NS_MIN
        if self._follower is None and self._clock_ns() >= self._retry_at_ns:
            self._begin(leader)

    def stop(self) -> None:
        """Stop following: from now on nothing is acknowledged."""
        if self._follower is not None:
            self._follower.stop()
        self._follower, self._leader, self._copy = None, None, b""

    # ---- inside ----

    def _begin(self, leader: Leader) -> None:
        try:
            # Any holder is followed that the admin server names.
            remove_file(log_folder(self._folder) / LEADER_NAME)
            self._follower = self._start(self._folder, self._keys, leader)
        except (JournalError, OSError) as failed:
            self._fail(str(failed))

    def _check(self, follower: Follower) -> None:
        status, copy = follower.status, copy_id(self._folder)
        if status.state in UNUSABLE:
            leader = self._leader
            self.stop()
            self._on_set_aside()
            self._set_aside(status.reason)
            self._leader = leader
        elif self._copy and copy != self._copy:
            follower.stop()
            self._fail(f"the copy of the log in {log_folder(self._folder)} was removed or replaced")
        elif status.state is FollowerState.FAILED:
            follower.stop()
            self._fail(f"the follower of the holder's log failed: {status.reason}")
        elif status.state is FollowerState.FOLLOWING:
            self.failure, self._pause_ns, self._copy = "", RETRY_NS_MIN, copy

    def _fail(self, why: str) -> None:
        """The follower is gone; the next one starts after a pause."""
        LOG.error("%s; starting it again", why)
        self.failure, self._follower, self._copy = why, None, b""
        self._retry_at_ns = self._clock_ns() + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, RETRY_NS_MAX)

    def _set_aside(self, reason: str) -> None:
        log = log_folder(self._folder)
        if not log.exists():
            return
        aside = log.with_name(f"{log.name}.set-aside")
        LOG.warning(
            "the copy differs from the holder's log; making it again", extra={"kept": str(aside), "why": reason}
        )
        shutil.rmtree(aside, ignore_errors=True)
        rename_file(log, aside)


def start_follower(folder: Path, keys: KeyPair, leader: Leader) -> Follower:
    """Start to follow a leader's log."""
    its_keys = FollowerKeys(leader.key.encode(), keys.public, keys.secret)
    return ReplicationFollower(
        log_folder(folder), leader.endpoint, keys=its_keys, durable=True, adopt=True, limits=LIMITS,
        group=make(folder).group_id,
    ).start()  # fmt: skip
