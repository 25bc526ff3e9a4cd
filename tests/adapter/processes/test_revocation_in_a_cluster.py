"""A revoked client of a real cluster: its stream ends, and adapters seal with a key that it does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from tandemfeed.client_lib import Gap, Revoked
from tandemfeed.feedcore.wire.output_packet import OUTPUT_HEADER, OUTPUT_HEADER_SIZE
from tandemfeed.transport.dgram import MulticastReceiver
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.adapter.processes.clusters import Feed, Reader, running_cluster
from tests.admin_server.cluster_files import channel_as

KEY_ID_PLACE = 8
LOOPBACK = "127.0.0.1"
pytestmark = pytest.mark.processes


def key_ids(receiver: MulticastReceiver) -> set[int]:
    """The keys of the output packets that have arrived."""
    found = set()
    while (datagram := receiver.receive()) is not None:
        if len(datagram) >= OUTPUT_HEADER_SIZE:
            found.add(OUTPUT_HEADER.unpack_from(datagram)[KEY_ID_PLACE])
    return found


def test_after_a_revocation_adapters_change_the_key_and_the_others_miss_nothing(tmp_path: Path) -> None:
    feed = Feed("ab")
    with zmq.Context() as context, running_cluster(tmp_path, feed) as cluster:
        cluster.start_adapters("ab")
        source, policy = cluster.source, tmp_path / "policy.toml"
        before = policy.read_text()
        with cluster.subscription() as stays, channel_as(cluster.server, "operator") as operator:
            administration = admin_pb2_grpc.PolicyAdministrationStub(operator)
            cluster.await_active("equities", synchronized_count=1)
            policy.write_text(before.replace('["futures.#"]', '["equities.#"]'))
            administration.ReloadPolicy(admin_pb2.ReloadPolicyRequest())
            receiver = MulticastReceiver(context, LOOPBACK, feed.output_group("a", 1))
            with cluster.subscription(identity="stranger") as goes:
                reader, revoked = Reader(stays), Reader(goes)
                source.send(1, 20)
                reader.take(20)
                revoked.take(20)
                former = key_ids(receiver)
                policy.write_text(before)
                administration.ReloadPolicy(admin_pb2.ReloadPolicyRequest())
                revoked.take_until(Revoked)
                while not (seen := key_ids(receiver)) or seen & former:
                    source.send(1, 1)
                    reader.take(1)
                source.send(1, 20)
                reader.take(20)
            receiver.close()
            reader.assert_everything_once_and_in_order(source.next_seq)
            assert not any(isinstance(event, Gap) for event in reader.events)
