"""How an application reads a subscription: messages, batches and items, with loops, coroutines and handlers."""

from __future__ import annotations

import asyncio
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tandemfeed as tf
from tandemfeed.client_lib import AuthorizationRefused, Client, Gap, Stale, Subscription
from tandemfeed.client_lib.items import Batch
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.tables import Batches
from tests.client_lib.messages.test_message_attributes import AT_NS, XML, batch_of, trade
from tests.client_lib.toy_cluster import (
    IDENTITY,
    SECRET,
    TOPIC,
    MergerConfig,
    ToyCluster,
    admin_pb2,
    heartbeat,
    packet,
    subscribe_and_hear_all,
)

IMPATIENT = MergerConfig(declare_after_ns=400_000_000)


def hear_all(cluster: ToyCluster, client: Client, **options: Any) -> Subscription[Any]:
    """A subscription that hears every adapter; its first items are `Live`."""
    return subscribe_and_hear_all(cluster, client, **options)


def test_a_loop_yields_each_message_once_however_often_it_is_left(cluster: ToyCluster) -> None:
    with cluster.connect() as client, hear_all(cluster, client) as subscription:
        cluster.adapters[0].send(packet(1, 1, 5), packet(6, 6, 5))
        numbers: list[int] = []
        for _ in range(5):
            for message in subscription:
                numbers.append(message.origin.message_seq)
                if len(numbers) % 2 == 0:
                    break
        assert numbers == list(range(1, 11))


def test_coroutines_read_messages_and_batches_of_several_subscriptions(cluster: ToyCluster) -> None:
    async def read() -> None:
        async with cluster.connect() as feed:
            first, second = feed.subscribe(TOPIC, start="first"), feed.subscribe(TOPIC, start="first")
            async with first, second:
                messages, batches = aiter(first), aiter(second.batches())
                reading = asyncio.gather(anext(messages), anext(batches))
                while not reading.done():
                    for adapter in cluster.adapters:
                        adapter.send(heartbeat(6), packet(1, 1, 5))
                    await asyncio.sleep(0.01)
                message, batch = await reading
                assert (message.number, batch.message_count) == (1_000_001, 5)
                async for message in first:
                    if message.origin.message_seq == 5:
                        break
            assert first.is_closed

    asyncio.run(asyncio.wait_for(read(), 30))


def test_what_a_subscription_of_a_coroutine_is_refused_is_raised_where_it_is_read(cluster: ToyCluster) -> None:
    async def read() -> None:
        async with cluster.connect() as feed:
            async for _ in feed.subscribe("futures.ticks"):
                raise AssertionError

    with pytest.raises(AuthorizationRefused, match=r"futures\.ticks"):
        asyncio.run(asyncio.wait_for(read(), 30))


def test_events_reach_a_handler_in_their_place_in_the_stream(cluster: ToyCluster) -> None:
    seen: list[Any] = []
    a, _ = cluster.adapters
    with (
        cluster.connect() as client,
        hear_all(cluster, client, merger_config=IMPATIENT, on_event=seen.append) as subscription,
    ):
        a.send(packet(1, 1, 2), packet(5, 5, 2))
        for message in subscription:
            seen.append(message.origin.message_seq)
            if seen[-1] == 6:
                break
    found = [each if isinstance(each, int) else type(each) for each in seen if not isinstance(each, Stale)]
    assert found == [1, 2, Gap, 5, 6]


def test_an_event_whose_handler_raises_is_passed_again_to_the_next_loop(cluster: ToyCluster) -> None:
    seen: list[Any] = []

    def take(event: Any) -> None:
        if isinstance(event, Gap):
            seen.append(event)
            if len(seen) == 1:
                raise RuntimeError("not now")

    with cluster.connect() as client:
        subscription = hear_all(cluster, client, merger_config=IMPATIENT, on_event=take)
        cluster.adapters[0].send(packet(1, 1, 2), packet(5, 5, 2))
        numbers: list[int] = []
        with pytest.raises(RuntimeError, match="not now"):
            numbers.extend(message.origin.message_seq for message in subscription)
        for message in subscription:
            numbers.append(message.origin.message_seq)
            if numbers[-1] == 6:
                break
    assert numbers[-2:] == [5, 6]
    assert seen == [seen[0]] * 2


def test_a_loss_without_a_handler_is_a_warning(cluster: ToyCluster, caplog: pytest.LogCaptureFixture) -> None:
    with cluster.connect() as client, hear_all(cluster, client, merger_config=IMPATIENT) as subscription:
        cluster.adapters[0].send(packet(1, 1, 2), packet(5, 5, 2))
        with caplog.at_level(logging.WARNING):
            while next(iter(subscription.batches())).end_message_seq < 7:
                pass
    (record,) = [each for each in caplog.records if each.name.endswith("event_log")]
    assert "first_message_seq=3" in record.getMessage()


def test_items_are_batches_and_events_in_stream_order(cluster: ToyCluster) -> None:
    with cluster.connect() as client, hear_all(cluster, client, merger_config=IMPATIENT) as subscription:
        cluster.adapters[0].send(packet(1, 1, 2), packet(5, 5, 2))
        found: list[Any] = []
        for item in subscription.items():
            found += [] if isinstance(item, Stale) else [type(item)]
            if len(found) == 3:
                break
        assert found == [Batch, Gap, Batch]


def test_a_handler_that_raises_neither_loses_nor_skips_a_message(cluster: ToyCluster) -> None:
    numbers: list[int] = []
    tries = 0

    def handle(message: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 3:
            raise RuntimeError("the disk is full")
        numbers.append(message.origin.message_seq)
        if len(numbers) == 5:
            subscription.stop()

    with cluster.connect() as client:
        subscription = hear_all(cluster, client)
        cluster.adapters[0].send(packet(1, 1, 5))
        with pytest.raises(RuntimeError, match="disk"):
            subscription.run(handle)
        assert numbers == [1, 2]
        subscription.run(handle)
        assert numbers == [1, 2, 3, 4, 5]


def test_errors_of_a_handler_go_to_the_error_handler_with_their_message(cluster: ToyCluster) -> None:
    errors: list[tuple[str, int]] = []

    def handle(message: Any) -> None:
        if message.origin.message_seq == 5:
            subscription.stop()
        raise ValueError("no")

    with cluster.connect() as client:
        subscription = hear_all(cluster, client)
        cluster.adapters[0].send(packet(1, 1, 5))
        subscription.run(handle, lambda error, message: errors.append((str(error), message.origin.message_seq)))
    assert errors == [("no", number) for number in range(1, 6)]


def test_only_messages_of_a_class_are_yielded_if_one_is_given(cluster: ToyCluster) -> None:
    note = tf.load_messages(cluster.model[1]).Note
    with cluster.connect() as client, hear_all(cluster, client, kind=note) as subscription:
        cluster.adapters[0].send(packet(1, 1, 5))
        assert type(next(iter(subscription))) is note


def test_the_end_of_the_grant_ends_a_loop_with_an_error(cluster: ToyCluster) -> None:
    with cluster.connect() as client:
        subscription = hear_all(cluster, client)
        revoked = admin_pb2.TopicsRevoked(topics=[TOPIC], reason="not paid", is_last=True)
        for call in cluster.admin._calls:
            for subscription_id in call.subscription_ids:
                call.updates.put(admin_pb2.SubscriptionUpdate(subscription_id=subscription_id, revoked=revoked))
        with pytest.raises(AuthorizationRefused, match="not paid"):
            next(iter(subscription))


def test_connect_takes_what_is_not_given_from_a_profile(
    cluster: ToyCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").write_bytes(cluster.ca_pem)
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "profiles.toml").write_text(
        f'[profile.reader]\nca = "ca.pem"\nidentity = "{IDENTITY}"\nsecret_file = "secret"\n'
    )
    monkeypatch.setenv("TANDEMFEED_PROFILES", str(tmp_path / "profiles.toml"))
    with tf.connect(cluster.admin_rpc.endpoint, profile="reader") as feed, feed.subscribe(TOPIC) as subscription:
        assert subscription.grant.topics == {TOPIC}
    with pytest.raises(ValueError, match=r"admin is missing: give it, set TANDEMFEED_ADMIN, .*profiles\.toml"):
        tf.connect(profile="reader")
    assert SECRET not in repr(feed) + repr(feed._session)


def test_batches_are_tables_of_numpy_arrow_and_pandas() -> None:
    rows = [
        trade(),
        trade(symbol="IBM", price=Decimal("-1.5"), size=None, side="Sell short", day=np.datetime64(1, "D")),
    ]
    book = tf.load_messages(XML).Book(symbol="XEL", levels=[], note="")
    whole = Batches([batch_of([bytes(rows[0])]), batch_of([bytes(rows[1]), bytes(book)])], Decoder(XML).classes)
    assert whole.to_numpy()["Trade"]["price"].tolist() == [38_490_000_000, -1_500_000_000]
    (table,) = whole.to_arrow().values()
    first, second = table.to_pylist()
    assert (first["symbol"], first["price"], first["size"], first["side"]) == (
        "XEL",
        Decimal("38.490000000"),
        100,
        "Buy",
    )
    assert (second["symbol"], second["price"], second["size"], second["side"]) == (
        "IBM",
        Decimal("-1.5"),
        None,
        "Sell short",
    )
    assert (first["day"], str(second["day"])) == (None, "1970-01-02")
    frame = whole.to_pandas()
    assert frame["eventAt"][0].value == AT_NS
    assert list(frame["price"]) == [Decimal("38.490000000"), Decimal("-1.500000000")]
    with pytest.raises(ValueError, match="message is 'Quote'; the batches have Trade"):
        whole.to_pandas("Quote")


def test_a_number_of_messages_is_read_as_a_table(cluster: ToyCluster) -> None:
    with cluster.connect() as client, hear_all(cluster, client) as subscription:
        cluster.adapters[0].send(packet(1, 1, 5), packet(6, 6, 5))
        found = subscription.read(10, timeout_s=30)
        assert found.message_count == 10
        assert found.to_pandas()["number"].tolist() == list(range(1_000_001, 1_000_011))
        assert subscription.read(1, timeout_s=0.01).message_count == 0


def test_a_coroutine_can_modify_its_subscription_and_cancel_it(cluster: ToyCluster) -> None:
    async def modify() -> None:
        async with cluster.connect() as feed:
            other = feed.subscribe(TOPIC)
            async with other, feed.subscribe(TOPIC) as subscription:
                await asyncio.to_thread(subscription.modify, ["equities.*"], ["equities.books"])
                while 100 not in subscription.grant.keys:
                    subscription.poll(0.01)
                subscription.cancel()
                while not any(each.HasField("cancel") for each in cluster.admin.requests):
                    await asyncio.sleep(0.01)
                assert not other.is_closed

    asyncio.run(asyncio.wait_for(modify(), 30))
    (request,) = [each.modify for each in cluster.admin.requests if each.HasField("modify")]
    assert [(each.pattern, each.is_removed) for each in request.topics] == [
        ("equities.books", True),
        ("equities.*", False),
    ]
