"""Subscriptions that are modified while a real cluster sends, loses its admin server, and takes over."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tandemfeed.client_lib import AuthorizationRefused, ChannelsChanged, Gap, Revoked
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.adapter.processes.adapter_processes import OWN_DOCUMENTS
from tests.adapter.processes.clusters import Feed, Reader, running_cluster
from tests.admin_server.cluster_files import channel_as

pytestmark = pytest.mark.processes
TWO_CHANNELS = Feed("ab", channels={1: (1,), 2: (2,)}, tables=dict.fromkeys((1, 2), OWN_DOCUMENTS["table"]))
FIRST, SECOND = TWO_CHANNELS.topic(1), TWO_CHANNELS.topic(2)


def test_a_channel_that_stays_misses_and_repeats_nothing_while_the_subscription_is_modified(tmp_path: Path) -> None:
    with running_cluster(tmp_path, TWO_CHANNELS) as cluster:
        cluster.start_adapters("ab")
        source = cluster.source
        with cluster.subscription() as subscription:
            before = cluster.await_active("equities", synchronized_count=1)
            reader = Reader(subscription)
            source.send(2, 5)
            reader.take(5)
            modified = threading.Event()

            def modify() -> None:
                for _ in range(3):
                    subscription.modify(remove=[SECOND])
                    subscription.modify(add=[SECOND])
                subscription.modify(remove=["*.equities-2"])
                modified.set()

            modifying = threading.Thread(target=modify)
            modifying.start()
            while not modified.is_set():
                source.send(1, 5)
                reader.take(5)
            modifying.join()
            with pytest.raises(AuthorizationRefused, match=r"'equities\.none' in feed 'equities' does not exist or"):
                subscription.modify(add=["equities.none"])
            reader.take_until(ChannelsChanged)
            cluster.server.kill()
            source.send(1, 5)
            reader.take(5)
            cluster.server.start()
            cluster.kill("ab"[before.active.adapter_id - 1])
            cluster.await_active("equities", other_than=before.active.adapter_id)
            source.send(2, 5)  # not subscribed: after the restart, too
            source.send(1, 5)
            reader.take(5)
            subscription.modify(add=[SECOND], timeout_s=60)  # waits until the client has found the server again
            assert [seq for stream, seq in reader.delivered if stream == 1] == list(range(1, source.next_seq[1]))
            assert [seq for stream, seq in reader.delivered if stream == 2] == list(range(1, 6))
            assert not [event for event in reader.events if isinstance(event, Gap | Revoked)]
            assert subscription.grant.table_names[1].id == "converter-table"


def test_a_client_that_loses_a_channel_goes_on_with_the_rest(tmp_path: Path) -> None:
    with running_cluster(tmp_path, TWO_CHANNELS) as cluster:
        cluster.start_adapters("ab")
        source, policy = cluster.source, tmp_path / "policy.toml"
        with cluster.subscription() as subscription, channel_as(cluster.server, "operator") as operator:
            administration = admin_pb2_grpc.PolicyAdministrationStub(operator)
            cluster.await_active("equities", synchronized_count=1)
            reader = Reader(subscription)
            source.send(1, 5)
            source.send(2, 5)
            reader.take(10)
            before = policy.read_text()
            policy.write_text(before.replace('["equities.#"]', f'["{FIRST}"]'))
            administration.ReloadPolicy(admin_pb2.ReloadPolicyRequest())
            reader.take_until(Revoked)
            source.send(2, 5)
            source.send(1, 5)
            reader.take(5)
            policy.write_text(before)
            administration.ReloadPolicy(admin_pb2.ReloadPolicyRequest())
            reader.take_until(ChannelsChanged)
            source.send(1, 5)
            reader.take(5)
            revoked = [event for event in reader.events if isinstance(event, Revoked)]
            assert [(event.topics, event.is_last) for event in revoked] == [((SECOND,), False)]
            assert [seq for stream, seq in reader.delivered if stream == 1] == list(range(1, source.next_seq[1]))
