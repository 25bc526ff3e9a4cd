"""docs/protocol.md clause 7.6: confirm=2 delivers only packets of which two adapters transmitted equal copies."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import (
    ConfirmationPaused,
    ConfirmationResumed,
    Diverged,
    Filled,
    Gap,
    GapReason,
    RequestReplay,
)
from tandemfeed.feedcore.wire.output_packet import OutputFlag, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tests.feedcore.merge.merge_feed import FIRST, MS, Listener, Source, heartbeat, line, packet

CONFIRMING = MergerConfig(confirm=2)


def test_a_message_is_delivered_once_two_adapters_have_sent_it() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), packet(1, line(1, 3)))
    assert not listener.delivered
    listener.hear(packet(1, line(1, 3), adapter=2))
    assert listener.delivered == line(1, 3)
    listener.hear(packet(1, line(1, 3), adapter=3))
    assert listener.delivered == line(1, 3)


def test_a_copy_of_what_was_delivered_confirms_nothing() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 5)), packet(1, line(1, 5), adapter=2), packet(4, line(4, 8)))
    for adapter in (3, 4, 5):
        listener.hear(packet(1, line(1, 5), adapter=adapter))
    assert listener.count(Counter.MERGE_DUPLICATES) == 3
    assert listener.delivered == line(1, 5)


def test_boundaries_may_differ_between_adapters() -> None:
    mixed: list[Source] = [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (2, 3)]
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, mixed[:4]), packet(5, mixed[4:]))
    listener.hear(packet(1, mixed[:2], adapter=2))
    assert listener.delivered == mixed[:2]
    listener.hear(packet(3, mixed[2:6], adapter=2))
    assert listener.delivered == mixed
    assert not listener.merger._confirmation._waiting


@pytest.mark.parametrize("seed", range(20))
def test_exactly_what_two_of_three_adapters_sent_is_delivered_whatever_the_boundaries_order_and_losses(
    seed: int,
) -> None:
    chance = random.Random(seed)
    streams = [chance.randint(1, 2) for _ in range(120)]
    sources = [(stream, 1 + streams[:at].count(stream)) for at, stream in enumerate(streams)]
    sent: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
    packets = []
    for adapter, seen in sent.items():
        first = 1
        while first <= 120:
            count = min(chance.randint(1, 8), 121 - first)
            if chance.random() < 0.8:
                packets.append(packet(first, sources[first - 1 : first - 1 + count], adapter=adapter))
                seen |= set(range(first, first + count))
            first += count
    packets.sort(key=lambda each: each.first_message_seq + chance.randint(0, 20))
    listener = Listener(CONFIRMING)
    listener.hear(*packets)
    confirmed = [seq for seq in range(1, 121) if sum(seq in seen for seen in sent.values()) >= 2]
    prefix = next((at for at, seq in enumerate(confirmed) if seq != at + 1), len(confirmed))
    assert listener.delivered == sources[:prefix]
    listener.hear(heartbeat(121, FIRST))
    listener.wait(60_000 * MS)
    assert listener.delivered == [sources[seq - 1] for seq in confirmed]
    named: set[int] = set()
    for gap in listener.events(Gap):
        assert isinstance(gap, Gap)
        seqs = set(range(gap.first_message_seq, gap.end_message_seq))
        heard = {seq for seq in seqs if any(seq in seen for seen in sent.values())}
        assert heard == (seqs if gap.reason is GapReason.UNCONFIRMED else set())
        named |= seqs
    assert named == set(range(1, 121)) - set(confirmed)


def test_neither_of_two_copies_that_differ_is_delivered_until_two_agree() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3), tail=b"!"), packet(1, line(1, 3), adapter=2))
    assert not listener.delivered
    assert len(listener.events(Diverged)) == 1
    listener.hear(packet(1, line(1, 3), tail=b"!"))
    assert len(listener.events(Diverged)) == 1
    listener.hear(packet(1, line(1, 3), adapter=3))
    assert listener.delivered == line(1, 3)


def test_a_replayed_packet_counts_for_the_adapter_whose_journal_it_came_from() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), packet(1, line(1, 3), flags=OutputFlag.RETRANSMISSION))
    assert not listener.delivered
    listener.hear(packet(1, line(1, 3), adapter=2, flags=OutputFlag.RETRANSMISSION))
    assert listener.delivered == line(1, 3)


def test_replay_requests_name_how_many_copies_are_missing_and_which_adapters_copies_are_held() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), packet(4, line(4, 6)), packet(4, line(4, 6), adapter=2))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((1, 4),), copy_count=1, held_adapter_ids=(1,))]
    without_copies = Listener(CONFIRMING)
    without_copies.hear(packet(4, line(4, 6)), packet(4, line(4, 6), adapter=2))
    without_copies.wait(4 * MS)
    assert without_copies.requests == [RequestReplay(1, ((1, 4),), copy_count=2)]


def test_unconfirmed_messages_are_a_gap_with_that_reason_and_are_filled_if_confirmed_later() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), heartbeat(6, FIRST, adapter=2))
    listener.wait(5_000 * MS)
    assert listener.events(Gap) == [Gap(1, 1, 4, 1, 4, GapReason.UNCONFIRMED)]
    listener.wait(5_000 * MS)  # what became known later has its own 5 s
    assert listener.events(Gap) == [
        Gap(1, 1, 4, 1, 4, GapReason.UNCONFIRMED),
        Gap(1, 4, 6, 4, 6, GapReason.NO_ADAPTER_HAD_THEM),
    ]
    assert listener.count(Counter.MERGE_UNCONFIRMED) == 3
    assert not listener.delivered
    listener.hear(packet(1, line(1, 3), adapter=2))
    assert len(listener.events(Filled)) == 1
    listener.hear(packet(4, line(4, 5), adapter=2))
    assert listener.delivered == line(1, 3)
    listener.hear(packet(4, line(4, 5), adapter=1))
    assert listener.delivered == line(1, 5)


def test_an_event_reports_that_only_one_adapter_is_heard() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)))
    listener.hear(packet(1, line(1, 3), adapter=2))
    for seq in range(4, 8):
        listener.wait(100 * MS)
        listener.hear(packet(seq, line(seq, seq)))
    assert listener.events(ConfirmationPaused) == [ConfirmationPaused(1, (1,))]
    listener.hear(packet(4, line(4, 7), adapter=2))
    assert listener.events(ConfirmationResumed) == [ConfirmationResumed(1, (1, 2))]
    assert listener.delivered == line(1, 7)


def test_a_second_adapter_that_starts_slightly_late_causes_no_pause() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(heartbeat(1, FIRST))
    listener.wait(150 * MS)
    listener.hear(heartbeat(1, FIRST), heartbeat(1, FIRST, adapter=2))
    listener.wait(100 * MS)
    assert not listener.events(ConfirmationPaused)
    alone = Listener(CONFIRMING)
    alone.hear(heartbeat(1, FIRST))
    alone.wait(190 * MS)
    alone.hear(heartbeat(1, FIRST))
    alone.wait(20 * MS)
    assert alone.events(ConfirmationPaused) == [ConfirmationPaused(1, (1,))]


def test_a_forged_packet_without_messages_cannot_skip_source_messages() -> None:
    listener = Listener(CONFIRMING)
    run = Run(1, 1, 1, 1, 1, 50, 0)
    forged = packet(1, line(1, 1))._replace(message_count=0, runs=(run,), payload=encode_runs((run,)))
    listener.hear(forged, packet(1, line(1, 3)), packet(1, line(1, 3), adapter=2))
    assert listener.delivered == line(1, 3)


def test_copies_of_a_superseded_history_confirm_nothing() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 3)), packet(1, line(1, 3), adapter=2))
    listener.hear(packet(4, line(4, 6)))
    listener.hear(heartbeat(4, ((1, 1), (2, 4)), adapter=2))
    listener.hear(packet(4, line(4, 6), adapter=2))  # of epoch 1, which ended at 4
    assert listener.delivered == line(1, 3)
    for adapter in (2, 3):
        listener.hear(packet(4, [(2, 1), (1, 4)], adapter=adapter, epoch=2))
    assert listener.delivered == [*line(1, 3), (2, 1), (1, 4)]


def test_packets_of_one_adapter_with_different_boundaries_confirm_nothing() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 4)), packet(1, line(1, 2)), packet(3, line(3, 6)))
    assert not listener.delivered


def test_a_copy_of_the_old_active_does_not_confirm_one_of_the_new_active() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 3)))
    listener.hear(heartbeat(1, ((1, 1), (2, 1)), adapter=2))
    listener.hear(packet(1, line(1, 3), adapter=2, epoch=2))
    assert not listener.delivered
    listener.hear(packet(1, line(1, 3), adapter=3, epoch=2))
    assert listener.delivered == line(1, 3)


def test_a_copy_of_a_superseded_history_is_not_compared_with_messages_that_have_its_numbers_now() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), packet(1, line(1, 3), adapter=2), packet(4, line(4, 6)))
    listener.hear(heartbeat(4, ((1, 1), (2, 4)), adapter=2))
    renumbered: list[Source] = [(2, 1), (2, 2)]
    listener.hear(packet(4, renumbered, adapter=2, epoch=2), packet(4, renumbered, adapter=3, epoch=2))
    assert listener.delivered == [*line(1, 3), *renumbered]
    assert not listener.events(Diverged)


def test_a_copy_from_before_a_takeover_neither_confirms_nor_contradicts_late_copies_after_it() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), packet(1, line(1, 3), adapter=2), packet(4, line(4, 6)))
    listener.wait(5_100 * MS)
    assert listener.events(Gap) == [Gap(1, 4, 7, 4, 7, GapReason.UNCONFIRMED)]
    listener.hear(heartbeat(7, ((1, 1), (2, 4)), adapter=2))
    listener.wait(5_100 * MS)
    assert listener.events(Gap)[1:] == [Gap(1, 4, 7, 4, 7, GapReason.NO_ADAPTER_HAD_THEM)]
    listener.hear(packet(4, line(1, 3, stream=2), adapter=2, epoch=2))
    assert not listener.events(Diverged, Filled)
    listener.hear(packet(4, line(1, 3, stream=2), adapter=3, epoch=2))
    assert listener.delivered == [*line(1, 3), *line(1, 3, stream=2)]


def test_a_live_subscription_begins_with_the_first_packet_of_any_adapter() -> None:
    listener = Listener(CONFIRMING, start=None)
    listener.hear(packet(5, line(5, 6)), packet(7, line(7, 8)), packet(7, line(7, 8), adapter=2))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((5, 7),), copy_count=1, held_adapter_ids=(1,))]


def test_if_two_adapters_copies_differ_the_copy_of_one_more_is_requested() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3), tail=b"!"), packet(1, line(1, 3), adapter=2))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((1, 4),), copy_count=1, held_adapter_ids=(1, 2))]


def test_a_copy_that_follows_the_delivery_is_compared_and_does_not_wait() -> None:
    listener = Listener(replace(CONFIRMING, held_count_max=1))
    listener.hear(packet(1, line(1, 3)), packet(1, line(1, 3), adapter=2), packet(4, line(4, 6)))
    listener.hear(packet(1, line(1, 3), adapter=3, tail=b"!"))
    assert listener.count(Counter.MERGE_DUPLICATES) == 1
    assert len(listener.events(Diverged)) == 1
    listener.hear(packet(4, line(4, 6), adapter=2))
    assert listener.delivered == line(1, 6)


def test_a_copy_that_differs_from_the_delivered_ones_waits_no_longer() -> None:
    listener = Listener(replace(CONFIRMING, held_count_max=2))
    listener.hear(packet(1, line(1, 3), tail=b"!"))
    for adapter in (2, 3):
        listener.hear(packet(1, line(1, 3), adapter=adapter))
    for adapter in (1, 2):
        listener.hear(packet(4, line(4, 6), adapter=adapter), packet(7, line(7, 9), adapter=adapter))
    assert listener.delivered == line(1, 9)
