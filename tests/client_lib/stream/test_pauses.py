"""A reader that pauses, in whatever way, blames no adapter, and loses nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

from tandemfeed.client_lib import ConfirmationPaused, Distrusted, Gap, Stale, UnicastChosen
from tandemfeed.client_lib.items import Item
from tandemfeed.feedcore.merge.config import MS, MergerConfig
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tests.client_lib.beating import Beating
from tests.client_lib.reader_process import ReaderProcess
from tests.client_lib.toy_cluster import (
    ToyCluster,
    collect,
    has_messages,
    heartbeat,
    message_seqs,
    packet,
    subscribe_and_hear_all,
)
from tests.client_lib.toy_gateway import ToyGateway

BLAMES = Stale, Gap, ConfirmationPaused, Distrusted, UnicastChosen
READER = """
from tandemfeed.client_lib.items import Batch
with feed, feed.subscribe([TOPIC], feed="equities", start="first", confirm=CONFIRM) as subscription:
    live, last = set(), 0
    for item in subscription.items():
        if isinstance(item, Live):
            live.add(item.adapter_id)
            say("live", len(live))
        elif isinstance(item, Batch):
            if item.message_count:
                last = item.first_message_seq + item.message_count - 1
                say("message", last)
        else:
            say("event", type(item).__name__, str(item))
"""


class Sending:
    """Both adapters send, and beat every 10 ms."""

    def __init__(self, cluster: ToyCluster) -> None:
        self._cluster, self._next = cluster, 1
        self._sent_at_s, self.longest_silence_s = math.inf, 0.0

    def _send(self, made: OutputPacket) -> None:
        now_s = time.monotonic()
        self.longest_silence_s = max(self.longest_silence_s, now_s - self._sent_at_s)
        for adapter in self._cluster.adapters:
            adapter.send(made)
        self._sent_at_s = now_s

    def messages(self, count: int) -> int:
        """Send messages; returns the number of the last."""
        for _ in range(count):
            self._send(packet(self._next, self._next, 1))
            self._next += 1
        return self._next - 1

    def beat_until(self, is_done: Callable[[], bool], give_up_s: float = 30.0) -> None:
        give_up_at_s = time.monotonic() + give_up_s
        while not is_done():
            assert time.monotonic() < give_up_at_s
            self._send(heartbeat(self._next))
            time.sleep(0.01)  # the interval of heartbeats

    def beat_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        self.beat_until(lambda: time.monotonic() >= end_s)


@pytest.mark.parametrize("datagrams", ["zeromq", "udp"])
@pytest.mark.parametrize("confirm", [1, 2])
def test_a_process_that_was_stopped_calls_no_stream_silent(cluster: ToyCluster, datagrams: str, confirm: int) -> None:
    cluster.datagrams = datagrams  # type: ignore[assignment]
    for adapter in cluster.adapters:
        adapter.serve_unicast()
    sending = Sending(cluster)
    with ReaderProcess(cluster, READER.replace("CONFIRM", str(confirm))) as reader:
        sending.beat_until(lambda: reader.listen() and ["live", 2] in reader.said)
        for pause_s in (0.35, 1.5, 0.35):
            last = sending.messages(5)
            sending.beat_until(lambda last=last: reader.listen() and ["message", last] in reader.said)  # type: ignore[misc]
            with reader.stopped():
                sending.messages(5)
                sending.beat_for(pause_s)
            sending.beat_for(0.3)
        last = sending.messages(1)
        sending.beat_until(lambda: reader.listen() and ["message", last] in reader.said)
        if sending.longest_silence_s < 0.1:  # else the machine stopped the adapters, too
            assert [each for each in reader.said if each[0] == "event"] == []


def test_an_application_that_pauses_while_it_waits_for_a_replay_gets_the_messages_and_no_gap(
    cluster: ToyCluster,
) -> None:
    config = MergerConfig(declare_after_ns=1_000 * MS)
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client, merger_config=config)
        for adapter in cluster.adapters:
            adapter.replay_fault = "refuse"
            adapter.lose(packet(1, 1, 5))
            adapter.send(packet(6, 6, 5))
        items: list[Item] = []
        while not all(adapter.asked for adapter in cluster.adapters):
            items += subscription.poll(0.01)
        beating = Beating(cluster, 11)
        time.sleep(1.5)  # the application's pause
        for adapter in cluster.adapters:
            adapter.replay_fault = ""
        items += collect(subscription, lambda found: has_messages(10)([*items, *found]))
        beating.stop()
        assert message_seqs(items) == list(range(1, 11))
        assert not [each for each in items if isinstance(each, BLAMES)]


def test_an_application_that_pauses_learns_of_a_silence_that_was_real(cluster: ToyCluster) -> None:
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        subscription.poll(0)
        time.sleep(0.5)
        items = collect(subscription, lambda found: len([each for each in found if isinstance(each, Stale)]) == 2)
        assert {each.adapter_id for each in items if isinstance(each, Stale)} == {1, 2}


def test_an_application_that_always_pauses_learns_that_one_stream_is_silent(cluster: ToyCluster) -> None:
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        beating, items = Beating(cluster, 1, adapter_ids=(1,)), list[Item]()
        give_up_at_s = time.monotonic() + 30
        while not items:
            assert time.monotonic() < give_up_at_s
            items = [each for each in subscription.poll(0) if isinstance(each, Stale)]
            time.sleep(0.06)  # twice what counts
        beating.stop()
        assert [each.adapter_id for each in items if isinstance(each, Stale)] == [2]


def test_a_process_that_was_stopped_while_it_asked_where_to_begin_blames_no_adapter(cluster: ToyCluster) -> None:
    code = """
from tandemfeed.client_lib.replay import locating
locating.LOCATE_TIMEOUT_S = 0.6
with feed, feed.subscribe([TOPIC], feed="equities", start=1_700_000_000_000_000_000) as subscription:
    say("begun")
"""
    for adapter in cluster.adapters:
        adapter.lose(packet(1, 1, 5))
        adapter.replay_fault = "holds"
    with ReaderProcess(cluster, code) as reader:
        for adapter in cluster.adapters:
            assert adapter.holding.wait(30)
        with reader.stopped():
            for adapter in cluster.adapters:
                adapter.replay_fault = ""
            time.sleep(1.5)  # longer than it would wait
        assert reader.hears(["begun"])
        assert reader.wait() == 0


def test_a_process_that_was_stopped_while_it_contributed_tries_again(cluster: ToyCluster) -> None:
    """The answer that it finds afterwards is a failure, and its patience is not used up."""
    code = """
with feed, feed.contribute(TOPIC, timeout_s=0.6) as contribution:
    say("sent", contribution.send(b"a message").number)
"""
    gateway = ToyGateway(cluster)
    gateway.is_holding = True
    with ReaderProcess(cluster, code) as reader:
        assert gateway.holding.wait(30)
        with reader.stopped():
            cluster.failing["Contribute"] = 1
            gateway.release.set()
            time.sleep(1.5)  # longer than it would try
        assert reader.hears(["sent", 1])
        assert reader.wait() == 0
    assert gateway.accepted == [b"a message"]
    gateway.close()
