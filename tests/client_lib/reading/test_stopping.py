"""After `stop` or `close`, wherever they are called, no reading gives anything more; a cursor has what was given."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.client_lib import Subscription
from tests.client_lib.beating import Beating
from tests.client_lib.toy_cluster import TOPIC, ToyCluster, packet

COUNT, LAST = 500, 7
End = Callable[[Subscription[Any]], object]
ENDS: dict[str, End] = {
    "stop": lambda subscription: subscription.stop(),
    "close": lambda subscription: subscription.close(),
    "close twice": lambda subscription: (subscription.close(), subscription.close()),
    "stop in a thread": lambda subscription: in_a_thread(subscription.stop),
    "close in a thread": lambda subscription: in_a_thread(subscription.close),
}


def in_a_thread(what: Callable[[], object]) -> None:
    thread = threading.Thread(target=what)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


@contextmanager
def sent(cluster: ToyCluster) -> Iterator[None]:
    """Send all messages, and heartbeats from then on: what was sent before the groups were joined is replayed."""
    for at in range(1, COUNT, 25):
        for adapter in cluster.adapters:
            adapter.send(packet(at, at, 25))
    with beating(cluster):
        yield


@contextmanager
def beating(cluster: ToyCluster) -> Iterator[None]:
    beats = Beating(cluster, COUNT + 1)
    try:
        yield
    finally:
        beats.stop()


class Handler:
    """Takes messages, and ends the subscription in the call of one of them."""

    def __init__(self, end: End) -> None:
        self.found, self.subscription, self._end = list[int](), Subscription.__new__(Subscription), end

    def __call__(self, message: Any) -> None:
        self.found.append(message.origin.message_seq)
        if self.found[-1] == LAST:
            self._end(self.subscription)


def run(subscription: Subscription[Any], handle: Handler) -> None:
    subscription.run(handle)
    subscription.run(handle)


def iterate(subscription: Subscription[Any], handle: Handler) -> None:
    for message in subscription:
        handle(message)
    for message in subscription:
        handle(message)


def iterate_batches(subscription: Subscription[Any], handle: Handler) -> None:
    for batch in subscription.batches():
        for message in batch.messages():
            handle(message)
            if handle.found[-1] == LAST:
                break
    assert list(subscription.batches()) == list(subscription.items()) == []


def iterate_async(subscription: Subscription[Any], handle: Handler) -> None:
    async def read() -> None:
        async for message in subscription:
            handle(message)
        async for message in subscription:
            handle(message)

    asyncio.run(asyncio.wait_for(read(), 30))


def poll(subscription: Subscription[Any], handle: Handler) -> None:
    while not handle.found:
        for item in subscription.poll():
            for message in item.messages() if hasattr(item, "messages") else ():
                handle(message)
                if handle.found[-1] == LAST:
                    break
            if handle.found[-1:] == [LAST]:
                break
    assert subscription.poll() == subscription.poll(1) == []
    assert len(subscription.read(10)) == 0


READINGS = {"run": run, "for": iterate, "batches": iterate_batches, "async for": iterate_async, "poll": poll}


@pytest.mark.parametrize("on_lag", ["replay", "drop"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)
def test_nothing_is_given_after_the_end_was_requested(
    cluster: ToyCluster, read: Callable[[Subscription[Any], Handler], None], end: End, on_lag: Any
) -> None:
    handle = Handler(end)
    with cluster.connect() as client:
        handle.subscription = client.subscribe([TOPIC], feed="equities", start="first", on_lag=on_lag)
        with sent(cluster):
            read(handle.subscription, handle)
        assert handle.found == list(range(1, LAST + 1))
        assert handle.subscription.is_closed


@pytest.mark.parametrize("read", [run, iterate, iterate_async], ids=["run", "for", "async for"])
def test_a_cursor_continues_after_the_message_in_whose_call_the_end_was_requested(
    cluster: ToyCluster, read: Callable[[Subscription[Any], Handler], None], tmp_path: Path
) -> None:
    path = tmp_path / "cursor.json"
    handle = Handler(ENDS["stop"])
    with cluster.connect() as client, client.subscribe([TOPIC], feed="equities", start="first", cursor=path) as first:
        handle.subscription = first
        with sent(cluster):
            read(first, handle)
    with (
        cluster.connect() as client,
        client.subscribe([TOPIC], feed="equities", cursor=path) as second,
        beating(cluster),  # joining a group takes effect in the background
    ):
        assert next(iter(second)).origin.message_seq == LAST + 1


def test_an_event_handler_may_close_the_subscription_and_the_client(cluster: ToyCluster) -> None:
    client = cluster.connect()
    events: list[object] = []

    def on_event(event: object) -> None:
        events.append(event)
        client.close()

    with client:
        subscription = client.subscribe([TOPIC], feed="equities", start="first", on_event=on_event)
        with sent(cluster):
            assert list(subscription) == []
        assert len(events) == 1
