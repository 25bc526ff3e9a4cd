"""Subscriptions by unicast, beside and instead of multicast, with real sockets."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from tandemfeed.client_lib import Batch, Client, Subscription, UnicastChosen
from tandemfeed.client_lib.items import Item
from tandemfeed.client_lib.login.grant import GrantedAdapter, UnicastPlace
from tandemfeed.client_lib.stream.sockets.transport_choice import SILENCE_NS, TransportChoice
from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.effects import Live
from tandemfeed.transport.multicast.groups import BadGroup
from tandemfeed.transport.multicast.sockets import Multicast
from tests.client_lib.toy_cluster import (
    TOPIC,
    ToyCluster,
    collect,
    heartbeat,
    message_seqs,
    packet,
    subscribe_and_hear_all,
)


@pytest.fixture
def unicast(cluster: ToyCluster) -> ToyCluster:
    """A cluster whose adapters serve unicast clients, and whose groups the network does not carry."""
    for adapter in cluster.adapters:
        adapter.serve_unicast()
        adapter.is_multicast = False
    return cluster


def payloads(items: list[Item]) -> list[bytes]:
    return [bytes(item.packet.payload) for item in items if isinstance(item, Batch)]


def test_the_stream_by_unicast_is_byte_identical_to_that_by_multicast(cluster: ToyCluster) -> None:
    for adapter in cluster.adapters:
        adapter.serve_unicast()
    with cluster.connect() as one, cluster.connect() as other:
        by_unicast = subscribe_and_hear_all(cluster, one, transport="unicast")
        by_multicast = subscribe_and_hear_all(cluster, other, transport="multicast")
        for adapter in cluster.adapters:
            adapter.send(*(packet(first, first, 10) for first in range(1, 500, 10)))
        received = [collect(each, lambda items: len(message_seqs(items)) == 500) for each in (by_unicast, by_multicast)]
        assert message_seqs(received[0]) == list(range(1, 501))
        assert payloads(received[0]) == payloads(received[1])
        assert by_unicast.statistics().groups == ()
        assert len(by_unicast.statistics().unicast_endpoints) == 2
        assert by_multicast.statistics().unicast_endpoints == {}


def chosen(items: list[Item]) -> dict[int, str]:
    return {item.adapter_id: item.reason for item in items if isinstance(item, UnicastChosen)}


def hear_by_unicast(cluster: ToyCluster, subscription: Subscription) -> list[Item]:
    """Send heartbeats until every adapter's stream is live."""
    items: list[Item] = []
    give_up_at = time.monotonic() + 30
    while {item.adapter_id for item in items if isinstance(item, Live)} != {1, 2}:
        assert time.monotonic() < give_up_at
        for adapter in cluster.adapters:
            adapter.send(heartbeat(1))
        items += subscription.poll(0.05)
    return items


def subscribe(client: Client, transport: Any = "auto") -> Subscription:
    return client.subscribe([TOPIC], feed="equities", start="first", transport=transport)


def test_auto_connects_by_unicast_when_no_multicast_arrives_and_says_why(unicast: ToyCluster) -> None:
    with unicast.connect() as client:
        subscription = subscribe(client)
        items = hear_by_unicast(unicast, subscription)
        assert chosen(items) == dict.fromkeys((1, 2), "no packet arrived on its groups for 1000 ms")
        unicast.adapters[0].send(packet(1, 1, 10))
        assert message_seqs(collect(subscription, lambda found: len(message_seqs(found)) == 10)) == list(range(1, 11))


def test_auto_connects_by_unicast_at_once_when_a_group_cannot_be_joined(
    unicast: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BadGroup("no such device")

    monkeypatch.setattr(Multicast, "receiver", refuse)
    with unicast.connect() as client:
        items = hear_by_unicast(unicast, subscribe(client))
        assert chosen(items) == dict.fromkeys((1, 2), "joining its group failed: no such device")


def test_auto_stays_with_multicast_while_packets_arrive(cluster: ToyCluster) -> None:
    for adapter in cluster.adapters:
        adapter.serve_unicast()
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        end_at = time.monotonic() + 2 * SILENCE_NS / 1e9
        items: list[Item] = []
        while time.monotonic() < end_at:
            for adapter in cluster.adapters:
                adapter.send(heartbeat(1))
            items += subscription.poll(0.05)
        assert chosen(items) == {}


def test_both_transports_at_once_deliver_each_message_once(unicast: ToyCluster) -> None:
    with unicast.connect() as client:
        subscription = subscribe(client)
        hear_by_unicast(unicast, subscription)
        for adapter in unicast.adapters:
            adapter.is_multicast = True
        unicast.adapters[0].send(*(packet(first, first, 10) for first in range(1, 100, 10)))
        items = collect(subscription, lambda found: len(message_seqs(found)) >= 100)
        unicast.adapters[0].send(packet(101, 101, 1))
        items += collect(subscription, lambda found: len(message_seqs(found)) >= 1)
        assert message_seqs(items) == list(range(1, 102))
        assert subscription.counters.counts[Counter.MERGE_DIVERGED] == 0


def test_a_new_start_of_an_adapter_is_received_at_its_new_address_with_its_new_key(unicast: ToyCluster) -> None:
    with unicast.connect() as client:
        subscription = subscribe(client, "unicast")
        hear_by_unicast(unicast, subscription)
        adapter = unicast.adapters[0]
        adapter.send(packet(1, 1, 10))  # its last packet, which must not be lost
        adapter.serve_unicast()
        unicast.admin.push()
        delivered: list[Item] = []

        def has_both(items: list[Item]) -> bool:
            adapter.send(packet(11, 11, 10))
            delivered[:] = items
            return len(message_seqs(items)) >= 20

        collect(subscription, has_both)
        assert message_seqs(delivered) == list(range(1, 21))


def test_a_restarted_server_that_does_not_know_the_addresses_yet_ends_no_connection(unicast: ToyCluster) -> None:
    with unicast.connect() as client:
        subscription = subscribe(client, "unicast")
        hear_by_unicast(unicast, subscription)
        before = subscription.statistics().unicast_endpoints
        ignorant = unicast.whole_grant()
        for adapter in ignorant.adapters:
            adapter.unicast_endpoint = ""
        ignorant.active.epoch = 2  # seen when the update has arrived
        unicast.admin.push(ignorant)
        collect(subscription, lambda _: subscription.grant.epoch == 2)
        assert subscription.statistics().unicast_endpoints == before


def test_a_coroutine_reads_a_unicast_stream(unicast: ToyCluster) -> None:
    async def read() -> list[int]:
        items = []
        async with subscription:
            unicast.adapters[0].send(packet(1, 1, 5))
            async for item in subscription.items():
                items += [item] if isinstance(item, Batch) else []
                if len(message_seqs(items)) == 5:
                    break
        return message_seqs(items)

    with unicast.connect() as client:
        subscription = subscribe(client, "unicast")
        hear_by_unicast(unicast, subscription)
        assert asyncio.run(asyncio.wait_for(read(), 30)) == list(range(1, 6))


def test_an_unknown_transport_is_refused(cluster: ToyCluster) -> None:
    with cluster.connect() as client, pytest.raises(ValueError, match="auto, multicast, unicast"):
        subscribe(client, "pigeon")


ADAPTER = GrantedAdapter(1, "a", "", "", {1: "g"}, (), 7, UnicastPlace("10.0.0.5:7450", bytes(32)))


def test_an_adapter_that_is_away_or_has_no_unicast_address_is_not_waited_for() -> None:
    choice = TransportChoice("auto")
    choice.on_adapters([replace(ADAPTER, is_attended=False), replace(ADAPTER, adapter_id=2, unicast=None)], 0)
    assert choice.next_deadline_ns() is None


def test_an_adapter_whose_multicast_ceases_is_connected_to_by_unicast() -> None:
    choice = TransportChoice("auto")
    choice.on_adapters([ADAPTER], 0)
    choice.on_heard(1, 5 * SILENCE_NS)
    assert choice.on_timer(6 * SILENCE_NS - 1) == []
    assert [each.adapter_id for each in choice.on_timer(6 * SILENCE_NS)] == [1]
    assert choice.is_by_unicast(1)
    assert choice.next_deadline_ns() is None


def test_the_choice_of_unicast_outlasts_the_start_of_the_adapter() -> None:
    choice = TransportChoice("auto")
    choice.on_adapters([ADAPTER], 0)
    choice.on_timer(SILENCE_NS)
    assert choice.on_adapters([replace(ADAPTER, incarnation=8)], SILENCE_NS) == []
    assert choice.is_by_unicast(1)
