"""A revoked client of a real cluster: its stream ends, adapters seal with a key that it does not have, and their replay
refuses its token."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import zmq

from tandemfeed.client_lib import Gap, Revoked
from tandemfeed.feedcore.wire.output_packet import OUTPUT_HEADER, OUTPUT_HEADER_SIZE
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import Login, login
from tandemfeed.transport.calls.server_names import adapter_server
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, replay_pb2, replay_pb2_grpc
from tests.adapter.processes.adapter_processes import SESSION, AdapterUnderTest
from tests.adapter.processes.clusters import Feed, Reader, running_cluster
from tests.admin_server.cluster_files import channel_as, secret_of

KEY_ID_PLACE = 8
LOOPBACK = "127.0.0.1"
pytestmark = pytest.mark.processes


def key_ids(receiver: ZeromqReceiver) -> set[int]:
    """The keys of the output packets that have arrived."""
    found = set()
    while (datagram := receiver.receive()) is not None:
        if len(datagram) >= OUTPUT_HEADER_SIZE:
            found.add(OUTPUT_HEADER.unpack_from(datagram)[KEY_ID_PLACE])
    return found


def replayed(adapter: AdapterUnderTest, name: str, ca: bytes, session: Login) -> list[bytes]:
    """What an adapter's replay service serves of the first messages, or the refusal."""
    with open_channel(adapter.rpc, ca, adapter_server("equities", name), session.bearer) as channel:
        wanted = replay_pb2.NumberRange(first=1, end=10)
        request = replay_pb2.ReplayRequest(channel_id=1, message_range=wanted, session=SESSION)
        chunks = replay_pb2_grpc.ReplayStub(channel).Replay(request, timeout=20)
        return [packet for chunk in chunks for packet in chunk.packets]


def test_a_revoked_client_reads_nothing_by_replay_with_the_token_that_it_has(tmp_path: Path) -> None:
    feed = Feed("ab")
    with running_cluster(tmp_path, feed) as cluster:
        cluster.start_adapters("ab")
        server, policy = cluster.server, tmp_path / "policy.toml"
        ca = (server.folder.path / "ca.pem").read_bytes()
        cluster.await_active("equities", synchronized_count=1)
        with cluster.subscription() as stays:
            cluster.source.send(1, 20)
            Reader(stays).take(20)
            old = login(server.endpoint, ca, "reader", secret_of(server, "reader"))
            for name, adapter in cluster.adapters.items():
                assert replayed(adapter, name, ca, old)
            policy.write_text(policy.read_text().replace('["equities.#"]', '["bonds.#"]'))
            for name, adapter in cluster.adapters.items():
                while True:
                    try:
                        replayed(adapter, name, ca, old)
                    except grpc.RpcError as refused:
                        assert "it was revoked" in str(refused)  # noqa: PT017
                        break
            fresh = login(server.endpoint, ca, "reader", secret_of(server, "reader"))
            server.kill()  # what adapters have heard holds without a server
            for name, adapter in cluster.adapters.items():
                with pytest.raises(grpc.RpcError, match="it was revoked"):
                    replayed(adapter, name, ca, old)
                with pytest.raises(grpc.RpcError, match="no grant"):
                    replayed(adapter, name, ca, fresh)


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
            receiver = ZeromqReceiver(context, LOOPBACK, feed.output_group("a", 1))
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
