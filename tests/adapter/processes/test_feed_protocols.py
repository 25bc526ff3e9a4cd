"""Feed settings with real processes: acked publishing, and channels with one source stream."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import zmq

from tandemfeed.feedcore.merge.effects import Gap, Takeover
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver
from tests.adapter.processes.adapter_processes import WAIT_S
from tests.adapter.processes.clusters import Feed, Reader, running_cluster

pytestmark = pytest.mark.processes


def test_acked_publishing_continues_without_a_backup_and_survives_the_death_of_the_active(tmp_path: Path) -> None:
    feed = Feed(options='lease_ttl_ms = 1000\nsync_interval_ms = 200\npublish = "acked"')
    with running_cluster(tmp_path, feed) as cluster:
        cluster.start_adapters("ab")
        with cluster.subscription() as subscription:
            reader, source = Reader(subscription), cluster.source
            active = "ab"[cluster.await_active("equities", synchronized_count=1).active.adapter_id - 1]
            backup = "b" if active == "a" else "a"
            receiver = ZeromqReceiver(source.context, "127.0.0.1", feed.output_group(active, 1))
            try:
                for _ in range(20):
                    source.send(1, 20)
                    source.send(2, 10)
                reader.take(600)
                _await_announcement(receiver)
            finally:
                receiver.close()
            cluster.adapters[backup].signal(signal.SIGSTOP)
            source.send(1, 20)
            reader.take(20)  # no backup acknowledges, so the active continues alone
            cluster.adapters[backup].signal(signal.SIGCONT)
            source.send(2, 20)
            reader.take(20)
            cluster.await_active("equities", synchronized_count=1)
            cluster.kill(active)
            for _ in range(20):
                source.send(1, 20)
                source.send(2, 10)
            reader.take(600)
            reader.assert_everything_once_and_in_order(source.next_seq)
            assert not any(isinstance(event, Gap) for event in reader.events)


def test_the_backup_of_a_channel_with_one_source_stream_transmits_without_the_lease(tmp_path: Path) -> None:
    feed = Feed(channels={1: (1,)}, options="lease_ttl_ms = 60000")  # longer than the test may take
    with running_cluster(tmp_path, feed) as cluster:
        cluster.start_adapters("ab")
        with cluster.subscription() as subscription:
            reader, source = Reader(subscription), cluster.source
            before = cluster.await_active("equities", synchronized_count=1)
            active, backup = (before.active.adapter_id, 3 - before.active.adapter_id)
            source.send(1, 20)
            reader.take(20)
            cluster.adapters["ab"[active - 1]].signal(signal.SIGSTOP)  # connected, so it keeps the lease
            reader.adapter_ids.clear()
            for _ in range(20):
                source.send(1, 20)
            reader.take(400)
            assert reader.adapter_ids == {backup}
            assert {event.epoch for event in reader.events if isinstance(event, Takeover)} <= {before.active.epoch}
            cluster.kill("ab"[active - 1])
            for _ in range(20):
                source.send(1, 20)
            reader.take(400)
            after = cluster.await_active("equities", other_than=active)
            assert (after.active.adapter_id, after.active.epoch > before.active.epoch) == (backup, True)
            source.send(1, 20)
            reader.take(20)
            reader.assert_everything_once_and_in_order(source.next_seq)


def _await_announcement(receiver: ZeromqReceiver) -> None:
    while receiver.socket.poll(int(WAIT_S * 1_000), zmq.POLLIN):
        datagram = receiver.receive()
        if datagram is not None and datagram[5] & OutputFlag.ANNOUNCEMENT:
            return
    raise AssertionError("no announcement arrived")
