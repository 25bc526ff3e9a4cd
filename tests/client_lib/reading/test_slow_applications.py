"""Subscriptions of applications that are too slow, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import tandemfeed as tf
from tandemfeed.client_lib import Dropped, Item, LagEnded, Lagging, Subscription, TooSlow
from tests.client_lib.toy_cluster import TOPIC, ToyCluster, heartbeat, message_seqs, packet

COUNT = 600


def wait_until(cluster: ToyCluster, condition: Callable[[], bool]) -> None:
    """Send heartbeats, as adapters do, until the condition is true."""
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at
        for adapter in cluster.adapters:
            adapter.send(heartbeat(max((each.end_message_seq for each in adapter.journal), default=1)))
        time.sleep(0.01)


def send_all(cluster: ToyCluster) -> None:
    for adapter in cluster.adapters:
        adapter.send(*(packet(first, first, 20) for first in range(1, COUNT, 20)))


def has_received_all(subscription: Subscription[Any]) -> bool:
    return any(each.next_message_seq == COUNT + 1 for each in subscription.statistics().channels.values())


def test_a_slow_application_is_told_which_messages_were_dropped(cluster: ToyCluster) -> None:
    with cluster.connect() as feed, feed.subscribe(TOPIC, start="first", on_lag="drop", lag_max=100) as subscription:
        send_all(cluster)
        wait_until(cluster, lambda: has_received_all(subscription))
        assert subscription.statistics().lag.message_count <= 100
        items: list[Item] = []
        while not any(isinstance(item, LagEnded) for item in items):
            items += subscription.poll(30)
        dropped = [seq for item in items if isinstance(item, Dropped) for seq in range(*_ends(item))]
        assert sorted(dropped + message_seqs(items)) == list(range(1, COUNT + 1))
        assert message_seqs(items)[-1] == COUNT
        assert subscription.statistics().lag.dropped_count == len(dropped) > 0


def _ends(item: Dropped) -> tuple[int, int]:
    return item.first_message_seq, item.end_message_seq


def test_a_slow_coroutine_is_given_the_newest_message_of_each_key(cluster: ToyCluster) -> None:
    events: list[Any] = []

    async def read() -> list[int]:
        async with cluster.connect() as feed:
            options: Any = {"on_lag": "conflate", "lag_max": 100, "conflate_by": "text", "on_event": events.append}
            async with feed.subscribe(TOPIC, start="first", **options) as subscription:
                send_all(cluster)
                await asyncio.to_thread(wait_until, cluster, lambda: has_received_all(subscription))
                found = []
                async for message in subscription:
                    found.append(message.origin.message_seq)
                    if found[-1] == COUNT:
                        break
                return found

    found = asyncio.run(asyncio.wait_for(read(), 60))
    assert found == sorted(set(found))
    assert any(isinstance(each, Lagging) for each in events)


def test_too_slow_an_application_is_disconnected_with_an_error(cluster: ToyCluster) -> None:
    with cluster.connect() as feed:
        subscription = feed.subscribe(TOPIC, start="first", on_lag="disconnect", lag_max=100)
        send_all(cluster)
        wait_until(cluster, lambda: subscription.statistics().lag.message_count == 0 and subscription._is_disposed)
        with pytest.raises(TooSlow, match="messages waited for the application, of which at most 100 may"):
            next(iter(subscription))
        assert subscription.is_closed


def test_what_waits_is_read_to_the_end_of_the_grant(cluster: ToyCluster) -> None:
    """The loop is over long before the application has read what it received."""
    with cluster.connect() as feed, feed.subscribe(TOPIC, start="first", on_lag="drop") as subscription:
        send_all(cluster)
        wait_until(cluster, lambda: has_received_all(subscription))
        subscription._loop.stop()
        assert message_seqs(list(subscription.items())) == list(range(1, COUNT + 1))


def test_a_key_that_no_message_has_is_refused_when_the_subscription_begins(cluster: ToyCluster) -> None:
    with cluster.connect() as feed, pytest.raises(ValueError, match="conflate_by is 'symbol'; no message has"):
        feed.subscribe(TOPIC, on_lag="conflate")
    assert tf.connect is not None
