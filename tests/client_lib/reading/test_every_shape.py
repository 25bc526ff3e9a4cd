"""Every way to read a subscription delivers each message once and in order, through losses, a takeover that numbers
messages afresh, and slow reading. The checker sees what the application sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.client_lib import Client, Gap, Subscription
from tandemfeed.client_lib.recording.record import DeliveryRecord
from tandemfeed.client_lib.recording.recorder import DeliveryRecorder
from tandemfeed.deploy.drills.application import READERS, Application, read, read_in_coroutine
from tests.client_lib.reading.test_cursor import Sending
from tests.client_lib.toy_cluster import TOPIC, ToyCluster, packet

EXPECTED = [*(1_000_000 + seq for seq in range(1, 36)), *(2_000_000 + seq for seq in range(1, 6))]
Shape = Callable[[Subscription[Any]], list[int]]


class Playing(Sending):
    """Sends the messages with their faults, in a thread."""

    def __init__(self, cluster: ToyCluster) -> None:
        super().__init__(cluster)
        self._player = threading.Thread(target=self._play)

    def play(self, subscription: Subscription[Any]) -> Subscription[Any]:
        """Begin; return the subscription."""
        self._player.start()
        return subscription

    def close(self) -> None:
        self._player.join()
        super().close()

    def _play(self) -> None:
        """Epoch 2 begins at 8, so it numbers 8 to 20 afresh, with a second source stream first."""
        one, other = self._cluster.adapters
        self.send(packet(1, 1, 5))
        with self._lock:
            one.send(packet(6, 6, 2))
            other.lose(packet(6, 6, 2))  # one line loses it
        self.send(packet(8, 8, 3), is_heard=False)  # both lose it
        with self._lock:
            one.send(packet(11, 11, 10))  # only the old active sent it
        self.epoch = 2
        self.send(packet(8, 1, 5, stream=2, epoch=2), packet(13, 8, 13, epoch=2))
        self.send(packet(26, 21, 5, epoch=2), is_heard=False)
        self.send(packet(31, 26, 10, epoch=2), packet(31, 26, 10, epoch=2))


@pytest.fixture
def playing(cluster: ToyCluster) -> Iterator[Playing]:
    playing = Playing(cluster)
    yield playing
    playing.close()


def loop(subscription: Subscription[Any]) -> list[int]:
    found: list[int] = []
    while len(found) < len(EXPECTED):
        for message in subscription:
            found.append(message.number)
            if len(found) % 7 == 0 or len(found) == len(EXPECTED):
                break
    return found


def callbacks(subscription: Subscription[Any]) -> list[int]:
    found: list[int] = []

    def handle(message: Any) -> None:
        if message.number % 9 == 0 and message.number not in refused:
            refused.add(message.number)
            raise RuntimeError("not now")
        found.append(message.number)
        if len(found) == len(EXPECTED):
            subscription.stop()

    refused: set[int] = set()
    while len(found) < len(EXPECTED):
        try:
            subscription.run(handle)
        except RuntimeError:
            continue
    return found


def batches(subscription: Subscription[Any]) -> list[int]:
    found: list[int] = []
    for batch in subscription.batches():
        for _, rows in batch.arrays():
            found += rows["number"].tolist()
        if len(found) >= len(EXPECTED):
            break
    return found


def tables(subscription: Subscription[Any]) -> list[int]:
    return [
        number
        for table in subscription.read(len(EXPECTED)).to_arrow().values()
        for number in table["number"].to_pylist()
    ]


@pytest.mark.parametrize("shape", [loop, callbacks, batches, tables])
@pytest.mark.parametrize("on_lag", ["replay", "drop"])
def test_each_message_is_delivered_once_and_in_order(
    cluster: ToyCluster, playing: Playing, shape: Shape, on_lag: Any
) -> None:
    losses: list[Any] = []
    with cluster.connect() as feed:
        subscription = feed.subscribe(TOPIC, start="first", on_lag=on_lag, on_event=losses.append)
        check(shape(playing.play(subscription)), losses)


def test_a_coroutine_is_given_each_message_once_and_in_order(cluster: ToyCluster, playing: Playing) -> None:
    losses: list[Any] = []

    async def read() -> list[int]:
        found: list[int] = []
        async with cluster.connect() as feed, feed.subscribe(TOPIC, start="first", on_event=losses.append) as reading:
            playing.play(reading)
            async for message in reading:
                found.append(message.number)
                if len(found) == len(EXPECTED):
                    break
        return found

    check(asyncio.run(asyncio.wait_for(read(), 60)), losses)


def test_a_record_has_each_message_once_and_in_order(cluster: ToyCluster, playing: Playing, tmp_path: Path) -> None:
    recorder = DeliveryRecorder()
    count = 0
    with cluster.connect() as feed:
        subscription = playing.play(feed.subscribe(TOPIC, start="first"))
        while count < len(EXPECTED):
            items = subscription.poll()
            recorder.record(items)
            count += sum(getattr(item, "message_count", 0) for item in items if not isinstance(item, Gap))
    recorder.save(tmp_path / "record")
    figures = DeliveryRecord.load(tmp_path / "record").figures({1: 35, 2: 5})
    assert (figures.delivered, figures.missing, figures.duplicated, figures.out_of_order) == (40, 0, 0, 0)


@pytest.mark.parametrize("shape", [*READERS, "coroutine"])
def test_the_application_of_the_drills_counts_each_message_once_in_every_shape(
    cluster: ToyCluster, playing: Playing, shape: str
) -> None:
    application = Application(lambda: None, starts_live=False)

    def begin(feed: Client) -> Subscription[Any]:
        subscription = playing.play(feed.subscribe(TOPIC, start="first"))
        threading.Thread(target=stop_when_complete, args=(subscription,)).start()
        return subscription

    def stop_when_complete(subscription: Subscription[Any]) -> None:
        while not application.has_all({1: 35, 2: 5}, 0):
            threading.Event().wait(0.01)
        subscription.stop()

    if shape == "coroutine":
        asyncio.run(read_in_coroutine(cluster.connect(), begin, application))
    else:
        read(shape, cluster.connect(), begin, application)
    assert (application.delivered, application.missing, application.repeated) == (40, 0, 0)


def test_fifty_subscriptions_of_a_host_are_each_given_every_message_once(cluster: ToyCluster, playing: Playing) -> None:
    with cluster.connect() as feed:
        readers = [feed.subscribe(TOPIC, start="first") for _ in range(50)]
        playing.play(readers[0])
        for reader in readers:
            check(loop(reader), [])


def check(found: list[int], events: list[Any]) -> None:
    assert sorted(found) == EXPECTED
    for stream in (1, 2):
        assert all(one < other for one, other in pairwise(seq for seq in found if seq // 1_000_000 == stream))
    assert not any(isinstance(event, Gap) for event in events)
