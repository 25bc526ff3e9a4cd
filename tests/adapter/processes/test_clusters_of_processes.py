"""Whole clusters of real processes: several backups, feeds and channels, hand-over, restarts of all adapters."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tandemfeed.adapter.records.saved_state import MAGIC as SAVED_STATE
from tandemfeed.feedcore.merge.effects import Gap, Takeover
from tandemfeed.journal import Tailer
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import login
from tandemfeed.transport.calls.server_names import adapter_server
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2, replay_pb2, replay_pb2_grpc, sync_pb2, sync_pb2_grpc
from tests.adapter.processes.adapter_processes import WAIT_S, SourceByHand
from tests.adapter.processes.clusters import Feed, Reader, running_cluster
from tests.admin_server.cluster_files import Server, ca_of, channel_as, secret_of

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("names", ["ab", *(pytest.param(names, marks=pytest.mark.long) for names in ("abc", "abcde"))])
def test_with_any_number_of_backups_the_survivors_continue_each_time_the_active_is_killed(
    tmp_path: Path, names: str
) -> None:
    with running_cluster(tmp_path, Feed(names)) as cluster:
        cluster.start_adapters(names)
        with cluster.subscription() as subscription:
            reader, source = Reader(subscription), cluster.source
            active = cluster.await_active("equities", synchronized_count=len(names) - 1).active.adapter_id
            for _ in range(2):
                for _ in range(20):
                    source.send(1, 20)
                    source.send(2, 10)
                reader.take(600)
                source.send(1, 5)
                victim = names[active - 1]
                cluster.kill(victim)
                for _ in range(20):
                    source.send(1, 20)
                    source.send(2, 10)
                reader.take(605)
                active = cluster.await_active("equities", other_than=active).active.adapter_id
                cluster.start_adapters(victim)
                cluster.await_active("equities", synchronized_count=len(names) - 1)
            reader.assert_everything_once_and_in_order(source.next_seq)
            assert sum(isinstance(event, Takeover) for event in reader.events) >= 2
            assert not any(isinstance(event, Gap) for event in reader.events)
        assert {adapter.stop() for adapter in cluster.adapters.values()} == {0}


def test_a_planned_hand_over_passes_the_epoch_on_without_silence(tmp_path: Path) -> None:
    with running_cluster(tmp_path, Feed("abc")) as cluster:
        cluster.start_adapters("abc")
        with cluster.subscription() as subscription, channel_as(cluster.server, "operator") as channel:
            reader, source = Reader(subscription), cluster.source
            before = cluster.await_active("equities", synchronized_count=2)
            former = "abc"[before.active.adapter_id - 1]
            heir = "cab"[before.active.adapter_id - 1]
            source.send(1, 20)
            source.send(2, 20)
            reader.take(40)
            reply = admin_pb2_grpc.OperationsStub(channel).Failover(
                admin_pb2.FailoverRequest(feed="equities", to=heir), timeout=20
            )
            assert (reply.active, reply.epoch > before.active.epoch) == (heir, True)
            source.send(1, 20)
            source.send(2, 20)
            reader.take(40)
            reader.assert_everything_once_and_in_order(source.next_seq)
            cluster.adapters[former].await_state("synchronized")
            cluster.adapters[heir].await_state("active")
            assert cluster.adapters[former].moves()[-2:] == ["active", "synchronized"]
            assert cluster.adapters[heir].moves()[-2:] == ["synchronized", "active"]


def test_two_feeds_of_two_channels_each_run_in_one_cluster_without_interference(tmp_path: Path) -> None:
    channels = {1: (1, 2), 2: (3,)}
    one, two = Feed("ab", channels), Feed("cd", channels, feed_id=2, name="bonds")
    with running_cluster(tmp_path, one, two) as cluster:
        cluster.start_adapters("abcd")
        with cluster.subscription("equities") as first, cluster.subscription("bonds") as second:
            readers = {"equities": Reader(first), "bonds": Reader(second)}
            actives = {name: cluster.await_active(name, synchronized_count=1) for name in readers}
            _send_everywhere(cluster.sources, readers)
            victim = one.adapters[actives["equities"].active.adapter_id - 1]
            cluster.kill(victim)
            _send_everywhere(cluster.sources, readers)
            for name, reader in readers.items():
                reader.assert_everything_once_and_in_order(cluster.sources[name].next_seq)
            assert not any(isinstance(event, Takeover) and event.epoch > 1 for event in readers["bonds"].events)
            assert "active" in cluster.adapters[two.adapters[actives["bonds"].active.adapter_id - 1]].moves()
        survivor = "b" if victim == "a" else "a"
        _assert_refused_as_an_adapter_of_another_feed(
            cluster.server, survivor, cluster.adapters[survivor].rpc, "adapter-c"
        )


def test_adapters_that_all_restart_together_continue_where_their_journals_end(tmp_path: Path) -> None:
    with running_cluster(tmp_path, Feed("abc")) as cluster:
        source = cluster.source
        cluster.start_adapters("abc")
        with cluster.subscription() as subscription:
            reader = Reader(subscription)
            cluster.await_active("equities", synchronized_count=2)
            _send_and_take(source, reader)
            for adapter in cluster.adapters.values():
                assert adapter.stop() == 0
            cluster.start_adapters("abc")
            cluster.await_active("equities", synchronized_count=2)
            _send_and_take(source, reader)
            reader.assert_everything_once_and_in_order(source.next_seq)
            takeovers = [event.first_message_seq for event in reader.events if isinstance(event, Takeover)]
            assert takeovers[-1] == 301


def test_adapters_that_are_all_killed_together_lose_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path, Feed("abc")) as cluster:
        source = cluster.source
        cluster.start_adapters("abc")
        with cluster.subscription() as subscription:
            reader = Reader(subscription)
            cluster.await_active("equities", synchronized_count=2)
            _send_and_take(source, reader)
            for name in "abc":
                _await_saved_state(tmp_path / f"journal-{name}")
            _send_and_take(source, reader)  # later than the saved states
            for name in "abc":
                cluster.kill(name)
            cluster.start_adapters("abc")
            source.beat()
            cluster.await_active("equities", synchronized_count=2)
            _send_and_take(source, reader)
            reader.assert_everything_once_and_in_order(source.next_seq)
            assert not any(isinstance(event, Gap) for event in reader.events)


def _send_and_take(source: SourceByHand, reader: Reader) -> None:
    for _ in range(10):
        source.send(1, 20)
        source.send(2, 10)
    reader.take(300)


def _await_saved_state(journal: Path) -> None:
    with Tailer(journal) as tailer:
        while True:
            assert tailer.wait(WAIT_S), f"no state was saved in {journal}"
            if any(record[:4] == SAVED_STATE for _, record in tailer.read_many(1_000)):
                return


def _send_everywhere(sources: dict[str, SourceByHand], readers: dict[str, Reader]) -> None:
    for name, source in sources.items():
        for _ in range(10):
            for stream in (1, 2, 3):
                source.send(stream, 10)
        readers[name].take(300)


def _assert_refused_as_an_adapter_of_another_feed(server: Server, name: str, rpc: str, identity: str) -> None:
    session = login(server.endpoint, ca_of(server), identity, secret_of(server, identity))
    position = common_pb2.MessageStreamState(epoch=1, next_input_seq=1, next_message_seq=1)
    with open_channel(rpc, ca_of(server), adapter_server("equities", name), session.bearer) as channel:
        sync, replay = sync_pb2_grpc.AdapterSyncStub(channel), replay_pb2_grpc.ReplayStub(channel)
        for call in (
            lambda: sync.GetRuns(sync_pb2.GetRunsRequest(channel_id=1, position=position), timeout=10),
            lambda: next(iter(sync.Follow(sync_pb2.FollowRequest(adapter_id=1), timeout=10))),
            lambda: next(iter(sync.GetSnapshot(sync_pb2.GetSnapshotRequest(channel_id=1), timeout=10))),
            lambda: next(iter(sync.GetBuckets(sync_pb2.GetBucketsRequest(channel_id=1), timeout=10))),
            lambda: next(iter(replay.Replay(replay_pb2.ReplayRequest(channel_id=1), timeout=10))),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]
