"""A subscription with real multicast, seals, TLS and replay."""

from __future__ import annotations

import io
import os
import select
import threading
import time
from dataclasses import replace
from typing import Literal, get_args

import pytest
import zmq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console

from tandemfeed.client_lib import (
    AdminUnavailable,
    AuthenticationRefused,
    AuthorizationRefused,
    Batch,
    Distrusted,
    Gap,
    ModelChanged,
    Revoked,
    Subscription,
)
from tandemfeed.client_lib.commands.live_view import LiveFigures, render
from tandemfeed.client_lib.items import Filled, Item
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import Ended, Stale, Takeover
from tandemfeed.feedcore.wire.output_packet import OutputFlag, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.multicast.sockets import Datagrams
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver
from tandemfeed.transport.sealing.opening import StreamOpener
from tandemfeed.transport.sealing.sealing import Sealer
from tandemfeed.transport.sealing.start_keys import SealingKey
from tests.client_lib.toy_cluster import (
    CHANNEL_ID,
    IDENTITY,
    INTERFACE,
    MESSAGE_MODEL,
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

MS = 1_000_000


@pytest.fixture(autouse=True, params=get_args(Datagrams))
def _(request: pytest.FixtureRequest, cluster: ToyCluster) -> None:
    """All tests of this module are run with both kinds of sockets."""
    cluster.datagrams = request.param


def test_two_adapters_streams_are_merged_without_duplicates(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        for at in range(200):
            a.send(packet(1 + 5 * at, 1 + 5 * at, 5))
            b.send(packet(1 + 5 * at, 1 + 5 * at, 5))

        def is_all_here(items: list[Item]) -> bool:
            a.send(heartbeat(1001))  # reveals the loss if the end of the burst overflowed the kernel's buffer
            return has_messages(1000)(items)

        items = collect(subscription, is_all_here)
        assert message_seqs(items) == list(range(1, 1001))


def test_loss_on_one_adapters_stream_is_invisible(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        for at in range(100):
            each = packet(1 + 5 * at, 1 + 5 * at, 5)
            if at % 7:
                a.send(each)
            else:
                a.lose(each)
            b.send(each)
        assert message_seqs(collect(subscription, has_messages(500))) == list(range(1, 501))


def test_packets_lost_on_both_streams_come_from_a_replay_service(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        for at in range(20):
            each = packet(1 + 5 * at, 1 + 5 * at, 5)
            for adapter in (a, b):
                if 8 <= at < 12:
                    adapter.lose(each)
                else:
                    adapter.send(each)
        items = collect(subscription, has_messages(100))
        assert message_seqs(items) == list(range(1, 101))
        assert any(item.is_replayed for item in items if isinstance(item, Batch))
        assert a.replay_calls + b.replay_calls >= 1


def test_replay_uses_the_next_adapter_when_one_is_gone(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    a.rpc.stop(0)
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        b.lose(packet(1, 1, 5))
        b.send(packet(6, 6, 5))
        a.send(heartbeat(11))
        assert message_seqs(collect(subscription, has_messages(10))) == list(range(1, 11))


def test_messages_that_no_adapter_has_are_a_gap_that_is_filled_if_they_arrive_later(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    patience = MergerConfig(retry_every_max_ns=50 * MS, declare_after_ns=200 * MS)
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client, merger_config=patience)
        for adapter in (a, b):
            adapter.send(packet(1, 1, 5), packet(11, 11, 5))
        items = collect(subscription, has_messages(10))
        assert Gap(CHANNEL_ID, 6, 11, 6, 11) in items
        assert message_seqs(items) == [*range(1, 6), *range(11, 16)]
        a.send(packet(6, 6, 5))
        late = collect(subscription, lambda items: any(isinstance(item, Filled) for item in items))
        filled = next(item for item in late if isinstance(item, Filled))
        assert (filled.batch.first_message_seq, filled.batch.message_count) == (6, 5)


def test_starting_at_a_message_seq_replays_past_messages(cluster: ToyCluster) -> None:
    a, _ = cluster.adapters
    a.lose(*(packet(1 + 5 * at, 1 + 5 * at, 5) for at in range(40)))
    with cluster.connect() as client:
        subscription = client.subscribe([TOPIC], feed="equities", start={TOPIC: 101})
        items = []
        while len(message_seqs(items)) < 100:
            a.send(heartbeat(201))
            items += subscription.poll(0.05)
        assert message_seqs(items) == list(range(101, 201))


def test_messages_numbered_in_two_epochs_are_delivered_once(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        a.send(packet(1, 1, 5), packet(6, 6, 5))
        b.send(packet(1, 1, 5))
        collect(subscription, has_messages(10))
        b.send(
            heartbeat(6, lineage=((1, 1), (2, 6)), flags=OutputFlag.FROM_ACTIVE),
            packet(6, 1, 2, stream=2, epoch=2),  # renumbered: epoch 1 had messages of stream 1 here
            packet(8, 6, 8, epoch=2),
        )
        items = collect(subscription, has_messages(5))
        assert any(isinstance(item, Takeover) and item.epoch == 2 and item.adapter_id == 2 for item in items)
        spans = [span[:3] for item in items if isinstance(item, Batch) for span in item.sources()]
        assert spans == [(2, 1, 3), (1, 11, 14)]


def test_the_end_of_the_feed_is_delivered_as_an_event(cluster: ToyCluster) -> None:
    a, _ = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        a.send(packet(1, 1, 5), heartbeat(6, flags=OutputFlag.END_OF_STREAM | OutputFlag.FROM_ACTIVE))
        items = collect(subscription, lambda items: any(isinstance(item, Ended) for item in items))
        assert message_seqs(items) == [1, 2, 3, 4, 5]
        assert subscription.has_ended


def test_a_wrong_secret_is_refused(cluster: ToyCluster) -> None:
    with pytest.raises(AuthenticationRefused):
        cluster.connect(secret="wrong").open()


def test_the_refusal_of_a_topic_names_the_topic_and_the_identity(cluster: ToyCluster) -> None:
    with cluster.connect() as client, pytest.raises(AuthorizationRefused, match=r"futures\.ticks.*" + IDENTITY):
        client.subscribe(["futures.ticks"], feed="equities")


@pytest.mark.parametrize("start", ["newest", 0, None, 1.5, {"equities.ticks": 0}])
def test_an_invalid_start_is_refused_with_what_it_must_be(cluster: ToyCluster, start: object) -> None:
    with (
        cluster.connect() as client,
        pytest.raises(ValueError, match=r"must be .live., .first.|at least 1|is a time in ns"),
    ):
        client.subscribe(feed="equities", start=start)  # type: ignore[arg-type]


def test_one_topic_may_be_given_as_a_string(cluster: ToyCluster) -> None:
    with cluster.connect() as client, pytest.raises(AuthorizationRefused, match=r"futures\.ticks"):
        client.subscribe("futures.ticks", feed="equities")


def test_the_error_for_an_unreachable_administration_server_names_its_address(cluster: ToyCluster) -> None:
    from tandemfeed.client_lib import connect

    with pytest.raises(AdminUnavailable, match=r"127\.0\.0\.1:1:"):
        connect(admin="127.0.0.1:1", ca=cluster.ca_pem, identity=IDENTITY, secret="x", timeout_s=0.5).open()


def test_a_receiver_without_the_key_cannot_read_the_plaintext(cluster: ToyCluster) -> None:
    a = cluster.adapters[0]
    eavesdropper = ZeromqReceiver(cluster.context, INTERFACE, a.group)
    poller = zmq.Poller()
    poller.register(eavesdropper.socket, zmq.POLLIN)
    opener = StreamOpener(1)
    opener.announce([a.start])
    opener.add_key(SealingKey(cluster.key.key_id + 1, CHANNEL_ID, os.urandom(32)))
    while not poller.poll(50):
        a.send_raw(a.sealer.seal(packet(1, 1, 5), time.time_ns()))
    datagram = eavesdropper.receive()
    assert datagram is not None
    assert b"note-" in packet(1, 1, 5).payload
    assert b"note-" not in datagram
    with pytest.raises(PacketRefused) as refused:
        opener.open(datagram)
    assert refused.value.reason is Refusal.UNKNOWN_KEY
    eavesdropper.close()


def test_bad_datagrams_are_counted_by_reason_and_the_stream_continues(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        good = a.sealer.seal(packet(1, 1, 5), time.time_ns())
        stranger, keyless, unannounced = (
            Sealer(1, start, Ed25519PrivateKey.generate())
            for start in (a.start, a.start, replace(a.start, incarnation=99))
        )
        stranger.use_key(channel_key(cluster.key.key_id))
        keyless.use_key(channel_key(cluster.key.key_id + 1))
        unannounced.use_key(cluster.key)
        a.send_raw(b"\x00" + os.urandom(199))
        a.send_raw(good[:60])
        a.send_raw(good[:200])
        a.send_raw(stranger.seal(packet(1, 1, 5), 0))
        a.send_raw(keyless.seal(packet(1, 1, 5), 0))
        a.send_raw(unannounced.seal(packet(1, 1, 5), 0))
        a.send_raw(a.sealer.seal(packet(1, 1, 5)._replace(session=20261120), 0))
        a.send_raw(good)
        a.send_raw(good)
        a.send_signature()
        b.send(packet(6, 6, 5))
        items = collect(subscription, has_messages(10))
        assert message_seqs(items) == list(range(1, 11))
        refusals = subscription.statistics().refusals
        assert refusals == {
            "foreign": 1, "truncated": 1, "forged": 2, "unknown_key": 1, "unannounced": 1, "wrong_session": 1,
            "replayed": 1,
        }  # fmt: skip


def shown(subscription: Subscription, items: list[Item]) -> str:
    """The live view of `tandemfeed subscribe`."""
    figures, out = LiveFigures(subscription), io.StringIO()
    figures.take(items)
    Console(file=out, width=200).print(render(figures.interval(), {}, figures.last_events))
    return out.getvalue()


@pytest.mark.parametrize("verify", ["alarm", "signed"])
def test_another_readers_forgeries_are_detected_and_the_stream_continues(
    cluster: ToyCluster, verify: Literal["alarm", "signed"]
) -> None:
    a, _ = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client, verify=verify)
        a.send(packet(1, 1, 5))
        collect(subscription, has_messages(5))
        forger = Sealer(1, a.start, Ed25519PrivateKey.generate(), first_counter=a.sealer.next_counters()[CHANNEL_ID])
        forger.use_key(replace(cluster.key, decision_key=bytes(32)))
        honest = packet(6, 6, 5)
        a.send_raw(forger.seal(honest._replace(payload=honest.payload.replace(b"note", b"evil")), 0))
        a.send_raw(forger.seal(heartbeat(2**40, lineage=((1, 1), (2**32 - 2, 2**40))), 0))
        a.send_raw(forger.seal(packet(2**40, 6, 5), 0))
        a.send_raw(forger.sign(CHANNEL_ID, 0))
        a.send(honest, packet(11, 11, 5))
        items = collect(subscription, has_messages(10))
        assert message_seqs(items) == list(range(6, 16))
        alarms = [(item.adapter_id, item.incarnation) for item in items if isinstance(item, Distrusted)]
        statistics = subscription.statistics()
        assert statistics.refusals["bad_signature"] == 1
        evil = [item for item in items if isinstance(item, Batch) and b"evil" in bytes(item.payload)]
        if verify == "alarm":
            assert len(evil) == 1, "delivered immediately"
            assert alarms == [(1, a.start.incarnation)] == list(statistics.channels[CHANNEL_ID].distrusted)
            assert f"in the name of adapter 1 (incarnation {a.start.incarnation})" in shown(subscription, items)
        else:
            assert (evil, alarms) == ([], [])
            assert "in the name of adapter" not in shown(subscription, items)
        a.send(packet(16, 16, 5))
        assert message_seqs(collect(subscription, has_messages(5))) == list(range(16, 21))


def test_old_packets_sent_again_to_a_new_subscription_are_refused(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    old = [a.sealer.seal(packet(1 + 5 * at, 1 + 5 * at, 5), time.time_ns()) for at in range(3)]
    old.append(a.sealer.sign(CHANNEL_ID, time.time_ns()))
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client, start="live")
        for datagram in old:
            a.send_raw(datagram)
        b.send(packet(101, 101, 5))
        a.send(heartbeat(106))
        items = collect(subscription, has_messages(5))
        assert message_seqs(items) == list(range(101, 106))
        drain(cluster, subscription)
        assert subscription.statistics().refusals["replayed"] == 3  # the old signature contains nothing new


def test_the_stream_continues_without_the_administration_server_and_gets_updates_when_it_returns(
    cluster: ToyCluster,
) -> None:
    a, _ = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        cluster.stop_admin()
        a.send(packet(1, 1, 5))
        assert message_seqs(collect(subscription, has_messages(5))) == [1, 2, 3, 4, 5]
        third = ToyAdapter(cluster, 3, "239.192.2.3:5013")
        cluster.adapters.append(third)
        cluster.restart_admin()
        collect(subscription, lambda _: third.group in subscription.statistics().groups)
        items: list[object] = []
        while not any(isinstance(item, Batch) for item in items):
            third.send(packet(6, 6, 5))
            items += subscription.poll(0.05)


def test_updates_add_adapters_and_keys(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        new_key = channel_key(78)
        cluster.more_keys.append(new_key)
        cluster.admin.push()
        collect(subscription, lambda _: 78 in subscription.grant.keys)
        b.sealer.use_key(new_key)
        a.send(packet(1, 1, 5))
        b.send(packet(6, 6, 5))
        assert message_seqs(collect(subscription, has_messages(10))) == list(range(1, 11))


def test_a_changed_message_model_decodes_the_batches_after_it(cluster: ToyCluster) -> None:
    a, _ = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        cluster.model = "2", MESSAGE_MODEL.replace(b'name="Note"', b'name="Remark"')
        cluster.admin.push()
        (changed,) = collect(subscription, lambda items: any(isinstance(item, ModelChanged) for item in items))
        assert changed == ModelChanged("toy", "2")
        a.send(packet(1, 1, 1))
        batch = next(item for item in collect(subscription, has_messages(1)) if isinstance(item, Batch))
        assert [type(message).__name__ for message in batch.messages()] == ["Remark"]


def test_an_ended_subscription_cannot_be_modified(cluster: ToyCluster) -> None:
    with cluster.connect() as client:
        subscription = client.subscribe(feed="equities")
        subscription.cancel()
        with pytest.raises(ValueError, match="the subscription has ended"):
            subscription.modify(add=["equities.books"])
        with pytest.raises(TypeError, match="expected a sequence of topics"):
            subscription.modify(add="equities.books")


def test_a_revocation_is_the_last_item(cluster: ToyCluster) -> None:
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        cluster.is_revoked = True
        cluster.admin.end_calls()
        items = list(subscription.items())
        assert isinstance(items[-1], Revoked)
        assert "no longer granted" in items[-1].reason
        assert subscription.poll(0) == []


def drain(cluster: ToyCluster, subscription: Subscription) -> None:
    """Poll until everything that the adapters have sent has arrived: each adapter's last datagram is a refused one."""
    heard = sum(subscription.counters.refusals.values())
    for adapter in cluster.adapters:
        adapter.send_raw(b"the last datagram in flight")
    while sum(subscription.counters.refusals.values()) < heard + len(cluster.adapters):
        subscription.poll(0.05)


def test_a_revocation_is_the_last_item_even_if_a_stream_falls_silent_in_the_same_turn(cluster: ToyCluster) -> None:
    with cluster.connect() as client:
        config = MergerConfig(stale_after_ns=1000 * MS)
        subscription = subscribe_and_hear_all(cluster, client, merger_config=config)
        drain(cluster, subscription)  # a heartbeat in flight would end the silence
        silent_at_ns = time.monotonic_ns() + config.stale_after_ns
        cluster.is_revoked = True
        cluster.admin.end_calls()
        assert select.select([subscription._loop._mailbox.fd], [], [], 20)[0]
        time.sleep(max(0, silent_at_ns - time.monotonic_ns()) / 1e9)
        items = list(subscription.items())
        assert any(isinstance(item, Stale) for item in items)
        assert isinstance(items[-1], Revoked)


def test_close_from_another_thread_ends_a_waiting_poll(cluster: ToyCluster) -> None:
    with cluster.connect() as client:
        subscription = client.subscribe(feed="equities")
        waiting = threading.Event()
        outcome: list[object] = []

        def wait() -> None:
            waiting.set()
            outcome.append([item for item in subscription if isinstance(item, Batch)])

        thread = threading.Thread(target=wait)
        thread.start()
        waiting.wait()
        subscription.close()
        thread.join(10)
        assert outcome == [[]]
        subscription.close()


def test_the_messages_of_a_batch_have_their_source_sequence_numbers(cluster: ToyCluster) -> None:
    a, _ = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        run = Run(1, 1, 1, 1, 1, 10, 0)
        a.send(packet(1, 1, 10)._replace(message_count=0, runs=(run,), payload=encode_runs((run,))))
        of_later_input = packet(1, 11, 3)
        run = of_later_input.runs[0]._replace(first_input_seq=11)
        a.send(of_later_input._replace(first_input_seq=11, runs=(run,)))
        batch = next(
            item for item in collect(subscription, has_messages(3)) if isinstance(item, Batch) and item.message_count
        )
        messages = list(batch.messages())
        assert [(each.origin.message_seq, each.origin.source_seq) for each in messages] == [(1, 11), (2, 12), (3, 13)]
        assert messages[0].number == 1_000_011
        assert [(model.name, rows["number"].tolist()) for model, rows in batch.arrays()] == [
            ("Note", [1_000_011, 1_000_012, 1_000_013])
        ]


def test_batches_without_messages_are_delivered_so_that_the_input_has_no_gaps(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    run = Run(1, 6, 6, 1, 6, 4, 0)
    silent = packet(6, 6, 4)._replace(message_count=0, runs=(run,), payload=encode_runs((run,)))
    after = packet(6, 10, 5)
    after = after._replace(first_input_seq=10, runs=(after.runs[0]._replace(first_input_seq=10),))
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        for adapter in (a, b):
            adapter.send(packet(1, 1, 5))
            adapter.lose(silent)  # lost on both streams, which only input_seq shows
            adapter.send(after)
        items = collect(subscription, has_messages(10))
        batches = [item for item in items if isinstance(item, Batch)]
        assert [(each.first_input_seq, each.end_input_seq) for each in batches] == [(1, 6), (6, 10), (10, 15)]
        assert [(each.first_message_seq, each.message_count) for each in batches] == [(1, 5), (6, 0), (6, 5)]
        assert batches[1].is_replayed
        assert subscription.statistics().channels[CHANNEL_ID].next_input_seq == 15
