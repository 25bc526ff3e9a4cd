"""Which adapter the client asks for missing packets, and which one it asks next if that adapter fails."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import pytest

from tandemfeed.client_lib import AdminUnavailable, Client
from tandemfeed.client_lib.items import Batch, Item
from tandemfeed.client_lib.login.grant import GrantedAdapter
from tandemfeed.client_lib.replay.pending_replay import PendingReplay
from tandemfeed.client_lib.replay.worker import LOGIN_RETRY_NS, Replayed, ReplayEnded, ReplayWorker
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import CatchingUp, CaughtUp, Gap, RequestReplay
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tandemfeed.transport.calls.server_names import adapter_server
from tests.client_lib.toy_cluster import (
    CHANNEL_ID,
    ToyAdapter,
    ToyCluster,
    collect,
    has_messages,
    heartbeat,
    message_seqs,
    packet,
    subscribe_and_hear_all,
)


def test_a_long_history_comes_in_parts_each_of_which_is_requested_once(cluster: ToyCluster) -> None:
    """And it joins the live stream without a gap. Repetitions of a request while its answer is on the way would fetch
    the same packets again, and a slow application would never catch up."""
    config = MergerConfig(request_count_max=1_000, catching_up_count=2_000, retry_every_ns=4_000_000)
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client, merger_config=config)
        for adapter in cluster.adapters:
            adapter.lose(*(packet(first, first, 20) for first in range(1, 8_001, 20)))
            adapter.send(heartbeat(8_001))
        items: list[Item] = []
        while len(message_seqs(items)) < 8_020:
            found = subscription.poll(0.1)
            items += found
            if any(isinstance(item, CatchingUp) and item.remaining_count < 5_000 for item in found):
                for adapter in cluster.adapters:
                    adapter.send(packet(8_001, 8_001, 20))  # live, meanwhile
            time.sleep(0.001)  # a slow application
    assert message_seqs(items) == list(range(1, 8_021))
    asked = [each for adapter in cluster.adapters for request in adapter.asked for each in request.input_ranges]
    numbers = [number for each in asked for number in range(each.first, each.end)]
    assert len(numbers) == len(set(numbers)) >= 8_000
    assert max(each.end - each.first for each in asked) <= 1_000
    progress = [item.remaining_count for item in items if isinstance(item, CatchingUp)]
    assert progress[0] == 8_000
    assert progress == sorted(set(progress), reverse=True)
    assert len(progress) >= 8
    assert not any(isinstance(item, Gap) for item in items)
    assert [item.next_message_seq for item in items if isinstance(item, CaughtUp)] == [8_021]


@pytest.mark.parametrize("fault", ["refuse", "silent", "waits", "impostor", "nothing"])
def test_the_next_adapter_is_asked_when_one_does_not_answer_properly(cluster: ToyCluster, fault: str) -> None:
    a, b = cluster.adapters
    a.replay_fault = fault
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        b.lose(packet(1, 1, 5))
        b.send(packet(6, 6, 5))
        a.send(heartbeat(11))
        items = collect(subscription, has_messages(10))
        assert message_seqs(items) == list(range(1, 11))
        assert not any(isinstance(item, Gap) for item in items)


def test_an_adapter_that_has_to_wait_is_waited_for_if_no_other_can_be_asked(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    a.replay_fault, b.replay_fault = "refuse", "waits"
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        b.lose(packet(1, 1, 5))
        b.send(packet(6, 6, 5))
        a.send(heartbeat(11))
        assert message_seqs(collect(subscription, has_messages(10))) == list(range(1, 11))
        assert b.replay_calls <= 2  # once while another one could be asked


def test_an_adapter_that_failed_is_skipped_for_a_while(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    a.replay_fault = "silent"
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        for at in range(20):  # each packet is lost and requested separately
            b.lose(packet(1 + 10 * at, 1 + 10 * at, 5))
            b.send(packet(6 + 10 * at, 6 + 10 * at, 5))
            a.send(heartbeat(11 + 10 * at))
            assert message_seqs(collect(subscription, has_messages(10)))[-1] == 10 + 10 * at
        assert b.replay_calls >= 20
        assert a.replay_calls <= 5


def test_the_next_adapter_supplies_messages_that_one_adapter_lacks(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    third = ToyAdapter(cluster, 3, "239.192.2.3:5013")
    cluster.adapters.append(third)
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        a.lose(packet(1, 1, 5), packet(16, 16, 5))
        b.lose(packet(6, 6, 5))
        third.lose(packet(11, 11, 5), packet(26, 26, 5))
        for adapter in (a, b, third):
            adapter.send(packet(21, 21, 5), packet(31, 31, 5))
        assert message_seqs(collect(subscription, has_messages(35))) == list(range(1, 36))
        firsts = [[each.first for each in request.input_ranges] for each in (a, b, third) for request in each.asked]
        assert [1, 26] in firsts  # every gap in one request


def test_with_confirm_2_messages_from_only_one_adapter_are_not_delivered(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client, confirm=2)
        a.send(packet(1, 1, 5), packet(6, 6, 5))
        b.send(packet(1, 1, 5))
        assert message_seqs(collect(subscription, has_messages(5))) == [1, 2, 3, 4, 5]
        assert not any(isinstance(item, Batch) for item in subscription.poll(0.2))
        b.lose(packet(6, 6, 5))  # the other copy is now in the journal
        assert message_seqs(collect(subscription, has_messages(5))) == [6, 7, 8, 9, 10]
        assert subscription.statistics().counts["merge_delivered"] == 10


def test_a_replay_in_another_adapters_name_confirms_nothing(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    a.replay_fault = "impostor"
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client, confirm=2)
        a.send(packet(1, 1, 5))
        collect(subscription, lambda _: subscription.statistics().refusals.get("forged", 0) > 0)
        assert subscription.statistics().counts.get("merge_delivered", 0) == 0
        b.send(packet(1, 1, 5))
        assert message_seqs(collect(subscription, has_messages(5))) == [1, 2, 3, 4, 5]


def test_provisional_messages_come_from_replay_by_source_range(cluster: ToyCluster) -> None:
    _, b = cluster.adapters
    with cluster.connect() as client:
        subscription = subscribe_and_hear_all(cluster, client)
        b.send(packet(1, 1, 5))
        b.lose(packet(6, 6, 5, flags=OutputFlag.PROVISIONAL))
        b.send(packet(11, 11, 5, flags=OutputFlag.PROVISIONAL))
        items = collect(subscription, has_messages(15))
        batches = [item for item in items if isinstance(item, Batch)]
        assert [span.first_source_seq for batch in batches for span in batch.sources()] == [1, 6, 11]
        assert [batch.is_provisional for batch in batches] == [False, True, True]
        assert batches[1].is_replayed


def test_received_packets_are_removed_from_the_pending_request() -> None:
    pending = PendingReplay(RequestReplay(CHANNEL_ID, ((1, 11), (20, 21)), (3, 9), source_ranges=((1, 5, 10),)))
    pending.remove_received([packet(3, 3, 4)])
    message = pending.message()
    assert [(each.first, each.end) for each in message.input_ranges] == [(1, 3), (7, 11), (20, 21)]
    assert (message.message_range.first, message.message_range.end) == (7, 9)
    assert [(each.range.first, each.range.end) for each in message.source_ranges] == [(7, 10)]
    pending.remove_received([packet(1, 1, 30)])
    assert pending.is_empty


def test_a_provisional_packet_answers_only_source_ranges() -> None:
    pending = PendingReplay(RequestReplay(CHANNEL_ID, ((1, 11),), (1, 11), source_ranges=((1, 1, 11),)))
    pending.remove_received([packet(1, 1, 30, flags=OutputFlag.PROVISIONAL)])
    message = pending.message()
    assert [(each.first, each.end) for each in message.input_ranges] == [(1, 11)]
    assert message.message_range.end == 11
    assert not message.source_ranges


class Letters:
    """Collects the letters of a worker."""

    def __init__(self, cluster: ToyCluster, client: Client, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._letters: queue.SimpleQueue[Replayed | ReplayEnded] = queue.SimpleQueue()
        self.worker = ReplayWorker(client._session, self._put, now_ns=now_ns)
        self.worker.set_adapters(
            tuple(
                GrantedAdapter(each.adapter_id, f"toy-{each.adapter_id}", each.rpc.endpoint, each.server_name, {})
                for each in cluster.adapters
            )
        )

    def _put(self, letter: Replayed | ReplayEnded) -> bool:
        self._letters.put(letter)
        return True

    def take(self) -> Replayed:
        """The next answer's packets."""
        while isinstance(letter := self._letters.get(timeout=30), ReplayEnded):
            self.worker.ended(letter.request.channel_id)
        return letter

    def ask(self, request: RequestReplay) -> list[int]:
        """The adapters that answered."""
        self.worker.request(request)
        found: list[int] = []
        while isinstance(letter := self._letters.get(timeout=30), Replayed):
            found.append(letter.adapter_id)
        self.worker.ended(letter.request.channel_id)
        return found


def test_each_channel_has_one_request_and_a_newer_one_replaces_it(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    for adapter in (a, b):
        adapter.lose(*(packet(first, first, 5) for first in (1, 6, 11, 16)))
    with cluster.connect() as client:
        letters = Letters(cluster, client)
        with letters.worker._condition:  # queue all of them before the thread can run
            letters.worker.request(RequestReplay(1, ((1, 6),)))
            letters.worker.request(RequestReplay(2, ((1, 6), (16, 21))))
            letters.worker.request(RequestReplay(1, ((6, 11), (16, 21))))
        first, second = letters.take(), letters.take()
        assert first.packet_count == second.packet_count == 2
        asked = [
            (request.channel_id, [(each.first, each.end) for each in request.input_ranges])
            for adapter in (a, b)
            for request in adapter.asked
        ]
        assert sorted(asked) == [(1, [(6, 11), (16, 21)]), (2, [(1, 6), (16, 21)])]
        letters.worker.close()


def test_silent_adapters_are_asked_last(cluster: ToyCluster) -> None:
    for adapter in cluster.adapters:
        adapter.lose(packet(1, 1, 5))
    with cluster.connect() as client:
        letters = Letters(cluster, client)
        for _ in range(4):
            assert letters.ask(RequestReplay(1, ((1, 6),), silent_adapter_ids=(2,))) == [1]
        letters.worker.close()


def test_a_server_with_the_certificate_of_another_adapter_is_not_asked(cluster: ToyCluster) -> None:
    impostor, well = cluster.adapters
    for adapter in cluster.adapters:
        adapter.lose(packet(1, 1, 5))
    impostor.server_name = adapter_server("equities", "c")  # as the grant says
    with cluster.connect() as client:
        letters = Letters(cluster, client)
        for _ in range(2):
            assert letters.ask(RequestReplay(1, ((1, 6),))) == [well.adapter_id]
        letters.worker.close()
    assert not impostor.replay_calls


def test_as_many_adapters_are_asked_as_copies_are_missing_and_those_whose_copy_arrived_come_last(
    cluster: ToyCluster,
) -> None:
    third = ToyAdapter(cluster, 3, "239.192.2.3:5013")
    cluster.adapters.append(third)
    for adapter in cluster.adapters:
        adapter.lose(packet(1, 1, 5))
    with cluster.connect() as client:
        letters = Letters(cluster, client)
        for _ in range(6):
            assert set(letters.ask(RequestReplay(1, ((1, 6),), copy_count=2, held_adapter_ids=(2,)))) == {1, 3}
        letters.worker.close()


def test_an_adapter_that_fails_after_an_idle_time_is_avoided(cluster: ToyCluster) -> None:
    """The time in which nothing was requested is no pause of this process, for which the adapter would be excused."""
    a, b = cluster.adapters
    b.lose(packet(1, 1, 5))
    with cluster.connect() as client:
        letters = Letters(cluster, client)
        a.replay_fault = "silent"
        for _ in range(4):
            time.sleep(0.1)
            assert letters.ask(RequestReplay(1, ((1, 6),))) == [2]
        assert a.replay_calls == 1
        letters.worker.close()


def test_an_adapter_that_keeps_failing_is_avoided_for_longer_each_time_until_it_answers(cluster: ToyCluster) -> None:
    a, b = cluster.adapters
    now_ns = [5_000_000_000]
    for adapter in (a, b):
        adapter.lose(packet(1, 1, 5))
    with cluster.connect() as client:
        letters = Letters(cluster, client, lambda: now_ns[0])

        def ask() -> int:
            """Each adapter's turn to be the first comes once; returns how many calls there were at the first one."""
            before = a.replay_calls
            for _ in cluster.adapters:
                letters.ask(RequestReplay(1, ((1, 6),)))
            return a.replay_calls - before

        for _ in range(2):
            a.replay_fault = "refuse"
            assert ask() == 1
            for backoff_s in (1, 2, 4, 8, 16, 30, 30):
                now_ns[0] += backoff_s * 1_000_000_000 - 1
                assert ask() == 0
                now_ns[0] += 1
                assert ask() == 1
            a.replay_fault = ""
            assert ask() == 0
            now_ns[0] += 30_000_000_000
            assert ask() == ask() == 1
        letters.worker.close()


def test_without_an_admin_server_replays_use_the_old_token_and_do_not_wait_for_a_login_each_time(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.adapters[0].lose(packet(1, 1, 5))
    now_ns, logins = [5_000_000_000], list[int]()
    with cluster.connect() as client:
        client.open()

        def refuse() -> None:
            logins.append(now_ns[0])
            raise AdminUnavailable("no server")

        monkeypatch.setattr(client._session, "ensure_token", refuse)
        letters = Letters(cluster, client, lambda: now_ns[0])
        for at_ns in (5_000_000_000, 5_000_000_000 + LOGIN_RETRY_NS):
            now_ns[0] = at_ns
            assert [letters.ask(RequestReplay(1, ((1, 6),))) for _ in range(4)].count([1]) >= 2
            now_ns[0] = at_ns + LOGIN_RETRY_NS - 1
            letters.ask(RequestReplay(1, ((1, 6),)))
        letters.worker.close()
    assert logins == [5_000_000_000, 5_000_000_000 + LOGIN_RETRY_NS]
