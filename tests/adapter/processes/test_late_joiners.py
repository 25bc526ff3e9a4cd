"""Clients that join a running feed late begin with the last values of its adapters, and need no history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.client_lib import Batch, Gap, SnapshotTaken, Subscription, connect
from tests.adapter.processes.clusters import POLL_S, Cluster, Feed, Reader, running_cluster
from tests.admin_server.cluster_files import secret_of

pytestmark = pytest.mark.processes
SYMBOLS = 7  # of the source


def items_of(subscription: Subscription[Any]) -> Iterator[Any]:
    while items := subscription.poll(POLL_S):
        yield from items
    raise AssertionError("nothing more arrives")


def join_late(cluster: Cluster, source_seq: int) -> None:
    """Take a snapshot of a stream that ends with this number, and read on from there."""
    ca, source = (cluster.server.folder.path / "ca.pem").read_bytes(), cluster.source
    identity = {"identity": "reader", "secret": secret_of(cluster.server, "reader")}
    with (
        connect(admin=cluster.server.endpoint, ca=ca, **identity) as client,
        client.subscribe(feed="equities", start="snapshot") as subscription,
    ):
        newest, items = {}, items_of(subscription)
        for item in items:
            if isinstance(item, SnapshotTaken):
                break
            if isinstance(item, Batch):
                newest.update({(type(each), each.symbol): each.origin.source_seq for each in item.messages()})
        assert subscription.statistics().replayed_packets == 0
        next_seq = item.next_message_seq  # one message for each source message; callers share a copy for some time
        assert sorted(newest.values()) == list(range(next_seq - SYMBOLS, next_seq))
        source.send(1, 5)
        following: list[int] = []
        while following[-1:] != [source_seq + 5]:
            item = next(items)
            assert not isinstance(item, Gap)
            if isinstance(item, Batch):
                following += [
                    seq for each in item.sources() for seq in range(each.first_source_seq, each.end_source_seq)
                ]
        assert following == list(range(next_seq, source_seq + 6))


def test_a_late_joiner_needs_no_history_also_after_a_takeover_and_a_restart(tmp_path: Path) -> None:
    with running_cluster(tmp_path, Feed("ab")) as cluster:
        cluster.start_adapters("ab")
        source = cluster.source
        with cluster.subscription() as early:
            before = cluster.await_active("equities", synchronized_count=1)
            reader = Reader(early)
            for _ in range(20):
                source.send(1, 20)
            reader.take(400)
            join_late(cluster, 400)
            reader.take(5)
            active = "ab"[before.active.adapter_id - 1]
            cluster.adapters[active].stop()  # it saves its state, and so continues its journal
            after = cluster.await_active("equities", other_than=before.active.adapter_id)
            join_late(cluster, 405)
            reader.take(5)
            cluster.start_adapters(active)
            cluster.await_active("equities", synchronized_count=1)
            cluster.kill("ab"[after.active.adapter_id - 1])
            cluster.await_active("equities", other_than=after.active.adapter_id)
            join_late(cluster, 410)
