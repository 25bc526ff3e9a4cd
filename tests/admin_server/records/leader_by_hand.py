"""A candidate for leadership that a test controls: it records the calls of the election, and serves no clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tandemfeed.admin_server.records.zookeeper import ZooKeeperSettings, connect
from tandemfeed.admin_server.records.zookeeper_election import Election
from tandemfeed.admin_server.records.zookeeper_records import ZooKeeperRecords
from tandemfeed.admin_server.records.zookeeper_sealing import KeySealer

WAIT_S = 60


class Leader:
    """A candidate that only keeps its records."""

    def __init__(self, settings: ZooKeeperSettings, cluster_key: bytes, endpoint: str = "one:1") -> None:
        self.is_open, self.is_closed = threading.Event(), threading.Event()
        self.followed = ""
        self.records: ZooKeeperRecords | None = None
        self.client = connect(settings)
        self.election = Election(self.client, settings, endpoint, KeySealer(cluster_key), self)
        self.election.start()

    def prepare(self, records: ZooKeeperRecords) -> None:
        self.records = records

    def open(self) -> None:
        self.is_open.set()

    def close(self) -> None:
        self.is_closed.set()

    def follow(self, active_endpoint: str) -> None:
        self.followed = active_endpoint

    def lead(self) -> ZooKeeperRecords:
        assert self.is_open.wait(WAIT_S), "never became active"
        assert self.records is not None
        return self.records


@contextmanager
def leading(settings: ZooKeeperSettings, cluster_key: bytes, endpoint: str = "one:1") -> Iterator[Leader]:
    """A candidate that leaves the election at the end."""
    leader = Leader(settings, cluster_key, endpoint)
    try:
        yield leader
    finally:
        leader.election.stop()
