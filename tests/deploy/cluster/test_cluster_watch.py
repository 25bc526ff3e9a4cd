"""The watch on a feed, with an admin server whose updates the test chooses."""

from __future__ import annotations

import contextlib

import pytest

from tandemfeed.deploy.cluster.cluster_watch import ClusterWatch
from tandemfeed.v1 import admin_pb2
from tests.client_lib.toy_cluster import IDENTITY, SECRET, ToyCluster

TIMEOUT_S = 60


def test_watch_counts_epochs_that_had_an_active_even_if_their_numbers_have_gaps() -> None:
    with contextlib.closing(ToyCluster()) as cluster:
        endpoint = cluster.admin_rpc.endpoint
        watch = ClusterWatch(endpoint, cluster.ca_pem, IDENTITY, SECRET, "equities", lambda: None)
        with contextlib.closing(watch):
            watch.wait_for(lambda: watch.epoch == 1, TIMEOUT_S, "the first update")
            assert cluster.admin.subscribed.acquire(timeout=TIMEOUT_S)
            adapters = [cluster.describe(each) for each in cluster.adapters]
            updates = [(0, 64), (1, 65), (1, 65), (0, 66), (2, 67), (2, 68)]  # (active, epoch); 0: no active
            for active, epoch in updates:
                now = admin_pb2.ActiveAdapter(adapter_id=active, epoch=epoch)
                cluster.admin.push(admin_pb2.Grant(adapters=adapters, active=now))
            watch.wait_for(lambda: watch.epoch == 68, TIMEOUT_S, "the last update")
            assert watch.epochs_seen == 4, "epochs 1, 65, 67 and 68"


@pytest.mark.parametrize("failures", [1, 2])
def test_watch_connects_again_after_its_server_was_away_once_and_again(failures: int) -> None:
    with contextlib.closing(ToyCluster()) as cluster:
        endpoint = cluster.admin_rpc.endpoint
        watch = ClusterWatch(endpoint, cluster.ca_pem, IDENTITY, SECRET, "equities", lambda: None)
        with contextlib.closing(watch):
            for seen in range(1, 2 + failures):
                watch.wait_for(lambda seen=seen: watch.connections_seen == seen, TIMEOUT_S, "a connection")
                assert watch.is_connected
                cluster.stop_admin()
                watch.wait_for(lambda: not watch.is_connected, TIMEOUT_S, "the loss of the server")
                cluster.restart_admin()
