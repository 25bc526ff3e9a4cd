"""Two contribution gateways: the holder is killed, loses its disk or is paused while a client contributes, and every
message reaches subscribers once."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest

from tandemfeed.deploy.cluster.cluster import Cluster
from tandemfeed.deploy.cluster.topology import OPERATOR, FeedLayout, Shape
from tandemfeed.transport.calls.admin_servers import AdminServers
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.kill_rounds import kill_rounds
from tests.spark_feed.contributions.test_killed_contributions import PATIENCE_S, Contributor, Reader

MESSAGES_PER_ROUND = 150
SEED = 20261123
pytestmark = [pytest.mark.processes, pytest.mark.long]


class Pair:
    """The two gateways of a feed, as an operator sees and an accident hits them."""

    def __init__(self, cluster: Cluster, feed: FeedLayout) -> None:
        self._cluster, self._feed = cluster, feed
        state = cluster.folder / "admin"
        ca_pem = (state / "ca.pem").read_bytes()
        secret = (state / "secrets" / f"{OPERATOR}.secret").read_text().strip()
        tokens = TokenSource(AdminServers(cluster.admin), ca_pem, OPERATOR, secret)
        self._channel = open_channel(cluster.admin, ca_pem, ADMIN_SERVER, tokens)

    def parts(self) -> dict[str, str]:
        """The part of each gateway that reports, by the name of its process."""
        stub = admin_pb2_grpc.OperationsStub(self._channel)
        try:
            reply = stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=5, wait_for_ready=True)
        except grpc.RpcError:
            return {}
        (status,) = [each for each in reply.feeds if each.feed.name == self._feed.name]
        pids = {process.pid: name for name, process in self._cluster.processes.items()}
        return {
            pids[each.report.process_id]: each.gateway_part
            for each in status.sources
            if not each.is_dead and not each.report.is_stopping and each.report.process_id in pids
        }

    def await_both(self, check: Contributor) -> str:
        """Wait for a holder and a standby; returns the holder."""
        give_up_at_s = time.monotonic() + PATIENCE_S
        while sorted((parts := self.parts()).values()) != ["holder", "standby"]:
            assert time.monotonic() < give_up_at_s, f"the gateways are {parts}"
            check.check()
            time.sleep(0.05)
        return next(name for name, part in parts.items() if part == "holder")

    def await_other_holder(self, former: str) -> None:
        """Wait until another gateway than that one holds the contributions."""
        give_up_at_s = time.monotonic() + PATIENCE_S
        while "holder" not in [part for name, part in self.parts().items() if name != former]:
            assert time.monotonic() < give_up_at_s, f"no takeover from {former}: the gateways are {self.parts()}"
            time.sleep(0.05)

    def folder(self, name: str) -> Path:
        """Of a gateway."""
        first = self._cluster.journal(self._feed)
        return first.with_name(first.name + name.removeprefix(self._feed.gateway))

    def close(self) -> None:
        self._channel.close()


@pytest.mark.parametrize("acknowledge", ["available", "both"])
def test_each_acknowledged_message_is_delivered_once_whatever_happens_to_the_holder(
    tmp_path: Path, acknowledge: str
) -> None:
    rounds, chosen = kill_rounds(3), random.Random(SEED)
    total = MESSAGES_PER_ROUND * (rounds + 1)
    file = tmp_path / "trades.jsonl"
    file.write_text(
        "".join(
            f'{{"message": "Trade", "symbol": "ACME", "sequence": {number}, "price": 1.5, "kind": "Regular"}}\n'
            for number in range(1, total + 1)
        )
    )
    shape = Shape(backups=1, contributed=1, contribution_gateways=2, acknowledge_contributions=acknowledge)
    with Cluster(tmp_path, shape) as cluster:
        (feed,) = cluster.feeds
        cluster.start_admin()
        for name in feed.gateways:
            cluster.start_contribution_gateway(feed, name=name)
        for name in "ab":
            cluster.start_adapter(feed, name)
        cluster.watches[feed.feed_id].await_healthy(PATIENCE_S)
        pair, reader = Pair(cluster, feed), Reader(cluster, feed.topic(1))
        contributor = Contributor(cluster, feed.topic(1), file)
        try:
            for at in range(rounds):
                holder = pair.await_both(contributor)
                reader.await_count(MESSAGES_PER_ROUND * at + chosen.randrange(MESSAGES_PER_ROUND), contributor.check)
                fault = ["kill", "lose", "pause"][at % 3]
                _hit(fault, holder, cluster, pair)
            reader.await_count(total, contributor.check)
            assert contributor.process.wait(PATIENCE_S) == 0
        finally:
            contributor.kill()
            reader.close()
            pair.close()
    assert [number for number, count in Counter(reader.sequences).items() if count > 1] == []
    assert reader.sequences == list(range(1, total + 1))
    assert sorted(contributor.acknowledged) == sorted(set(contributor.acknowledged))


def _hit(fault: str, holder: str, cluster: Cluster, pair: Pair) -> None:
    """Take the holder away, and give a gateway back when the other one has taken over."""
    (feed,) = cluster.feeds
    if fault == "pause":
        process = cluster.processes[holder]
        process.pause()
        pair.await_other_holder(holder)
        process.resume()
        return
    cluster.kill(holder)
    if fault == "lose":
        shutil.rmtree(pair.folder(holder))
    pair.await_other_holder(holder)
    cluster.start_contribution_gateway(feed, name=holder)
