"""Subscriptions of one client share the sockets of a feed, and none notices the others, with real sockets."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest
import zmq

from tandemfeed.client_lib import Client, Subscription, Takeover
from tandemfeed.client_lib.items import Item
from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.effects import Gap, Live
from tandemfeed.feedcore.wire.refusal import Refusal
from tandemfeed.transport.multicast import udp
from tandemfeed.transport.multicast.groups import BadGroup
from tandemfeed.transport.multicast.sockets import Datagrams
from tests.client_lib.toy_cluster import (
    TOPIC,
    ToyAdapter,
    ToyCluster,
    channel_key,
    collect,
    has_messages,
    heartbeat,
    message_seqs,
    packet,
    subscribe_and_hear_all,
)

GIVE_UP_S = 30.0
PACKET_SIZE = 10
UDP, TCP, ESTABLISHED = "udp", "tcp", "01"


@pytest.fixture(autouse=True, params=get_args(Datagrams))
def _(request: pytest.FixtureRequest, cluster: ToyCluster) -> None:
    """All tests of this module are run with both kinds of sockets."""
    cluster.datagrams = request.param


def own_sockets(protocol: str) -> Iterator[tuple[int, int, str]]:
    """(local port, remote port, state) of this process's sockets."""
    links = (os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    own = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    for line in Path(f"/proc/self/net/{protocol}").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in own:
            yield int(fields[1].split(":")[1], 16), int(fields[2].split(":")[1], 16), fields[3]


def has_group_sockets(cluster: ToyCluster, count: int) -> bool:
    """True if this process has so many sockets of groups; libzmq joins and leaves in the background."""
    ports = {int(adapter.group.rpartition(":")[2]) for adapter in cluster.adapters}
    give_up_at = time.monotonic() + GIVE_UP_S
    while sum(local in ports for local, _, _ in own_sockets(UDP)) != count:
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.01)
    return True


def subscribe(client: Client, **options: Any) -> Subscription[Any]:
    return client.subscribe([TOPIC], feed="equities", **({"start": "first"} | options))


def send_until(cluster: ToyCluster, count: int, is_done: Callable[[], bool]) -> None:
    """Send so many messages on both lines, then heartbeats until the condition is true."""
    for first in range(1, count, PACKET_SIZE):
        for adapter in cluster.adapters:
            adapter.send(packet(first, first, PACKET_SIZE))
    beat_until(cluster, count + 1, is_done)


def beat_until(cluster: ToyCluster, next_message_seq: int, is_done: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + GIVE_UP_S
    while not is_done():
        assert time.monotonic() < give_up_at
        for adapter in cluster.adapters:
            adapter.send(heartbeat(next_message_seq))
        time.sleep(0.01)  # the interval of heartbeats


class Reader(threading.Thread):
    """Reads one subscription in a thread, or in a coroutine in it, until a message."""

    def __init__(self, subscription: Subscription[Any], last_seq: int, *, is_coroutine: bool = False) -> None:
        super().__init__(daemon=True)
        self.subscription, self.found = subscription, list[int]()
        self._last_seq, self._is_coroutine = last_seq, is_coroutine
        self.start()

    def run(self) -> None:
        if self._is_coroutine:
            asyncio.run(self._read())
            return
        for message in self.subscription:
            if self._take(message):
                break

    async def _read(self) -> None:
        async for message in self.subscription:
            if self._take(message):
                break
        await self.subscription.__aexit__(None)

    def _take(self, message: Any) -> bool:
        self.found.append(message.origin.message_seq)
        return bool(message.origin.message_seq >= self._last_seq)


@contextmanager
def read_by(*readers: Reader) -> Iterator[Callable[[], bool]]:
    yield lambda: not any(each.is_alive() for each in readers)
    for each in readers:
        each.join(GIVE_UP_S)
        assert not each.is_alive()


def test_subscriptions_in_threads_and_coroutines_receive_what_each_of_them_asked_for(cluster: ToyCluster) -> None:
    count = 2_000
    with cluster.connect() as client:
        live = subscribe_and_hear_all(cluster, client, start="live")
        readers = [
            Reader(subscribe(client), count),
            Reader(subscribe(client), count, is_coroutine=True),
            Reader(subscribe(client, verify="signed"), count),
            Reader(subscribe(client, start={TOPIC: 501}), count),
            Reader(subscribe(client, where={"number": (1_001_001, None)}), count),
            Reader(subscribe(client, on_lag="drop"), count, is_coroutine=True),
            Reader(live, count),
        ]
        with read_by(*readers) as is_done:
            send_until(cluster, count, is_done)
        every = list(range(1, count + 1))
        wanted = [every, every, every, every[500:], every[1_000:], every, every]
        assert [each.found for each in readers] == wanted
        assert has_group_sockets(cluster, len(cluster.adapters))
    assert has_group_sockets(cluster, 0)


def test_ten_subscriptions_have_the_sockets_of_one_and_those_of_another_client_are_its_own(cluster: ToyCluster) -> None:
    with cluster.connect() as client, cluster.connect() as other:
        subscriptions = [subscribe(client) for _ in range(10)]
        assert has_group_sockets(cluster, 2)
        subscribe(other)
        assert has_group_sockets(cluster, 4)
        for subscription in subscriptions[1:]:
            subscription.close()
        assert has_group_sockets(cluster, 4)
        subscriptions[0].close()
        assert has_group_sockets(cluster, 2)


def test_a_subscription_that_is_not_polled_delays_no_other_and_requests_what_its_inbox_dropped(
    cluster: ToyCluster,
) -> None:
    count, inbox_max = 3_000, 50
    with cluster.connect() as client:
        client._sockets.receive_queue_count_max = inbox_max
        lost: list[object] = []
        stopped = subscribe_and_hear_all(
            cluster, client, on_event=lambda event: lost.append(event) if isinstance(event, Gap) else None
        )
        moving = subscribe_and_hear_all(cluster, client)
        assert stopped.poll(0) is not None
        for first in range(1, count, PACKET_SIZE):
            for adapter in cluster.adapters:
                adapter.send(packet(first, first, PACKET_SIZE))
            assert message_seqs(collect(moving, has_messages(PACKET_SIZE)))[-1] == first + PACKET_SIZE - 1
        assert moving.counters.counts[Counter.INBOX_DROPPED] == 0
        with read_by(reader := Reader(stopped, count)) as is_done:
            beat_until(cluster, count + 1, is_done)
        assert reader.found == list(range(1, count + 1))
        assert lost == []
        assert stopped.counters.counts[Counter.INBOX_DROPPED] > 0
        assert stopped.statistics().replayed_packets > 0


def test_a_subscription_that_waits_receives_while_others_come_and_go(cluster: ToyCluster) -> None:
    count = 1_000
    with cluster.connect() as client:
        waiting = subscribe_and_hear_all(cluster, client)
        with read_by(reader := Reader(waiting, count)) as is_done:
            for first in range(1, count, PACKET_SIZE):
                passing = subscribe(client, verify="signed" if first % 20 == 1 else "alarm")
                for adapter in cluster.adapters:
                    adapter.send(packet(first, first, PACKET_SIZE))
                passing.poll(0)
                passing.modify(add=[TOPIC])
                passing.cancel()
            beat_until(cluster, count + 1, is_done)
        assert reader.found == list(range(1, count + 1))
        assert waiting.counters.counts[Counter.MERGE_DIVERGED] == 0


def test_a_key_that_one_subscription_still_has_opens_nothing_for_another_that_lost_it(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    with cluster.connect() as client:
        former, present = subscribe(client), subscribe_and_hear_all(cluster, client)
        old_key, cluster.key = cluster.key, channel_key(78)
        cluster.admin.push()
        collect(present, lambda _: old_key.key_id not in present.grant.keys)
        for adapter in (a, b):
            adapter.send(packet(1, 1, 5))  # with the old key, which the idle subscription has not given up yet
        items = collect(present, lambda _: present.counters.refusals[Refusal.UNKNOWN_KEY] >= 2)
        assert message_seqs(items) == []
        for adapter in (a, b):
            adapter.sealer.use_key(cluster.key)
            adapter.send(packet(6, 6, 5), heartbeat(11))
        for subscription in (present, former):  # the first messages are replayed
            assert message_seqs(collect(subscription, has_messages(10))) == list(range(1, 11))


def test_every_subscription_follows_a_takeover(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    with cluster.connect() as client:
        subscriptions = [subscribe_and_hear_all(cluster, client) for _ in range(3)]
        a.send(packet(1, 1, 5), packet(6, 6, 5))  # the backup has not heard the second one
        b.send(packet(1, 1, 5))
        b.send(heartbeat(6, lineage=((1, 1), (2, 6))), packet(6, 6, 10, epoch=2))
        for subscription in subscriptions:
            items = collect(subscription, has_messages(15))
            assert message_seqs(items) == list(range(1, 16))
            assert [item.epoch for item in items if isinstance(item, Takeover)] == [2]


def test_subscriptions_by_unicast_share_one_connection_to_each_adapter(cluster: ToyCluster) -> None:
    for adapter in cluster.adapters:
        adapter.serve_unicast()
        adapter.is_multicast = False
    ports = {each.unicast_endpoint.rpartition(":")[2] for each in cluster.whole_grant().adapters}
    with cluster.connect() as client:
        subscriptions = [subscribe_and_hear_all(cluster, client, transport="unicast") for _ in range(3)]
        for adapter in cluster.adapters:
            adapter.send(packet(1, 1, 5))
        for subscription in subscriptions:
            assert message_seqs(collect(subscription, has_messages(5))) == list(range(1, 6))
        connected = [remote for _, remote, state in own_sockets(TCP) if state == ESTABLISHED]
        assert sorted(each for each in map(str, connected) if each in ports) == sorted(ports)
        subscriptions[0].close()
        for adapter in cluster.adapters:
            adapter.send(packet(6, 6, 5))
        for subscription in subscriptions[1:]:
            assert message_seqs(collect(subscription, has_messages(5))) == list(range(6, 11))


def test_every_subscription_is_told_that_an_adapter_is_received_by_unicast(cluster: ToyCluster) -> None:
    for adapter in cluster.adapters:
        adapter.serve_unicast()
        adapter.is_multicast = False

    def chosen(items: Iterable[Item]) -> set[int]:
        return {getattr(item, "adapter_id", 0) for item in items if type(item).__name__ == "UnicastChosen"}

    with cluster.connect() as client:
        early = [subscribe(client), subscribe(client)]
        for subscription in early:
            assert chosen(collect(subscription, lambda items: chosen(items) == {1, 2})) == {1, 2}
        late = subscribe(client)
        assert chosen(collect(late, lambda items: chosen(items) == {1, 2})) == {1, 2}


def test_a_subscription_whose_group_cannot_be_joined_leaves_the_others_as_they_are(cluster: ToyCluster) -> None:
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client, transport="multicast")
        sockets, inbox = subscription._loop.sockets, subscription._loop.inbox
        adapter = subscription.grant.adapters[1]
        unusable = replace(subscription.grant, adapters={1: replace(adapter, groups={1: "10.0.0.1:5011"})})
        with pytest.raises(BadGroup, match="not a multicast address"):
            client._sockets.join(type(inbox)(1, inbox.fd, inbox.wake), unusable, "multicast")
        for each in cluster.adapters:
            each.send(packet(1, 1, 5))
        assert message_seqs(collect(subscription, has_messages(5))) == list(range(1, 6))
        assert set(sockets.groups) == {each.group for each in cluster.adapters}


def test_an_error_while_receiving_is_raised_by_every_subscription(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.connect() as client:
        subscriptions = [subscribe_and_hear_all(cluster, client) for _ in range(2)]

        def fail(_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(subscriptions[0]._loop.sockets, "_drain", fail)
        cluster.adapters[0].send(heartbeat(1))
        for subscription in subscriptions:
            with pytest.raises(RuntimeError, match="receiving has ended"):
                collect(subscription, lambda _: False)


def interrupted(context: zmq.Context[Any], socket_type: int) -> None:
    """In place of `Context.socket`: interrupted when the socket is made."""
    made = zmq.Socket(context, socket_type)  # the context does not know it yet, and the traceback has it
    assert not made.closed
    raise KeyboardInterrupt


def interrupt_joins(patch: pytest.MonkeyPatch) -> None:
    """Interrupt the next joins of groups, with either kind of sockets."""
    patch.setattr(zmq.Context, "socket", interrupted)
    patch.setattr(udp, "_request_buffer", Mock(side_effect=KeyboardInterrupt))


def test_an_interrupt_while_a_socket_is_made_is_raised_at_once(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.connect() as client:
        with monkeypatch.context() as interrupting:
            interrupt_joins(interrupting)
            with pytest.raises(KeyboardInterrupt):
                subscribe(client)
        subscribe(client)
        assert has_group_sockets(cluster, 2)


@pytest.mark.parametrize("count", [1, 2])
def test_an_interrupt_while_a_granted_group_is_joined_is_made_good_and_keeps_nothing_from_closing(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    with cluster.connect() as client:
        subscriptions = [subscribe_and_hear_all(cluster, client) for _ in range(count)]
        third = ToyAdapter(cluster, 3, "239.192.2.3:5013")
        cluster.adapters.append(third)
        with monkeypatch.context() as interrupting:
            interrupt_joins(interrupting)
            cluster.admin.push()
            with pytest.raises(KeyboardInterrupt) as kept:  # as its traceback is by a debugger or a logger
                collect(subscriptions[0], lambda _: False)
        subscriptions[0].poll(0)
        assert has_group_sockets(cluster, 3)
        third.send(heartbeat(1))
        collect(subscriptions[0], lambda items: any(isinstance(each, Live) and each.adapter_id == 3 for each in items))
        assert has_group_sockets(cluster, 3)
        closing = threading.Thread(target=client.close, daemon=True)
        closing.start()
        closing.join(timeout=30)
        assert not closing.is_alive()
        assert kept.value is not None
        assert has_group_sockets(cluster, 0)


def test_an_interrupt_while_an_adapter_is_connected_by_unicast_is_made_good(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for adapter in cluster.adapters:
        adapter.serve_unicast()
        adapter.is_multicast = False
    with cluster.connect() as client:
        subscription = subscribe(client)
        with monkeypatch.context() as interrupting:
            interrupting.setattr(zmq.Context, "socket", interrupted)
            with pytest.raises(KeyboardInterrupt):
                collect(subscription, lambda _: False)
        collect(subscription, lambda _: len(subscription.statistics().unicast_endpoints) == 2)
        for adapter in cluster.adapters:
            adapter.send(heartbeat(1), packet(1, 1, 5))
        assert message_seqs(collect(subscription, has_messages(5))) == list(range(1, 6))
        closing = threading.Thread(target=client.close, daemon=True)
        closing.start()
        closing.join(timeout=30)
        assert not closing.is_alive()
