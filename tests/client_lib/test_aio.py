"""The asyncio interface."""

from __future__ import annotations

import asyncio

from tandemfeed.client_lib.aio import AsyncSubscription
from tandemfeed.client_lib.items import Batch
from tests.client_lib.toy_cluster import ToyCluster, message_seqs, packet, subscribe_and_hear_all


def test_a_coroutine_can_read_the_stream_and_close_it(cluster: ToyCluster) -> None:
    async def read() -> list[int]:
        items = []
        async with AsyncSubscription(subscription) as stream:
            cluster.adapters[0].send(packet(1, 1, 5), packet(6, 6, 5))
            async for item in stream:
                items += [item] if isinstance(item, Batch) else []
                if len(message_seqs(items)) == 10:
                    break
        return message_seqs(items)

    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        assert asyncio.run(asyncio.wait_for(read(), 30)) == list(range(1, 11))
        assert subscription.is_closed


def test_a_coroutine_can_modify_and_cancel_its_subscription(cluster: ToyCluster) -> None:
    async def modify() -> None:
        async with AsyncSubscription(subscription) as stream:
            await stream.modify(add=["equities.*"], remove=["equities.books"])
            while 100 not in subscription.grant.keys:
                await asyncio.sleep(0.01)
            await stream.cancel()

    with cluster.connect() as client:
        subscription = client.subscribe("equities")
        other = client.subscribe("equities")
        asyncio.run(asyncio.wait_for(modify(), 30))
        (request,) = [each.modify for each in cluster.admin.requests if each.HasField("modify")]
        assert [(each.pattern, each.is_removed) for each in request.topics] == [
            ("equities.books", True),
            ("equities.*", False),
        ]
        while not any(each.HasField("cancel") for each in cluster.admin.requests):
            other.poll(0.01)
        assert not other.is_closed


def test_a_closed_stream_ends_the_iteration(cluster: ToyCluster) -> None:
    async def read() -> list[object]:
        stream = AsyncSubscription(subscription)
        asyncio.get_running_loop().call_later(0.1, subscription.stop)
        return [item async for item in stream if isinstance(item, Batch)]

    with cluster.connect() as client:
        subscription = client.subscribe("equities")
        assert asyncio.run(asyncio.wait_for(read(), 30)) == []
